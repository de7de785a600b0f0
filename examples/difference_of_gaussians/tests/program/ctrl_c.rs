//! Ctrl-C: the work stops at once, the program says how far it came, and leaves nothing behind.
//!
//! It is pressed by sending the signal. When to press it, the program says: by its progress bar, for which it is given a
//! terminal, or by opening a pipe.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use super::*;

/// What it says of work that was begun: blocks done, blocks in all.
#[track_caller]
fn interrupted(line: &str) -> (usize, usize) {
    let (done, rest) = line.strip_prefix("interrupted: ").and_then(|rest| rest.split_once(" of ")).unwrap();
    let (all, rest) = rest.split_once(" blocks smoothed in ").unwrap();
    assert!(rest.ends_with("s, nothing written"), "{line:?}");
    (done.parse().unwrap(), all.parse().unwrap())
}

fn press(child: &Child) {
    // SAFETY: the child has not been waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) }, 0);
}

/// A pipe with a name, in `place`.
fn pipe(place: &Place, name: &str) -> PathBuf {
    let path = place.path(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Opens the end of a pipe that `child` opens the other end of; fails if the child ends before it does.
fn meet(child: &mut Child, open: impl Fn() -> io::Result<File>) -> File {
    loop {
        match open() {
            Ok(file) => return file,
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENXIO), "{error}"),
        }
        assert_eq!(child.try_wait().unwrap(), None, "it never came to the pipe");
        std::thread::yield_now();
    }
}

fn end(child: Child) -> (ExitStatus, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status, text(output.stdout), text(output.stderr))
}

/// The two ends of a new terminal: what is written to the second is read from the first.
fn terminal() -> (File, File) {
    let open = |path: &str| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(path).unwrap()
    };
    let master = open("/dev/ptmx");
    let mut name = [0 as libc::c_char; 64];
    // SAFETY: an open terminal, and a buffer that is as long as it says.
    let name = unsafe {
        assert_eq!(libc::unlockpt(master.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
        std::ffi::CStr::from_ptr(name.as_ptr())
    };
    let slave = open(name.to_str().unwrap());
    (master, slave)
}

/// Presses it while blocks are smoothed, after the first of them.
fn while_it_works(place: &Place, output: &str) -> (usize, usize) {
    let (mut screen, terminal) = terminal();
    // The widest kernels and many pixels: seconds of work at the least, and a first block soon.
    let arguments = ["in.png", "--scale", "60", "--sigma", "100", "100", "--output", output];
    let mut command = place.command(&arguments);
    command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(terminal);
    let mut child = command.spawn().unwrap();
    drop(command); // and with it our end of the terminal

    let (mut shown, mut piece, mut pressed) = (String::new(), [0; 1000], false);
    loop {
        match screen.read(&mut piece) {
            Ok(n) if n > 0 => shown.push_str(&String::from_utf8_lossy(&piece[..n])),
            // It has ended, and with it the terminal.
            _ => break,
        }
        // What stands before each "/900 blocks" that was shown whole ends with the number of those that are done.
        let before = shown.rsplit("/900 blocks").skip(1);
        if !pressed && before.into_iter().any(|before| !before.ends_with(" 0")) {
            pressed = true;
            press(&child);
        }
    }
    assert!(pressed, "no progress in {shown:?}");
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), stdout.as_str()), (Some(130), ""), "{shown:?}");
    // The bar may have left something at the beginning of the line.
    let line = shown.lines().find_map(|line| Some(&line[line.find("interrupted: ")?..]));
    interrupted(line.unwrap_or_else(|| panic!("{shown:?}")).trim_end())
}

#[test]
fn stops_the_work_says_how_far_it_came_and_leaves_nothing() {
    let place = Place::new();
    place.write("in.png", &png(&noise(64, 64)));
    let (done, all) = while_it_works(&place, "out.png");
    assert_eq!(all, 900);
    assert!(done < all, "{done}");
    assert_eq!(place.names(), names(["in.png"]));
}

#[test]
fn leaves_the_older_picture_as_it_was() {
    let place = Place::new();
    place.write("in.png", &png(&noise(64, 64)));
    place.write("out.png", b"older");
    while_it_works(&place, "out.png");
    assert_eq!(place.read("out.png"), b"older");
    assert_eq!(place.names(), names(["in.png", "out.png"]));
}

#[test]
fn ends_it_at_once_before_the_work_begins() {
    let place = Place::new();
    let input = pipe(&place, "in.png");
    let mut command = place.command(&["in.png"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _writer =
        meet(&mut child, || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&input));
    // It reads, and there is nothing to read.
    press(&child);
    let (status, stdout, stderr) = end(child);
    assert_eq!((status.code(), stdout.as_str()), (Some(130), ""));
    assert_eq!(stderr, "interrupted: before the first block, nothing written\n");
    assert_eq!(place.names(), names(["in.png"]));
}

#[test]
fn ends_it_at_once_while_nobody_takes_the_picture() {
    let place = Place::new();
    // More than a pipe holds.
    place.write("in.png", &png(&noise(600, 600)));
    let output = pipe(&place, "out.png");
    let mut command = place.command(&["in.png", "--output", "out.png"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = File::open(output).unwrap(); // when the program opens it
    reader.read_exact(&mut [0; 8]).unwrap();
    press(&child);
    let status = child.wait().unwrap();
    let (_, stdout, stderr) = end(child);
    assert_eq!((status.code(), stdout.as_str()), (Some(130), ""));
    assert!(stderr.ends_with("s, the output is incomplete\n"), "{stderr:?}");
    assert_eq!(place.names(), names(["in.png", "out.png"]));
}

#[test]
fn pressed_twice_ends_it_whatever_hangs() {
    let place = Place::new();
    let input = pipe(&place, "in.png");
    // What it has to say after the first, it cannot: nobody reads, and the pipe is full.
    let (_reader, stderr) = full_pipe();
    let mut child = place.command(&["in.png"]).stderr(stderr).spawn().unwrap();
    let _writer =
        meet(&mut child, || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&input));
    let status = loop {
        // Often enough: one that comes before the last was taken is not counted.
        press(&child);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::yield_now();
    };
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
    assert_eq!(place.names(), names(["in.png"]));
}

fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = io::pipe().unwrap();
    let (reader, writer) = (OwnedFd::from(reader), File::from(OwnedFd::from(writer)));
    // SAFETY: an open file, and a flag.
    let blocks = |on: libc::c_int| unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, on) };
    assert_eq!(blocks(libc::O_NONBLOCK), 0);
    while (&writer).write(&[0; 4096]).is_ok() {}
    while (&writer).write(&[0]).is_ok() {}
    assert_eq!(blocks(0), 0);
    (reader, writer.into())
}

#[test]
fn is_not_listened_to_by_one_that_was_started_to_ignore_it() {
    let place = Place::new();
    let input = pipe(&place, "in.png");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT; exec \"$@\"", "sh"]).arg(program()).arg("in.png");
    let mut child = command.current_dir(&place.0).stdout(Stdio::piped()).spawn().unwrap();
    let mut writer =
        meet(&mut child, || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&input));
    press(&child);
    writer.write_all(&png(&noise(20, 20))).unwrap();
    drop(writer);
    let (status, stdout, _) = end(child);
    assert!(status.success() && stdout.contains("written"), "{status}, {stdout:?}");
}

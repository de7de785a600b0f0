//! The main job as its user meets it: a child process with arguments, an exit code,
//! two streams and a directory.
//!
//! The program compares its result with a plain single-threaded computation, bit by bit, and exits with 1 if they differ;
//! so every run here that must succeed is also a test of that. Every run is in a directory of its own, where what it left
//! behind is counted.

#[cfg(unix)]
mod ctrl_c;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use image::{GrayImage, ImageFormat, Luma, Rgb, RgbImage};
use tempfile::TempDir;

/// The built program.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_difference_of_gaussians"))
}

/// What a run of the program came to.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    /// Checks success, with nothing to complain about (the progress bar is hidden: stderr is no terminal).
    #[track_caller]
    fn succeeded(self) -> Run {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        self
    }

    /// Checks failure with `code`, told in one line that contains `words`, and no trace of a panic.
    #[track_caller]
    fn failed(self, code: i32, words: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(
            self.stderr.starts_with("error: ") && self.stderr.contains(words),
            "no {words:?} in {self:?}"
        );
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
    }

    /// The numbers of the line of the report that begins with `label`.
    #[track_caller]
    fn numbers(&self, label: &str) -> Vec<f64> {
        let line = self.stdout.lines().find_map(|line| line.strip_prefix(label));
        let line = line.unwrap_or_else(|| panic!("no {label:?} in {self:?}"));
        line.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|word| word.parse().ok()).collect()
    }
}

/// A directory to run in, gone at the end of the test.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null());
        #[cfg(unix)]
        heed_interrupts(&mut command);
        command
    }

    fn run(&self, arguments: &[&str]) -> Run {
        finish(self.command(arguments))
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Everything in the directory.
    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn picture(&self, name: &str) -> GrayImage {
        image::open(self.path(name)).unwrap().into_luma8()
    }
}

/// Has the program begin as if from a terminal: these tests may themselves run with interrupts ignored, as a shell's `&` has
/// it, which a child inherits.
#[cfg(unix)]
fn heed_interrupts(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec one system call is made, which is safe in a signal handler.
    unsafe {
        command.pre_exec(|| match libc::signal(libc::SIGINT, libc::SIG_DFL) {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

fn finish(mut command: Command) -> Run {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(String::from).into()
}

/// Noise, the same every time: no two rows and no two blocks of it are alike.
fn noise(width: u32, height: u32) -> RgbImage {
    let mut state = 7_u32;
    RgbImage::from_fn(width, height, |_, _| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [r, g, b, _] = state.to_be_bytes();
        Rgb([r, g, b])
    })
}

fn encoded(picture: &RgbImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = io::Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn png(picture: &RgbImage) -> Vec<u8> {
    encoded(picture, ImageFormat::Png)
}

#[test]
fn without_arguments_it_computes_the_bundled_picture_and_reports() {
    let place = Place::new();
    let run = place.run(&[]).succeeded();
    assert_eq!(place.names(), names(["difference_of_gaussians.png"]));
    assert_eq!(place.picture("difference_of_gaussians.png").dimensions(), (1000, 872));
    let blocks = 8.0 * 7.0;
    assert_eq!(run.numbers("picture"), [1000.0, 872.0, blocks]);
    assert!(
        run.numbers("time")[0] > 0.0
            && run.numbers("one thread")[0] > 0.0
            && run.numbers("speed-up")[0] > 0.0
    );
    let (requests, direct) = (run.numbers("requests")[0], run.numbers("ran directly")[0]);
    assert!(requests >= 4.0 * blocks, "an input, two scales and a difference for each block: {run:?}");
    assert!(
        requests <= 4.0 * blocks + 1.0,
        "each once, however many wait for it, and the one that orders: {run:?}"
    );
    assert!(direct <= requests, "{run:?}");
    let [peak, made, bound] = run.numbers("peak live blocks")[..] else { panic!("{run:?}") };
    assert_eq!(made, 3.0 * blocks, "a difference is its fine block, subtracted from in place");
    assert!(peak <= bound && bound < made, "{run:?}");
}

#[test]
fn threads_and_blocks_change_no_byte() {
    let place = Place::new();
    place.write("in.png", &png(&noise(150, 90)));
    place.run(&["in.png", "--threads", "1", "--output", "one.png"]).succeeded();
    for (threads, block) in [("2", "128"), ("1", "8"), ("2", "8"), ("5", "16"), ("2", "65536")] {
        place.run(&["in.png", "--threads", threads, "--block", block, "--output", "other.png"]).succeeded();
        assert_eq!(place.read("other.png"), place.read("one.png"), "--threads {threads} --block {block}");
    }
    // The comparison can fail:
    place.run(&["in.png", "--sigma", "1", "3.5", "--output", "other.png"]).succeeded();
    assert_ne!(place.read("other.png"), place.read("one.png"));
}

#[test]
fn what_does_not_vary_has_no_difference() {
    let place = Place::new();
    place.write("in.png", &png(&RgbImage::from_pixel(20, 30, Rgb([90, 10, 200]))));
    place.run(&["in.png", "--sigma", "2", "2", "--block", "8"]).succeeded();
    let picture = place.picture("difference_of_gaussians.png");
    assert!(picture.pixels().all(|p| *p == Luma([128])), "the same scale twice");
}

#[test]
fn a_dot_becomes_a_bright_dot_in_a_dark_ring() {
    let place = Place::new();
    let dot = |x, y| if (x, y) == (20, 20) { Rgb([255; 3]) } else { Rgb([0; 3]) };
    place.write("in.png", &png(&RgbImage::from_fn(41, 41, dot)));
    place.run(&["in.png", "--block", "8"]).succeeded();
    let picture = place.picture("difference_of_gaussians.png");
    let at = |x, y| picture.get_pixel(x, y).0[0];
    assert_eq!(at(20, 20), 255);
    assert!(at(23, 20) < 128, "three pixels off, the wider Gaussian prevails: {}", at(23, 20));
    assert_eq!(at(0, 0), 128, "and far away is nothing");
    for (x, y) in (0..41).flat_map(|y| (0..41).map(move |x| (x, y))) {
        let turned = at(40 - y, x);
        assert!(at(x, y).abs_diff(turned) <= 1, "round: ({x}, {y}) is {}, turned {turned}", at(x, y));
    }
}

#[test]
fn scale_tiles_the_picture() {
    let place = Place::new();
    place.write("in.png", &png(&noise(21, 17)));
    let run = place.run(&["in.png", "--scale", "3", "--block", "16"]).succeeded();
    assert_eq!(run.numbers("picture")[..2], [63.0, 51.0]);
    let picture = place.picture("difference_of_gaussians.png");
    assert_eq!(picture.dimensions(), (63, 51));
    // Away from the edges (nine pixels is the radius of the wider kernel) it repeats.
    assert_eq!(picture.get_pixel(10, 10), picture.get_pixel(10 + 21, 10 + 17));
}

#[test]
fn a_picture_is_known_by_its_content_not_by_its_name() {
    let place = Place::new();
    place.write("really_a_jpeg.png", &encoded(&noise(30, 30), ImageFormat::Jpeg));
    place.run(&["really_a_jpeg.png"]).succeeded();
}

#[test]
fn wrong_arguments_are_one_line_and_exit_code_2() {
    let wrong: [(&[&str], &str); 17] = [
        (&["--threads", "0"], "--threads"),
        (&["--threads", "100000"], "from 1 to 1024"),
        (&["--threads", "two"], "--threads"),
        (&["--threads", "-1"], "'-1'"),
        (&["--block", "0"], "--block"),
        (&["--block", "99999999999999999999999"], "--block"),
        (&["--scale", "0"], "--scale"),
        (&["--scale", "4294967296"], "--scale"),
        (&["--sigma", "nan", "3"], "--sigma"),
        (&["--sigma", "1", "-3"], "'-3'"),
        (&["--sigma", "0", "3"], "--sigma"),
        (&["--sigma", "inf", "3"], "--sigma"),
        (&["--sigma", "1"], "2 values"),
        (&["--colour"], "--colour"),
        (&["one.png", "two.png"], "two.png"),
        (&["--output"], "--output"),
        (&[""], "INPUT"),
    ];
    let place = Place::new();
    for (arguments, words) in wrong {
        place.run(arguments).failed(2, words);
    }
    assert_eq!(place.names(), names([]));
}

#[test]
fn help_and_version_are_no_errors() {
    let place = Place::new();
    let help = place.run(&["--help"]).succeeded();
    for option in ["--output", "--scale", "--threads", "--block", "--sigma", "[INPUT]"] {
        assert!(help.stdout.contains(option), "{option}");
    }
    assert!(place.run(&["--version"]).succeeded().stdout.contains(env!("CARGO_PKG_VERSION")));
    assert_eq!(place.names(), names([]));
}

#[test]
fn an_input_that_is_no_picture_is_one_line_and_leaves_nothing() {
    let place = Place::new();
    let (whole_png, whole_jpeg) = (png(&noise(64, 64)), encoded(&noise(64, 64), ImageFormat::Jpeg));
    place.write("text.png", b"Dear Sir or Madam\n");
    place.write("empty.jpg", b"");
    place.write("half.png", &whole_png[..whole_png.len() / 2]);
    place.write("half.jpg", &whole_jpeg[..100]);
    place.write("signature.png", &whole_png[..8]);
    let before = place.names();
    for input in ["missing.png", ".", "text.png", "empty.jpg", "half.png", "half.jpg", "signature.png"] {
        place.run(&[input]).failed(1, &format!("cannot read {input:?}"));
    }
    assert_eq!(place.names(), before);
}

#[test]
fn what_would_not_fit_into_memory_is_refused_in_words() {
    let place = Place::new();
    place.write("in.png", &png(&noise(64, 64)));
    place.run(&["in.png", "--scale", "10000"]).failed(1, "do not fit into memory");
    assert_eq!(place.names(), names(["in.png"]));
}

#[test]
fn an_output_that_cannot_be_written_is_told_before_the_work() {
    let place = Place::new();
    fs::create_dir(place.path("directory")).unwrap();
    place.write("kept.png", b"keep me");
    let mut permissions = fs::metadata(place.path("kept.png")).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(place.path("kept.png"), permissions).unwrap();
    let before = place.names();
    for output in ["nowhere/out.png", "directory", ".", "kept.png", "kept.png/out.png"] {
        // The input is missing too: that the output is what the user is told shows that it was looked at first.
        place.run(&["missing.png", "--output", output]).failed(1, &format!("cannot write {output:?}"));
    }
    if cfg!(target_os = "linux") {
        // A directory in which nobody can make a file, not even root.
        place.run(&["missing.png", "--output", "/proc/out.png"]).failed(1, "cannot write \"/proc/out.png\"");
    }
    assert_eq!(place.names(), before);
    assert_eq!(place.read("kept.png"), b"keep me");
}

#[test]
fn a_run_that_fails_leaves_the_older_picture_as_it_was() {
    let place = Place::new();
    place.write("in.png", b"no picture");
    place.write("out.png", b"older");
    place.run(&["in.png", "--output", "out.png"]).failed(1, "in.png");
    assert_eq!(place.read("out.png"), b"older");
    assert_eq!(place.names(), names(["in.png", "out.png"]));
}

/// The disk is full, so to speak, in the middle of the picture: files may have one block only.
#[cfg(unix)]
#[test]
fn a_write_that_fails_halfway_leaves_the_older_picture_as_it_was() {
    let place = Place::new();
    place.write("in.png", &png(&noise(100, 100)));
    place.write("out.png", b"older");
    let limited = |limit: &str| {
        let mut shell = Command::new("sh");
        // An ignored signal stays ignored in the program, which then gets an error from `write`.
        shell.args(["-c", "trap '' XFSZ; ulimit -f \"$1\"; shift; exec \"$@\"", "sh", limit]);
        shell.arg(program()).args(["in.png", "--output", "out.png"]).current_dir(&place.0);
        finish(shell)
    };
    limited("1").failed(1, "cannot write \"out.png\"");
    assert_eq!(place.read("out.png"), b"older");
    assert_eq!(place.names(), names(["in.png", "out.png"]));
    // With room enough, the same command succeeds.
    limited("1000").succeeded();
    assert_eq!(place.picture("out.png").dimensions(), (100, 100));
}

#[cfg(unix)]
#[test]
fn the_output_keeps_its_link_and_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.write("in.png", &png(&noise(20, 20)));
    place.write("real.png", b"older");
    fs::set_permissions(place.path("real.png"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("real.png", place.path("link.png")).unwrap();
    place.run(&["in.png", "--output", "link.png"]).succeeded();
    assert!(fs::symlink_metadata(place.path("link.png")).unwrap().is_symlink());
    assert_eq!(place.picture("real.png").dimensions(), (20, 20));
    assert_eq!(fs::metadata(place.path("real.png")).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(place.names(), names(["in.png", "link.png", "real.png"]));
}

#[test]
fn a_reader_who_has_gone_away_is_no_failure() {
    let place = Place::new();
    place.write("in.png", &png(&noise(20, 20)));
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let mut command = place.command(&["in.png"]);
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stderr, b"");
    assert_eq!(place.picture("difference_of_gaussians.png").dimensions(), (20, 20));
}

//! Whose number and whose connection it is: forks, and numbers that go round.

use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, mem};

use forebear::timer::local::{LocalTimerClient, configure_from_env};
use forebear::timer::{TimerGuard, expires};

use crate::worker::{LONG, Running, Server, Told, Worker, end_in_time, get_stuck, leave, say, wait_for_word};

pub(crate) fn play(role: &str) {
    match role {
        "its fork is stuck" => {
            configure_from_env().unwrap();
            let _own = expires(LONG).unwrap();
            // SAFETY: the child keeps to what is tested here.
            let child = match unsafe { libc::fork() } {
                -1 => panic!("no fork"),
                0 => {
                    end_in_time();
                    let _timer = expires(Duration::from_millis(20)).unwrap();
                    get_stuck();
                }
                child => child,
            };
            let mut status = 0;
            // SAFETY: the child's number, and a place for the answer.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:#x}");
            say(&child.to_string());
            wait_for_word();
            leave();
        }
        "hands its line to a fork and ends" => {
            let client = LocalTimerClient::from_env().unwrap();
            // SAFETY: the child keeps to what is tested here.
            match unsafe { libc::fork() } {
                -1 => panic!("no fork"),
                0 => {
                    end_in_time();
                    let line = line_of(&client);
                    say("forked");
                    wait_for_word();
                    // What the client would never do: to speak on its parent's line.
                    speak(line);
                    wait_for_word();
                    leave();
                }
                _ => leave(),
            }
        }
        "stuck after the others" => {
            configure_from_env().unwrap();
            let _timer = expires(Duration::from_millis(1_100)).unwrap();
            get_stuck();
        }
        "leaves timers" => {
            configure_from_env().unwrap();
            mem::forget(TimerGuard::builder().scope("left").expires(Duration::from_secs(1)).unwrap());
            leave();
        }
        _ => {}
    }
}

/// The descriptor of the only connected unix socket that this process has.
fn line_of(_: &LocalTimerClient) -> libc::c_int {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let numbers = descriptors.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let mut lines = numbers.filter(|number: &libc::c_int| {
        let mut kind: libc::c_int = 0;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: a place for the answer, and its size.
        let done = unsafe {
            libc::getsockopt(*number, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &mut len)
        };
        done == 0 && kind == libc::SOCK_SEQPACKET
    });
    lines.next().unwrap()
}

/// An acquire of a timer that has expired.
fn speak(line: libc::c_int) {
    let mut message = b"fbt\x01\x01\0\0\0".to_vec();
    message.extend(1i64.to_le_bytes());
    message.extend([0; 8]);
    message.extend(b"stolen");
    // SAFETY: a buffer and its length.
    let sent = unsafe { libc::send(line, message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL) };
    assert_eq!(sent, 30);
}

#[test]
fn a_fork_connects_anew_and_has_timers_of_its_own() {
    let mut server = Server::start();
    let mut worker = Worker::start("its fork is stuck", &server);
    let child: u32 = worker.hear().parse().unwrap();
    server.expect_some(|told| matches!(told, Told::Reaped(of, _) if *of == child), "the fork's end");
    // Its parent, whose timer is another, lives.
    worker.word();
    worker.ends_well();
    assert_eq!(server.handle.stats().reaped, 1);
}

/// Starts a process that has nothing to do with any of this, with this number. `None` if the system does not let us choose.
fn stranger(pid: u32) -> Option<Running> {
    for _ in 0..200 {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let stranger = Running(sleep.spawn().ok()?);
        if stranger.0.id() == pid {
            return Some(stranger);
        }
    }
    None
}

#[track_caller]
fn lives(mut stranger: Running) {
    assert_eq!(stranger.0.try_wait().unwrap(), None, "a stranger was killed");
}

#[test]
fn who_has_the_number_of_a_worker_that_has_ended_is_not_killed_for_it() {
    let mut server = Server::start();
    let worker = Worker::start("leaves timers", &server);
    let pid = worker.pid();
    worker.ends_well();
    let Some(stranger) = stranger(pid) else {
        eprintln!("not tried: this system does not let us choose the numbers of processes");
        return;
    };
    server.expect(&Told::Orphaned(pid, 1));
    // The deadline of the timer that was left passes with this one.
    let probe = Worker::start("stuck after the others", &server);
    probe.dies_by(libc::SIGKILL);
    lives(stranger);
    assert_eq!(server.handle.stats().reaped, 1);
}

#[test]
fn who_has_the_number_of_one_that_had_connected_is_not_killed_for_what_a_child_says_on_its_line() {
    let mut server = Server::start();
    let mut worker = Worker::start("hands its line to a fork and ends", &server);
    worker.expect("forked");
    let pid = worker.pid();
    let (ended, mut fork) = worker.wait_and_keep_its_fork();
    assert!(ended.success());
    let stranger = stranger(pid);
    fork.word();
    server.expect(&Told::Refused(Some(pid), "ForeignSender".into()));
    match stranger {
        Some(stranger) => lives(stranger),
        None => eprintln!("half tried: this system does not let us choose the numbers of processes"),
    }
    assert_eq!(server.handle.stats().requests, 0);
}

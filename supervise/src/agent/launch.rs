//! How a worker is started so that it ends with its agent: both sides of the start.
//!
//! The agent does not start the worker's program itself. It starts the *launcher*: its own executable, or another one that calls [`entry`] first. The
//! launcher has the kernel send SIGKILL to it when the agent ends ("parent-death signal"), and then becomes the worker by `exec`, which keeps that
//! setting. Safe code can do this in a process of its own; between `fork` and `exec` it could not.
//!
//! # The protocol
//!
//! The environment variable `FOREBEAR_AGENT_LAUNCH` is the number of the agent's process. The arguments are the worker's program and its arguments. The
//! standard input is a socket.
//!
//! 1. The launcher sends one byte, `R`, when the setting is made and the agent is still its parent.
//! 2. The agent starts the [guard] of the launcher's process group, and then sends one byte, `G`. If the socket closes before that, the launcher exits.
//! 3. The launcher sends nothing more if `exec` succeeds: the socket closes by that. Else it sends the number of the error, 4 bytes, little-endian.
//!
//! # Invariants
//!
//! * **AL1** The parent-death signal comes when the *thread* that has started the launcher ends. That is the thread of the run, which ends after its workers.
//! * **AL2** If the agent ends before the setting is made, the signal would never come. The launcher asks for its parent after it has made the setting: if
//!   that is not the agent, it exits.
//! * **AL3** A program that does not call `entry` first would start itself again, and again. So an agent runs only in a process that has called it, or with a launcher
//!   that was named.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, fs::File};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::guard::{self, Guard};

/// The number of the agent's process, in the launcher's environment.
const LAUNCH: &str = "FOREBEAR_AGENT_LAUNCH";
/// The executable of this process, also if the file was replaced since.
const ITSELF: &str = "/proc/self/exe";
const READY: u8 = b'R';
const GO: u8 = b'G';

static ENTERED: AtomicBool = AtomicBool::new(false);

/// To be called first in `main`, by each program that runs a [`LocalAgent`](super::LocalAgent).
///
/// An agent starts its workers through a second process of its own program, and has a third one guard each worker's process group. In those two processes this
/// function does not return: the second becomes the worker, the third waits until the agent ends. In every other process it returns at once.
///
/// ```
/// use forebear_supervise::agent;
///
/// fn main() {
///     agent::entry();
///     // ... the program, which may run agents from here on
/// }
/// ```
pub fn entry() {
    if let Some(agent) = env::var_os(guard::GUARD) {
        guard::be_guard(&agent);
    }
    let Some(agent) = env::var_os(LAUNCH) else {
        ENTERED.store(true, Ordering::Relaxed);
        return;
    };
    // The launcher reports what goes wrong on the socket, if there is one.
    drop(become_worker(&agent));
    process::exit(127);
}

/// Whether [`entry`] was called in this process.
pub(super) fn entered() -> bool {
    ENTERED.load(Ordering::Relaxed)
}

/// In the launcher.
fn become_worker(agent: &OsString) -> io::Result<()> {
    // A copy that closes by `exec`; the worker's own input is empty.
    let mut agent_hears = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if !parent_is(agent) {
        return Ok(()); // AL2
    }
    agent_hears.write_all(&[READY])?;
    // The agent may end before it sends this: then the socket closes, and the signal comes.
    agent_hears.read_exact(&mut [0])?;
    let mut arguments = env::args_os().skip(1);
    let mut command = Command::new(arguments.next().unwrap_or_default());
    command.args(arguments).env_remove(LAUNCH).stdin(Stdio::null());
    let error = command.exec();
    agent_hears.write_all(&error.raw_os_error().unwrap_or(0).to_le_bytes())
}

/// Whether the parent of this process has this number.
pub(super) fn parent_is(number: &OsString) -> bool {
    getppid().is_some_and(|pid| *number == *pid.as_raw_nonzero().to_string())
}

/// The program that calls [`entry`].
pub(super) fn launcher(named: Option<&Path>) -> &Path {
    named.unwrap_or(Path::new(ITSELF))
}

/// A command that starts `program` through the launcher; what else it needs (arguments, environment, directory, output) is added to it.
pub(super) fn command(named: Option<&Path>, program: &OsString) -> Command {
    let mut command = Command::new(launcher(named));
    command.env(LAUNCH, process::id().to_string()).process_group(0).arg(program);
    command
}

/// Starts it, and answers where the launcher speaks. The calling thread must outlive the worker (AL1).
pub(super) fn launch(mut command: Command) -> io::Result<(Child, UnixStream)> {
    let (hears, says) = UnixStream::pair()?;
    let child = command.stdin(OwnedFd::from(says)).spawn();
    let child = child.map_err(|error| refused(&command, error))?;
    // The command goes here, and with it our copy of the launcher's end.
    Ok((child, hears))
}

/// An error of a start, with the path that it is about. The system's number does not say whether that is the directory or the program.
pub(super) fn refused(command: &Command, error: io::Error) -> io::Error {
    let named = |what: String, why: &dyn Display, kind| io::Error::new(kind, format!("{what}: {why}"));
    if let Some(dir) = command.get_current_dir() {
        let what = format!("the directory {dir:?} for workers");
        match fs::metadata(dir).map(|found| (found, access(dir, Access::EXEC_OK))) {
            Err(why) => return named(what, &why, why.kind()),
            Ok((found, _)) if !found.is_dir() => return named(what, &"it is no directory", error.kind()),
            Ok((_, Err(why))) => return named(what, &io::Error::from(why), error.kind()),
            Ok(_) => {}
        }
    }
    let launcher = Path::new(command.get_program());
    match Errno::from_io_error(&error) {
        Some(
            Errno::NOENT | Errno::ACCESS | Errno::NOTDIR | Errno::LOOP | Errno::NOEXEC | Errno::NAMETOOLONG,
        ) => named(format!("the launcher {launcher:?}"), &error, error.kind()),
        _ => error,
    }
}

/// Waits until the launcher and its guard are ready, until `until` at most, and sends the launcher on.
pub(super) fn go(hears: &mut UnixStream, guard: &mut UnixStream, until: Instant) -> io::Result<()> {
    if !is_ready(hears, until)? {
        return Err(no_launcher());
    }
    Guard::settle(guard, until)?;
    // A launcher that has ended meanwhile is found by `settle`; SIGPIPE, which this process may not ignore, is not for that.
    let _ = send(&*hears, &[GO], SendFlags::NOSIGNAL);
    Ok(())
}

/// Waits until a process says that it is ready, until `until` at most. `false`: it has ended, or says something else.
pub(super) fn is_ready(hears: &mut UnixStream, until: Instant) -> io::Result<bool> {
    let mut byte = [0];
    Ok(read(hears, &mut byte, until)? == 1 && byte == [READY])
}

/// Waits until the launcher has become the worker, until `until` at most.
pub(super) fn settle(hears: &mut UnixStream, until: Instant) -> io::Result<()> {
    let (mut written, mut bytes) = (Vec::new(), [0; 8]);
    loop {
        match read(hears, &mut bytes, until)? {
            0 => break,
            count if written.len() < bytes.len() => written.extend_from_slice(&bytes[..count]),
            _ => return Err(no_launcher()),
        }
    }
    if written.is_empty() {
        return Ok(());
    }
    match written.as_slice().try_into().map(i32::from_le_bytes) {
        Ok(number) if number != 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::other("the program could not be executed")),
    }
}

/// Reads what the other process has sent, as soon as there is something. 0: it has closed the socket.
fn read(hears: &mut UnixStream, into: &mut [u8], until: Instant) -> io::Result<usize> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        hears.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match hears.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if left.is_zero() {
                    let text = "the program was not started in time";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
            }
            // It has ended without having read what was sent to it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
            read => return read,
        }
    }
}

fn no_launcher() -> io::Error {
    io::Error::other(
        "the launcher has ended before it became the worker: does it call `agent::entry` first in `main`?",
    )
}

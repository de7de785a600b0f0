//! One worker process: how its end is noticed, how it is signalled, and how it is reaped.
//!
//! A worker leads a process group of its own, so what it forks is signalled along with it.
//!
//! # Invariants
//!
//! * **AW1** A worker that has ended is not reaped before its group is no longer signalled. Until it is reaped the system gives its number to no other process, and no
//!   other group. So a signal by this number never hits a stranger. (What reaps children without being asked, a `wait` for any child in the same process or
//!   an ignored SIGCHLD, breaks this. The agent then gives up: [`Lost`].)
//! * **AW2** Nothing here waits for a process without a limit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::SystemTime;
use std::{fmt, thread};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};

use super::environment::WorkerEnv;
use super::guard::Guard;

/// How a process has ended.
///
/// ```
/// use forebear_supervise::agent::End;
/// assert_eq!(End::Exit(3).to_string(), "exit code 3");
/// assert!(End::Exit(0).success() && !End::Signal(9).success());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// It has exited with this code.
    Exit(i32),
    /// A signal of this number has ended it.
    Signal(i32),
}

impl End {
    /// Whether it has exited with 0.
    ///
    /// ```
    /// assert!(!forebear_supervise::agent::End::Exit(1).success());
    /// ```
    #[must_use]
    pub fn success(self) -> bool {
        self == End::Exit(0)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exit(code) => write!(f, "exit code {code}"),
            End::Signal(number) => write!(f, "signal {number}"),
        }
    }
}

/// A worker of which the system knows nothing any more, though the agent has not reaped it.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) source: io::Error,
}

/// See the module head.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) env: WorkerEnv,
    child: Option<Child>,
    pid: Pid,
    pidfd: OwnedFd,
    /// Of its process group.
    guard: Option<Guard>,
    end: Option<(End, SystemTime)>,
    /// Other code has reaped it: its number is no longer ours.
    lost: bool,
    /// The scope of a timer that has expired, if the process is ended for that.
    pub(super) expired: Option<String>,
    /// No signal reaches it: as a process that hangs in the kernel.
    #[cfg(test)]
    pub(super) deaf: bool,
}

impl Worker {
    /// Takes a child that leads a process group of its own, and was not waited for.
    pub(super) fn new(env: WorkerEnv, mut child: Child) -> io::Result<Worker> {
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Worker {
                env,
                child: Some(child),
                pid,
                pidfd,
                guard: None,
                end: None,
                lost: false,
                expired: None,
                #[cfg(test)]
                deaf: false,
            }),
            Err(error) => {
                let _ = child.kill();
                reap_some_time(child);
                Err(error.into())
            }
        }
    }

    /// Starts the guard of its process group. Answers where the guard says that it is ready.
    pub(super) fn start_guard(&mut self, launcher: Option<&Path>) -> io::Result<UnixStream> {
        let (guard, hears) = Guard::start(launcher, self.pid)?;
        self.guard = Some(guard);
        Ok(hears)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether it leads this group.
    pub(super) fn leads(&self, group: i32) -> bool {
        self.pid.as_raw_nonzero().get() == group
    }

    /// How it has ended, and when that was seen, if it was.
    pub(super) fn end(&self) -> Option<(End, SystemTime)> {
        self.end
    }

    pub(super) fn is_running(&self) -> bool {
        self.end.is_none() && !self.lost
    }

    /// Looks whether it has ended. Reaps nothing (AW1).
    pub(super) fn look(&mut self) -> Result<(), Lost> {
        if !self.is_running() {
            return Ok(());
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        loop {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
                Ok(None) => return Ok(()),
                Ok(Some(status)) => {
                    let end = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => End::Exit(code),
                        (None, Some(number)) => End::Signal(number),
                        (None, None) => return Ok(()),
                    };
                    self.end = Some((end, SystemTime::now()));
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.lost = true;
                    return Err(Lost { source: error.into() });
                }
            }
        }
    }

    /// Sends a signal to its group, what it has forked included, also if it has ended itself. There may be no process left. A worker that has gone to another group gets it
    /// alone.
    pub(super) fn signal_group(&self, signal: Signal) {
        #[cfg(test)]
        if self.deaf {
            return;
        }
        if self.child.is_none() || self.lost {
            return;
        }
        // AW1. It fails if the group is empty, or consists of processes of other users, which are then reported as unkillable.
        let _ = kill_process_group(self.pid, signal);
        let has_left = || getpgid(Some(self.pid)).is_ok_and(|group| group != self.pid);
        if self.is_running() && has_left() {
            let _ = pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// Ends what is left of its group, and reaps the worker, if it has ended.
    pub(super) fn bury(&mut self) {
        if self.end.is_some() {
            self.signal_group(Signal::KILL);
            drop(self.guard.take());
            if let Some(mut child) = self.child.take() {
                // It has ended, so this does not wait.
                let _ = child.wait();
            }
        }
    }
}

/// Its pidfd: readable when it has ended.
impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Worker {
    /// A worker that still runs here was reported as unkillable, or the run has failed.
    fn drop(&mut self) {
        let _ = self.look();
        self.bury();
        self.signal_group(Signal::KILL);
        if let (Some(child), false) = (self.child.take(), self.lost) {
            reap_some_time(child);
        }
    }
}

/// A detached thread reaps it when it ends, so that it does not stay in the table of processes.
pub(super) fn reap_some_time(mut child: Child) {
    let wait = move || drop(child.wait());
    // Without a thread the entry stays until this process ends.
    let _ = thread::Builder::new().name("agent: unkillable".into()).spawn(wait);
}

//! [`Joinable`]: what can be a worker, how its end is noticed, and how a stop reaches it.
//!
//! Nothing is polled. A request calls back when it is over. A thread's handle and a child process can only be waited for by a thread that
//! does nothing else, so each of them gets one.
//!
//! # Child processes
//!
//! A number of a process is good until the process was reaped; after that it may mean another process. The watching thread waits with
//! `WNOWAIT`, which reaps nothing, and reaps under a lock. A thread that sends a signal holds the same lock, and sends none to a process that was reaped.

use std::error::Error as StdError;
use std::fmt;
use std::io;
#[cfg(unix)]
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(unix)]
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use forebear::{AnyRequest, CancelReason, Error, Failure, Request};

use super::Member;
use super::board::Slot;
use super::stop::Stop;

/// A worker that can be [registered](super::Coordinator::register): a request, a thread's handle, a child process, or a type of your own.
///
/// ```
/// use forebear_supervise::{Coordinator, Joinable, Member};
/// use std::io;
/// use std::sync::mpsc::Sender;
///
/// /// A worker of a library that calls back when it is over.
/// struct Engine { on_end: Sender<Member> }
///
/// impl Joinable for Engine {
///     fn watch(self, member: Member) -> io::Result<()> {
///         let _ = self.on_end.send(member); // dropped there when the engine has ended
///         Ok(())
///     }
/// }
///
/// let (on_end, ended) = std::sync::mpsc::channel();
/// let coordinator = Coordinator::new();
/// coordinator.register("engine", Engine { on_end })?;
/// assert_eq!(coordinator.workers(), ["engine"]);
/// drop(ended.recv());
/// coordinator.join().unwrap();
/// # Ok::<(), io::Error>(())
/// ```
pub trait Joinable: Send + 'static {
    /// Arranges that `member` is dropped when the worker has ended, and that an error of the worker is [reported](Member::report) before. If a stop can wake the
    /// worker, [`Member::stop_by`] sets how. Called once. It must not wait for the worker.
    ///
    /// # Errors
    ///
    /// The worker cannot be watched. The implementation has dropped `member` then.
    fn watch(self, member: Member) -> io::Result<()>;
}

/// Cancels a request, also if others wait for it: the stop is meant for all of them.
pub(super) struct CancelRequest {
    pub(super) request: AnyRequest,
    pub(super) slot: Arc<Slot>,
}

impl Stop for CancelRequest {
    fn stop(&mut self) {
        // Before the cancel, since the request may end in it.
        self.slot.stopped.store(true, Ordering::Relaxed);
        self.request.abort(CancelReason::Stopped);
    }
}

/// Registering submits the request, if that was not done. A stop cancels it, also if others wait for it. If it is cancelled otherwise, that is reported, as
/// [`WorkerCancelled`](super::WorkerCancelled).
impl<T: Send + Sync + 'static> Joinable for Request<T> {
    fn watch(self, member: Member) -> io::Result<()> {
        member.watch_request(&self.to_untyped());
        self.submit();
        Ok(())
    }
}

/// A stop cancels the request, also if others wait for it. A request that is never submitted does not end.
impl Joinable for AnyRequest {
    fn watch(self, member: Member) -> io::Result<()> {
        member.watch_request(&self);
        Ok(())
    }
}

/// A second thread waits for it, and reports its panic. A stop does not wake it: it calls [`Coordinator::should_stop`](super::Coordinator::should_stop).
impl Joinable for JoinHandle<()> {
    fn watch(self, member: Member) -> io::Result<()> {
        watch_thread(member, move || self.join().map(Ok))
    }
}

/// As `JoinHandle<()>`. An error that the thread returns is reported.
impl Joinable for JoinHandle<Result<(), Error>> {
    fn watch(self, member: Member) -> io::Result<()> {
        watch_thread(member, move || self.join())
    }
}

fn watch_thread(
    member: Member,
    join: impl FnOnce() -> thread::Result<Result<(), Error>> + Send + 'static,
) -> io::Result<()> {
    let name = format!("coordinator: {}", member.name().replace('\0', " "));
    let watch = move || {
        match join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => drop(member.tell(error)),
            Err(payload) => {
                let failure = Failure::from_panic(payload, member.name().to_owned(), None);
                member.coordinator().record_or_tell(failure, false);
            }
        }
        drop(member);
    };
    thread::Builder::new().name(name).spawn(watch).map(drop)
}

/// A child process has not exited with 0: the error that is reported for it.
///
/// ```
/// use forebear_supervise::{ChildFailed, Coordinator};
/// use std::process::Command;
///
/// let coordinator = Coordinator::new();
/// coordinator.register("child", Command::new("sh").args(["-c", "exit 3"]).spawn()?)?;
/// let error = coordinator.join().unwrap_err();
/// let failed: &ChildFailed = error.failure().unwrap().downcast_ref().unwrap();
/// assert_eq!(failed.status.code(), Some(3));
/// # Ok::<(), std::io::Error>(())
/// ```
#[cfg(unix)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildFailed {
    /// How the process has ended.
    pub status: ExitStatus,
}

#[cfg(unix)]
impl fmt::Display for ChildFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the child process has ended with {}", self.status)
    }
}

#[cfg(unix)]
impl StdError for ChildFailed {}

/// A child that was waited for before counts by its status. A stop sends SIGTERM to the process, and a join whose grace has passed sends SIGKILL. A thread waits for the process and reaps it. It reports a status other than
/// success as [`ChildFailed`], unless a signal has ended the process after a stop had sent one.
#[cfg(unix)]
impl Joinable for Child {
    fn watch(mut self, member: Member) -> io::Result<()> {
        // Before a stop can send anything: the number of a process that was reaped may mean another one.
        let reaped = self.try_wait().is_ok_and(|status| status.is_some());
        let process = Arc::new(Mutex::new(Process { child: self, reaped, signalled: false }));
        let name = format!("coordinator: {}", member.name().replace('\0', " "));
        let watched = process.clone();
        let stopper = StopChild(process);
        let attached = member.borrowed();
        let watch = move || {
            if let Err(error) = wait_for(&watched) {
                drop(member.tell(error));
            }
            drop(member);
        };
        thread::Builder::new().name(name).spawn(watch)?;
        attached.stop_by(stopper);
        Ok(())
    }
}

#[cfg(unix)]
struct Process {
    child: Child,
    reaped: bool,
    signalled: bool,
}

#[cfg(unix)]
impl Process {
    /// It was reaped, with this status.
    fn has_ended(&mut self, status: ExitStatus) -> Result<(), Error> {
        use std::os::unix::process::ExitStatusExt;

        self.reaped = true;
        if status.success() || self.signalled && status.signal().is_some() {
            return Ok(());
        }
        Err(ChildFailed { status }.into())
    }
}

#[cfg(unix)]
fn wait_for(process: &Mutex<Process>) -> Result<(), Error> {
    use rustix::io::Errno;
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    let pid = {
        let mut process = lock(process);
        // A child that was waited for before has no process any more, and its status is known.
        if let Some(status) = process.child.try_wait()? {
            return process.has_ended(status);
        }
        pid_of(&process.child)
    };
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
            Ok(_) => break,
        }
    }
    let mut process = lock(process);
    process.reaped = true;
    let status = process.child.wait()?;
    process.has_ended(status)
}

#[cfg(unix)]
fn lock(process: &Mutex<Process>) -> std::sync::MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(unix)]
fn pid_of(child: &Child) -> rustix::process::Pid {
    rustix::process::Pid::from_child(child)
}

#[cfg(unix)]
struct StopChild(Arc<Mutex<Process>>);

#[cfg(unix)]
impl StopChild {
    fn send(&mut self, signal: rustix::process::Signal) -> bool {
        let mut process = lock(&self.0);
        if process.reaped {
            return false;
        }
        process.signalled = true;
        rustix::process::kill_process(pid_of(&process.child), signal).is_ok()
    }
}

#[cfg(unix)]
impl Stop for StopChild {
    fn stop(&mut self) {
        self.send(rustix::process::Signal::TERM);
    }

    fn kill(&mut self) -> bool {
        self.send(rustix::process::Signal::KILL)
    }
}

//! A worker process, identified by a pidfd, so that a reused process id cannot refer to another
//! process.
//!
//! # Invariant
//!
//! * **P1** The pidfd was opened for the process id that the kernel reported, and names the process that had this id then. No process is signalled
//!   before the queue has proven that it sent the timers ([`queue`](super::queue), and *The proof* in `queue/admission.rs`).

use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use std::{fmt, mem, slice};

use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::{Mutex, time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::wakeup::WakeUp;
use super::wire;
use crate::expiry::TimerError;

/// A process that has timers at a [`LocalTimerServer`](super::LocalTimerServer).
///
/// It still means that process when that has ended and the system has given its id to another: a signal to it then
/// reaches no process. Clones are equal; so it serves as a key.
///
/// ```
/// use forebear::timer::local::{LocalWorker, Signalled};
/// use forebear::timer::{Overdue, Reap};
///
/// /// Asks the process to end by SIGTERM.
/// fn reap(overdue: &Overdue<'_, LocalWorker>) -> Reap {
///     let worker = overdue.worker;
///     if worker.has_ended() {
///         return Reap::Gone;
///     }
///     eprintln!("process {} is late", worker.pid());
///     match worker.end_by(15) {
///         Ok(Signalled::Sent) => Reap::Reaped,
///         Ok(Signalled::Ended) => Reap::Gone,
///         Err(error) => Reap::Retry(error),
///     }
/// }
/// # let _: fn(&Overdue<'_, LocalWorker>) -> Reap = reap;
/// ```
#[derive(Clone)]
pub struct LocalWorker(Arc<Inner>);

struct Inner {
    /// Unique among the workers of this server process.
    serial: u64,
    pid: Pid,
    pidfd: OwnedFd,
    /// The last signal that was to end it, and when it was sent.
    ending: Mutex<Option<Ending>>,
    wakeup: Arc<WakeUp>,
}

/// A signal by which a worker is to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) signal: i32,
    pub(crate) since: Instant,
}

/// The result of sending a signal.
///
/// ```
/// use forebear::timer::Reap;
/// use forebear::timer::local::Signalled;
///
/// fn result(signalled: Signalled) -> Reap {
///     match signalled {
///         Signalled::Sent => Reap::Reaped,
///         Signalled::Ended => Reap::Gone,
///     }
/// }
/// assert!(matches!(result(Signalled::Ended), Reap::Gone));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// It was sent.
    Sent,
    /// The process had ended before, and no signal was sent.
    Ended,
}

impl LocalWorker {
    /// The process that has this id now; `None` if there is none.
    pub(crate) fn open(
        pid: i32,
        serials: &AtomicU64,
        wakeup: &Arc<WakeUp>,
    ) -> io::Result<Option<LocalWorker>> {
        let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let serial = serials.fetch_add(1, Ordering::Relaxed);
        let ending = Mutex::new(None);
        Ok(Some(LocalWorker(Arc::new(Inner { serial, pid, pidfd, ending, wakeup: wakeup.clone() }))))
    }

    /// The process id. For logs: another process may have it when this one has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The same, in the kernel's type.
    pub(crate) fn raw_pid(&self) -> i32 {
        self.0.pid.as_raw_nonzero().get()
    }

    /// Whether it has ended, also if its parent has not waited for it yet.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut wait = PollFd::new(&self.0.pidfd, PollFlags::IN);
        // A poll that does not wait is not interrupted, and fails in no other way.
        poll(slice::from_mut(&mut wait), Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
    }

    /// Sends it a signal, by number.
    ///
    /// # Errors
    ///
    /// The system refuses (the process is another user's), or the number is not that of a signal with a name. Real-time signals have none: the C library keeps some of them for itself.
    ///
    /// ```
    /// use forebear::timer::local::LocalWorker;
    /// use forebear::timer::{Overdue, Reap};
    /// use std::time::Duration;
    ///
    /// /// Has the process write its stacks before it is killed.
    /// fn reap(overdue: &Overdue<'_, LocalWorker>) -> Reap {
    ///     match overdue.attempt {
    ///         0 => overdue.worker.signal(10).map_or_else(Reap::Retry, |_| Reap::Again(Duration::from_secs(1))),
    ///         _ => overdue.worker.end_by(9).map_or_else(Reap::Retry, |_| Reap::Reaped),
    ///     }
    /// }
    /// # let _: fn(&Overdue<'_, LocalWorker>) -> Reap = reap;
    /// ```
    pub fn signal(&self, number: i32) -> Result<Signalled, TimerError> {
        self.send(number, false)
    }

    /// Sends it a signal that is to end it. If it has not ended within [the server's patience](super::LocalTimerServer::patience),
    /// the hooks get an event; nothing waits for it meanwhile.
    ///
    /// # Errors
    ///
    /// As for [`signal`](Self::signal).
    pub fn end_by(&self, number: i32) -> Result<Signalled, TimerError> {
        self.send(number, true)
    }

    fn send(&self, number: i32, ends: bool) -> Result<Signalled, TimerError> {
        let signal: Signal = wire::named_signal(number).ok_or_else(|| unnamed(number))?;
        // A zombie accepts signals too, and they do nothing.
        if self.has_ended() {
            return Ok(Signalled::Ended);
        }
        // Set before the signal is sent: a thread that sees the end finds the signal that caused
        // it.
        let before = ends.then(|| self.set_ending(Some(Ending { signal: number, since: time::now() })));
        let sent = pidfd_send_signal(&self.0.pidfd, signal);
        if let Err(error) = sent {
            if let Some(before) = before {
                self.set_ending(before);
            }
            return if error == Errno::SRCH {
                Ok(Signalled::Ended)
            } else {
                Err(io::Error::from(error).into())
            };
        }
        if ends {
            self.0.wakeup.note_signalled();
        }
        Ok(Signalled::Sent)
    }

    fn set_ending(&self, ending: Option<Ending>) -> Option<Ending> {
        mem::replace(&mut *self.0.ending.lock().unwrap_or_else(PoisonError::into_inner), ending)
    }

    /// The last signal that was to end it.
    pub(crate) fn ending(&self) -> Option<Ending> {
        *self.0.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for a number that is no named signal.
pub(crate) fn unnamed(number: i32) -> TimerError {
    let text =
        format!("signal {number} cannot be sent: it has no name, and real-time signals are not supported");
    TimerError::Io(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Its pidfd: readable when the process has ended.
impl AsFd for LocalWorker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.pidfd.as_fd()
    }
}

impl PartialEq for LocalWorker {
    fn eq(&self, other: &LocalWorker) -> bool {
        self.0.serial == other.0.serial
    }
}

impl Eq for LocalWorker {}

impl Hash for LocalWorker {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.serial.hash(state);
    }
}

impl fmt::Debug for LocalWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn who_has_ended_is_sent_nothing_whether_it_was_waited_for_or_not() {
        let (serials, wakeup) = (AtomicU64::new(0), Arc::new(WakeUp::new().unwrap()));
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let worker = LocalWorker::open(pid, &serials, &wakeup).unwrap().unwrap();
        let same = LocalWorker::open(pid, &serials, &wakeup).unwrap().unwrap();
        assert!(worker == worker.clone() && worker != same);
        assert_eq!(worker.signal(Signal::CONT.as_raw()).unwrap(), Signalled::Sent);
        assert!(!worker.has_ended() && worker.ending().is_none());
        assert!(worker.signal(0).is_err() && worker.end_by(99).is_err());
        drop(child.stdin.take());
        // Its end is seen when this can be read; nobody has waited for it yet.
        poll(&mut [PollFd::new(&worker, PollFlags::IN)], None).unwrap();
        for _ in 0..2 {
            assert_eq!(worker.end_by(Signal::KILL.as_raw()).unwrap(), Signalled::Ended);
            assert!(worker.ending().is_none());
            assert!(child.wait().unwrap().success());
        }
        assert!(LocalWorker::open(0, &serials, &wakeup).unwrap().is_none());
    }
}

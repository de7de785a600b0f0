//! [`Watch`]: a thread that publishes what happens in a directory and to its chief.
//!
//! On Linux the thread sleeps until the kernel wakes it. The kernel does so when a process has written and closed or
//! renamed a file of the directory (inotify), or when the chief's process has ended (a pidfd). The thread does not rely
//! on the reason. It reads which process is chief, publishes that, and sets [`changed`](Watch::changed).
//!
//! The kernel reports neither what other machines do in a directory that they share, nor the end of a process of another machine. So the thread also looks
//! after each *interval*; elsewhere than on Linux that is all it does.
//!
//! # The race
//!
//! The watch begins before the first look, and each look follows what woke the thread: what comes after a look wakes it again. What a look has found reaches waiting threads and requests by
//! [`Published`]. A descriptor of a process
//! is opened by the number in the record. If that process has ended, another one may have the number; but then the lock is free already, which the look
//! after the opening finds. So the descriptor of a chief is opened before the look that counts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebear::sync::Event;

use super::chief::{self, AtFile, ChiefView};
use super::published::Published;

type Found = Result<ChiefView, (PathBuf, Arc<io::Error>)>;

/// Watches until it is dropped.
pub(super) struct Watch {
    found: Arc<Published<Found>>,
    stop: system::StopHandle,
}

impl Watch {
    /// Begins, with a look.
    pub(super) fn begin(dir: &Path, interval: Duration) -> io::Result<Watch> {
        let (mut sleeper, stop) = system::sleeper(dir, interval)?;
        let found = Arc::new(Published::new(share(look(dir, &mut sleeper))));
        let (tell, dir) = (found.clone(), dir.to_owned());
        thread::Builder::new().name("supervisor: watch".into()).spawn(move || {
            while sleeper.sleep() {
                tell.publish(share(look(&dir, &mut sleeper)));
            }
        })?;
        Ok(Watch { found, stop })
    }

    /// What the last look has found. A later look ends the next wait for [`changed`](Self::changed).
    pub(super) fn look(&self) -> Found {
        self.found.take()
    }

    /// Set after each look. A thread or request that waits for it takes the look before.
    pub(super) fn changed(&self) -> &Event {
        self.found.changed()
    }

    /// Sets [`changed`](Self::changed) from elsewhere.
    pub(super) fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let found = self.found.clone();
        move || found.changed().set()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

fn share(look: Result<ChiefView, AtFile>) -> Found {
    look.map_err(|(path, error)| (path, Arc::new(error)))
}

/// Looks, and again if that has shown another chief, whose process is watched before the second look.
fn look(dir: &Path, sleeper: &mut system::Sleeper) -> Result<ChiefView, AtFile> {
    loop {
        let found = chief::look(dir)?;
        let of = found.record.filter(|_| found.held).map(|record| (record.epoch, record.pid));
        if !sleeper.watch_process(of) {
            return Ok(found);
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    pub(super) struct StopHandle(Arc<OwnedFd>);

    pub(super) struct Sleeper {
        stop: Arc<OwnedFd>,
        /// `None`: the system has no more of them to give, and the interval must do.
        files: Option<OwnedFd>,
        /// The epoch and process of the chief that is watched, until the thread has seen its end.
        process: Option<(u64, u32)>,
        descriptor: Option<OwnedFd>,
        interval: Option<Timespec>,
    }

    pub(super) fn sleeper(dir: &Path, interval: Duration) -> io::Result<(Sleeper, StopHandle)> {
        use inotify::{CreateFlags, WatchFlags};
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let watch = || {
            let files = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            inotify::add_watch(&files, dir, WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO)?;
            Ok::<_, rustix::io::Errno>(files)
        };
        let interval = Timespec::try_from(interval).ok();
        let files = watch().ok();
        let sleeper = Sleeper { stop: stop.clone(), files, process: None, descriptor: None, interval };
        Ok((sleeper, StopHandle(stop)))
    }

    impl Sleeper {
        /// Watches this process from now on. False: it is watched already, or there is none.
        pub(super) fn watch_process(&mut self, of: Option<(u64, u32)>) -> bool {
            if self.process == of {
                return false;
            }
            self.process = of;
            let pid = of.and_then(|(_, pid)| Pid::from_raw(i32::try_from(pid).ok()?));
            // A process of another machine or container has a number that means nothing here, and then the interval must do.
            self.descriptor = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            of.is_some()
        }

        /// Sleeps until there is something to look for. False: the watch is to stop.
        pub(super) fn sleep(&mut self) -> bool {
            let (stopped, files, process);
            {
                // A descriptor that is missing is replaced by `stop`, which is polled anyway.
                let stop = self.stop.as_fd();
                let fds = [
                    Some(stop),
                    self.files.as_ref().map(AsFd::as_fd),
                    self.descriptor.as_ref().map(AsFd::as_fd),
                ];
                let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd.unwrap_or(stop), PollFlags::IN));
                match poll(&mut fds, self.interval.as_ref()) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    // Out of memory. It has not slept for the interval; the caller looks early.
                    Err(_) => std::thread::yield_now(),
                }
                [stopped, files, process] = [0, 1, 2].map(|n: usize| !fds[n].revents().is_empty());
            }
            if stopped {
                return false;
            }
            if let Some(files) = self.files.as_ref().filter(|_| files) {
                let mut events = [0; 4096];
                while rustix::io::read(files, &mut events).is_ok_and(|read| read > 0) {}
            }
            if process {
                // The thread has seen its end. If a child of it still holds the lock, the interval must do.
                self.descriptor = None;
            }
            true
        }
    }

    impl StopHandle {
        pub(super) fn stop(&self) {
            // It can fail only if it has been called 2^64 times.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    pub(super) struct StopHandle(Sender<()>);

    pub(super) struct Sleeper(Receiver<()>, Duration);

    pub(super) fn sleeper(_: &Path, interval: Duration) -> io::Result<(Sleeper, StopHandle)> {
        let (stop, stopped) = channel();
        Ok((Sleeper(stopped, interval), StopHandle(stop)))
    }

    impl Sleeper {
        pub(super) fn watch_process(&mut self, _: Option<(u64, u32)>) -> bool {
            false
        }

        pub(super) fn sleep(&mut self) -> bool {
            self.0.recv_timeout(self.1) == Err(RecvTimeoutError::Timeout)
        }
    }

    impl StopHandle {
        pub(super) fn stop(&self) {
            let _ = self.0.send(());
        }
    }
}

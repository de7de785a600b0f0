//! [`Launcher`]: the worker processes that the coordinator's process starts itself, beside those that come from elsewhere.
//!
//! A worker process has one end of a socket pair as standard input. Its first message there is a [`Handover`]: the
//! server, the credentials, and the worker's name. So no secret is in arguments or in the environment. After that the
//! socket carries two signals. It is closed when the coordinator dismisses the worker, or is dead. And a worker that
//! leaves in order sends a last byte. A task may end the process, too, by any exit status. An environment variable with
//! the socket's inode says to a program that it is such a worker. What a worker starts has another standard input, and
//! is none.
//!
//! A thread waits for the pidfd of each process, kills its group, reaps it, and tells the engine at once that it is dead: nobody waits for a lease then. A pidfd names the process and no
//! other, so a kill never hits a stranger.
//!
//! # Names
//!
//! The name of a worker is [kept](Launcher::keeps) for it from the start of the engine, while it lives, and while it waits to be started again. Else a worker from elsewhere could take the name in that time, and the
//! one of this process would be its rival. A worker that somebody has killed or drained, that has left, or that is given up, leaves its name to others.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::mem;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forebear_cluster::engine::{Failures, Life, WarningHook, own_program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use crate::access::Access;
use crate::engine::Wish;
use crate::wire::{decode, encode};

/// What says to a program that it is a worker: the inode of the socket that is its standard input.
const MARK: &str = "FOREBEAR_NATS_WORKER";

/// No handover is longer.
const LONGEST: u32 = 1 << 20;

/// The first message to a worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handover {
    pub(crate) access: Access,
    pub(crate) job: String,
    pub(crate) name: String,
    pub(crate) slots: u32,
    pub(crate) launch: u64,
    pub(crate) grace: Duration,
    /// The limit of the worker's cache.
    pub(crate) cache: u64,
}

/// Starts worker processes.
pub(crate) struct Launcher {
    pub(crate) access: Access,
    pub(crate) job: String,
    pub(crate) slots: u32,
    pub(crate) grace: Duration,
    cache: u64,
    /// A worker that never was ready is started again so often in a row.
    restarts: u32,
    pub(crate) program: Option<OsString>,
    pub(crate) args: Vec<OsString>,
    warnings: WarningHook,
    wishes: UnboundedSender<Wish>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    processes: HashMap<u64, Process>,
    /// Names of workers that are to be started, for the first time or again.
    coming: BTreeSet<String>,
    /// Of each name: those in a row that have ended too soon.
    failures: HashMap<String, Failures>,
    closed: bool,
}

/// What a worker says last that leaves in order.
const FAREWELL: u8 = b'.';

/// A worker that has ended, and of which nobody wanted that.
pub(crate) struct Again {
    pub(crate) name: String,
    pub(crate) begun: Instant,
    /// Its exit status or signal.
    pub(crate) how: String,
}

/// How a worker has ended, of which nobody wanted that.
pub(crate) enum Ended {
    /// By itself.
    Lived(Life),
    /// It could not be started.
    Unstarted(io::Error),
}

struct Process {
    name: String,
    begun: Instant,
    pidfd: Arc<OwnedFd>,
    /// Somebody wanted its end.
    wanted: bool,
    /// It was asked to end what it has and leave.
    drained: bool,
    /// Another one of its name is started when it has ended, however that is.
    replaced: bool,
    /// The worker leaves when it ends.
    socket: Option<UnixStream>,
}

impl Launcher {
    pub(crate) fn new(
        handover: Handover,
        restarts: u32,
        program: Option<OsString>,
        args: Vec<OsString>,
        warnings: WarningHook,
        wishes: UnboundedSender<Wish>,
    ) -> Launcher {
        let Handover { access, job, slots, grace, cache, .. } = handover;
        Launcher {
            access,
            job,
            slots,
            grace,
            cache,
            restarts,
            program,
            args,
            warnings,
            wishes,
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Workers of these names are to be started.
    pub(crate) fn expect(&self, names: impl IntoIterator<Item = String>) {
        self.lock().coming.extend(names);
    }

    /// Whether this name is that of a worker which this process has started or will start, and whose end nobody wants.
    pub(crate) fn keeps(&self, name: &str) -> bool {
        let inner = self.lock();
        let is_its = |process: &Process| process.name == name && (!process.wanted || process.replaced);
        inner.coming.contains(name) || inner.processes.values().any(is_its)
    }

    /// Nobody starts a worker of this name any more.
    fn give_up(&self, name: &str) {
        self.lock().coming.remove(name);
    }

    /// Starts a worker. One of that name that this process has started is killed first.
    pub(crate) fn start(self: &Arc<Self>, name: &str) -> io::Result<()> {
        self.kill(name);
        let (mut mine, its) = UnixStream::pair()?;
        let program = match &self.program {
            Some(program) => program.clone(),
            None => own_program()?,
        };
        let mut inner = self.lock();
        if inner.closed {
            return Err(io::Error::other("the cluster was shut down"));
        }
        inner.last += 1;
        let launch = inner.last;
        let handover = Handover {
            access: self.access.clone(),
            job: self.job.clone(),
            name: name.to_owned(),
            slots: self.slots,
            launch,
            grace: self.grace,
            cache: self.cache,
        };
        let bytes = encode(&handover).map_err(io::Error::other)?;
        let begun = Instant::now();
        let mut child = Command::new(&program)
            .args(&self.args)
            .env(MARK, fstat(&its)?.st_ino.to_string())
            .stdin(Stdio::from(OwnedFd::from(its)))
            .process_group(0)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
        // It fits into the socket's buffer, so a program that does not read it holds nobody up.
        let told = mine.write_all(&(bytes.len() as u32).to_le_bytes()).and_then(|()| mine.write_all(&bytes));
        // It was started, so what does not take the message is no program that calls `worker::entry`.
        let ended = |error: io::Error| {
            let text = format!("{} ends before it reads what a worker is told: {error}", program.display());
            io::Error::new(error.kind(), text)
        };
        let told = told.map_err(ended);
        let pidfd = match told.and_then(|()| Ok(pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?)) {
            Ok(pidfd) => Arc::new(pidfd),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        };
        let last_words = match mine.try_clone() {
            Ok(socket) => socket,
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        };
        inner.coming.remove(name);
        let (name, pidfd_of) = (name.to_owned(), pidfd.clone());
        let process = Process {
            name,
            begun,
            pidfd: pidfd_of,
            wanted: false,
            drained: false,
            replaced: false,
            socket: Some(mine),
        };
        inner.processes.insert(launch, process);
        drop(inner);
        let its = self.clone();
        thread::Builder::new().name("cluster: watcher".into()).spawn(move || {
            let how = match watch(&pidfd, child) {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            let left = has_left(last_words);
            let mut inner = its.lock();
            let ended = inner.processes.remove(&launch);
            let again = ended.filter(|process| process.replaced || !process.wanted && !left);
            inner.coming.extend(again.as_ref().map(|process| process.name.clone()));
            drop(inner);
            let again = again.map(|process| Again { name: process.name, begun: process.begun, how });
            let _ = its.wishes.send(Wish::Died { launch, again });
        })?;
        Ok(())
    }

    /// Kills the workers of this name. The engine knows of that before it can know of the death.
    pub(crate) fn kill(&self, name: &str) {
        let mut inner = self.lock();
        for (launch, process) in inner.processes.iter_mut().filter(|(_, process)| process.name == name) {
            process.wanted = true;
            let _ = self.wishes.send(Wish::Killed(*launch));
            let _ = pidfd_send_signal(&*process.pidfd, Signal::KILL);
        }
    }

    /// Has the workers of this name end what they have, and leave. One is told once: a second SIGTERM ends a worker at once.
    pub(crate) fn drain(&self, name: &str) {
        let mut inner = self.lock();
        for process in inner.processes.values_mut().filter(|process| process.name == name) {
            process.wanted = true;
            if !mem::replace(&mut process.drained, true) {
                let _ = pidfd_send_signal(&*process.pidfd, Signal::TERM);
            }
        }
    }

    /// Starts the workers of these numbers, each so long after the one before, and all within `most`. Ends with the cluster.
    pub(crate) fn start_later(self: &Arc<Self>, workers: Range<usize>, each: Duration, most: Duration) {
        if workers.is_empty() {
            return;
        }
        let its = self.clone();
        let later = move || {
            let begun = Instant::now();
            for number in workers {
                let delay = each.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX)).min(most);
                while begun.elapsed() < delay {
                    // It looks now and then whether the cluster is still there.
                    let (_open, never) = mpsc::channel::<()>();
                    let _ =
                        never.recv_timeout(delay.saturating_sub(begun.elapsed()).min(Duration::from_secs(1)));
                    if its.is_closed() {
                        return;
                    }
                }
                let name = worker_name(number);
                if let Err(error) = its.start(&name) {
                    its.give_up(&name);
                    its.warnings.warn(format_args!("the worker `{name}` cannot be started: {error}"));
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("cluster: start".into()).spawn(later) {
            self.warnings.warn(format_args!("the later workers cannot be started: {error}"));
        }
    }

    /// The worker of this name has ended, and nobody wanted that: starts it again, after a [pause](Failures). After too many such ends in a row it is left.
    pub(crate) fn start_again(self: &Arc<Self>, name: String, ended: Ended) {
        let mut inner = self.lock();
        let its = inner.failures.entry(name.clone()).or_default();
        let pause = match &ended {
            Ended::Lived(life) => its.ended(life),
            Ended::Unstarted(_) => its.unready(),
        };
        let failed = its.failed();
        drop(inner);
        if failed > self.restarts {
            self.give_up(&name);
            let why = match ended {
                Ended::Unstarted(error) => format!("it cannot be started: {error}"),
                Ended::Lived(Life { ready: None, how, .. }) => {
                    format!("it has ended {failed} times in a row before it was ready ({how})")
                }
                Ended::Lived(Life { how, .. }) => {
                    format!("it has ended {failed} times in a row before it had finished a task ({how})")
                }
            };
            return self.warnings.warn(format_args!("the worker `{name}` is not started again: {why}"));
        }
        let (its, of) = (self.clone(), name.clone());
        let restart = thread::Builder::new().name("cluster: restart".into()).spawn(move || {
            if !pause.is_zero() {
                let (_open, never) = mpsc::channel::<()>();
                let _ = never.recv_timeout(pause);
            }
            let inner = its.lock();
            // The user has started one of this name meanwhile.
            let there = inner.closed || inner.processes.values().any(|process| process.name == name);
            drop(inner);
            if there {
                return its.give_up(&name);
            }
            if let Err(error) = its.start(&name) {
                // There may be no room for a process just now.
                its.start_again(name, Ended::Unstarted(error));
            }
        });
        if restart.is_err() {
            // Without a thread it is not started again; others continue.
            self.give_up(&of);
        }
    }

    /// Says something to the operator.
    pub(crate) fn warn(&self, text: impl Display) {
        self.warnings.warn(text);
    }

    /// The worker leaves, or is killed after the grace.
    pub(crate) fn release(&self, launch: u64) {
        self.end(launch, false);
    }

    /// The same, and then another one of its name is started: unless somebody wanted its end before.
    pub(crate) fn replace(&self, launch: u64) {
        self.end(launch, true);
    }

    fn end(&self, launch: u64, replace: bool) {
        let mut inner = self.lock();
        let Some(process) = inner.processes.get_mut(&launch) else { return };
        process.replaced = replace && !process.wanted;
        process.wanted = true;
        let Some(socket) = process.socket.take() else { return };
        // The watcher has a handle of it, too.
        let _ = socket.shutdown(Shutdown::Write);
        let (pidfd, grace) = (process.pidfd.clone(), self.grace);
        drop(inner);
        // Without a thread it lives until it ends by itself.
        let _ = thread::Builder::new().name("cluster: grace".into()).spawn(move || {
            let left = Timespec::try_from(grace).ok();
            if poll(&mut [PollFd::new(&*pidfd, PollFlags::IN)], left.as_ref()) == Ok(0) {
                let _ = pidfd_send_signal(&*pidfd, Signal::KILL);
            }
        });
    }

    /// All workers leave, and no more are started.
    pub(crate) fn release_all(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let all: Vec<u64> = inner.processes.keys().copied().collect();
        drop(inner);
        all.into_iter().for_each(|launch| self.release(launch));
    }
}

/// The name of the worker of this number that is started with the engine.
pub(crate) fn worker_name(number: usize) -> String {
    format!("worker-{number}")
}

/// Waits until the worker is dead, kills its group, and reaps it.
fn watch(pidfd: &OwnedFd, mut child: Child) -> io::Result<ExitStatus> {
    let mut dead = [PollFd::new(pidfd, PollFlags::IN)];
    while poll(&mut dead, None) == Err(rustix::io::Errno::INTR) {}
    // The number is its own until it is reaped.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    child.wait()
}

/// Whether a worker that is dead has left in order.
fn has_left(mut socket: UnixStream) -> bool {
    let mut last = [0];
    socket.set_nonblocking(true).is_ok()
        && socket.read(&mut last).is_ok_and(|read| read == 1)
        && last[0] == FAREWELL
}

/// Says that this worker leaves in order. If nobody listens, the coordinator is gone.
pub(crate) fn say_farewell(mut socket: &UnixStream) {
    let _ = socket.write_all(&[FAREWELL]);
}

/// If this process was started as a worker: what it was told, and the socket whose end has it leave.
pub(crate) fn handover() -> Option<io::Result<(Handover, UnixStream)>> {
    let mark = std::env::var(MARK).ok()?;
    let stat = fstat(io::stdin()).ok()?;
    let is_it = FileType::from_raw_mode(stat.st_mode) == FileType::Socket && stat.st_ino.to_string() == mark;
    is_it.then(receive)
}

fn receive() -> io::Result<(Handover, UnixStream)> {
    let mut socket = UnixStream::from(rustix::io::dup(io::stdin())?);
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other("the handover is too long"));
    }
    let mut bytes = vec![0; length as usize];
    socket.read_exact(&mut bytes)?;
    let handover = decode(&bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok((handover, socket))
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    /// Starts workers that are this program. One is started again once.
    fn launcher(program: &str, args: &[&str]) -> (Arc<Launcher>, UnboundedReceiver<Wish>) {
        let (wishes, taken) = unbounded_channel();
        let handover = Handover {
            access: Access::new("nats://127.0.0.1"),
            job: "job".into(),
            name: String::new(),
            slots: 1,
            launch: 0,
            grace: Duration::ZERO,
            cache: 0,
        };
        let args = args.iter().map(OsString::from).collect();
        let quiet = WarningHook::new(|_| ());
        (Arc::new(Launcher::new(handover, 1, Some(program.into()), args, quiet, wishes)), taken)
    }

    /// Waits for a death. The name, if nobody wanted it.
    fn death(taken: &mut UnboundedReceiver<Wish>) -> Option<String> {
        loop {
            if let Wish::Died { again, .. } = taken.blocking_recv().unwrap() {
                return again.map(|again| again.name);
            }
        }
    }

    #[test]
    fn a_name_is_kept_before_the_start_and_between_an_end_and_the_restart_until_it_is_given_up() {
        // It reads the begin of what it is told, and ends.
        let (launcher, mut taken) = launcher("sh", &["-c", "head -c 1 >/dev/null; exit 1"]);
        launcher.expect(["a".to_owned()]);
        assert!(launcher.keeps("a") && !launcher.keeps("b"));
        launcher.start("a").unwrap();
        for _ in 0..2 {
            assert_eq!(death(&mut taken).as_deref(), Some("a"));
            assert!(launcher.keeps("a"), "it is to be started again");
            let how = "it has ended".to_owned();
            let life = Life { ready: None, finished: false, busy: false, alone: false, how };
            launcher.start_again("a".into(), Ended::Lived(life));
        }
        assert!(!launcher.keeps("a"), "it is given up");
    }

    #[test]
    fn the_name_of_a_worker_whose_end_somebody_wants_is_left_to_others() {
        let (launcher, mut taken) = launcher("sleep", &["1000"]);
        launcher.start("a").unwrap();
        assert!(launcher.keeps("a"));
        launcher.kill("a");
        assert!(!launcher.keeps("a"));
        assert_eq!(death(&mut taken), None);
        assert!(!launcher.keeps("a"));
        // One that stands still is replaced.
        launcher.start("a").unwrap();
        let launch = *launcher.lock().processes.keys().next().unwrap();
        launcher.replace(launch);
        assert!(launcher.keeps("a"));
        assert_eq!(death(&mut taken).as_deref(), Some("a"));
        assert!(launcher.keeps("a"));
    }
}

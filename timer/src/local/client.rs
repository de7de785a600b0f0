//! The worker's end of the socket.
//!
//! # How it is used by threads and by forks
//!
//! A message is one `send`, which the kernel keeps whole, so threads share the connection without a lock around sending; the lock guards
//! only which connection it is.
//!
//! A forked child has a copy of its parent's connection, and must not speak on it: the server would refuse it as a stranger on that line. It has
//! copies of the parent's locks too, and one of them may have been held by a thread that the child does not have. So there is one *seat*
//! per process, in a list: each has the number of the process it was made in, and only the last one of that number is used. A child finds
//! none, and appends its own; it touches no lock of its parent's. (A grandchild whose number is the same as that of an ancestor
//! finds that one's seat. What it says there is refused, and then it connects anew.)
//!
//! # Why an acquire is not acknowledged
//!
//! What `send` has taken lies in the server's queue in the kernel: it is lost only with the server, and then there is nobody to kill anyone. When
//! the server reads it makes no difference, since the message says *when* the timer expires, not how long it runs. An answer would make every
//! acquire wait until the server has had the processor. Whether the server takes the connection at all is answered, once, when it is made.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::shim::{Mutex, time};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, connect, recv, send,
    sockopt::{Timeout, set_socket_timeout},
};

use super::clock::Anchor;
use super::place::seqpacket;
use super::wire::{self, Answer, MAX_MESSAGE};
use super::worker::unnamed;
use crate::expiry::{Scope, Signal, TimerClient, TimerError, configure};

/// Where a worker finds its server: a path in this variable of its environment.
pub const ENVIRONMENT: &str = "FOREBEAR_TIMERS";

/// As long as the system waits for anything.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// By default.
const PATIENCE: Duration = Duration::from_secs(10);

/// The client of a [`LocalTimerServer`](super::LocalTimerServer), in a worker process. Its timers belong to the process.
///
/// One for all threads is enough. `acquire` and `release` cost one system call beside that which asks for the process's number. They wait for the server only when its queue is full:
/// when it has not read for some 270 messages. After its patience a call that waits is an error.
#[derive(Debug)]
pub struct LocalTimerClient {
    path: PathBuf,
    patience: Duration,
    anchor: Anchor,
    first: Seat,
}

/// What one process has of a client.
#[derive(Debug)]
struct Seat {
    pid: u32,
    socket: Mutex<Option<Arc<OwnedFd>>>,
    /// That of a child, in the child.
    next: OnceLock<Box<Seat>>,
}

impl LocalTimerClient {
    /// Connects to the server at this path.
    ///
    /// # Errors
    ///
    /// [`TimerError::ServerGone`] if there is none; a [`Refusal`](super::Refusal) in [`TimerError::Other`] if it does not want us;
    /// [`TimerError::Io`] if it does not answer within ten seconds, or the system fails.
    pub fn connect(path: impl Into<PathBuf>) -> Result<LocalTimerClient, TimerError> {
        LocalTimerClient::patient(path.into(), PATIENCE)
    }

    /// As [`connect`](Self::connect), with another limit for each wait for the server.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    pub fn connect_timeout(
        path: impl Into<PathBuf>,
        patience: Duration,
    ) -> Result<LocalTimerClient, TimerError> {
        LocalTimerClient::patient(path.into(), patience)
    }

    /// Connects to the server that the environment names ([`ENVIRONMENT`]).
    ///
    /// # Errors
    ///
    /// [`TimerError::NotConfigured`] if it names none; else as for [`connect`](Self::connect).
    pub fn from_env() -> Result<LocalTimerClient, TimerError> {
        let path = env::var_os(ENVIRONMENT).filter(|path| !path.is_empty());
        LocalTimerClient::connect(path.ok_or(TimerError::NotConfigured)?)
    }

    fn patient(path: PathBuf, patience: Duration) -> Result<LocalTimerClient, TimerError> {
        let client = LocalTimerClient { path, patience, anchor: Anchor::new(), first: Seat::new() };
        client.line(&client.first)?;
        Ok(client)
    }

    /// The path of the server.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This process's.
    fn seat(&self) -> &Seat {
        let pid = process::id();
        let mut seat = &self.first;
        while let Some(next) = seat.next.get() {
            seat = next;
        }
        while seat.pid != pid {
            seat = seat.next.get_or_init(|| Box::new(Seat::new()));
        }
        seat
    }

    /// The seat's connection: that which it has, or a new one.
    fn line(&self, seat: &Seat) -> Result<Arc<OwnedFd>, TimerError> {
        let mut socket = seat.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match &*socket {
            Some(socket) => Ok(socket.clone()),
            None => Ok(socket.insert(Arc::new(self.dial()?)).clone()),
        }
    }

    /// Connects, and waits for the welcome.
    fn dial(&self) -> Result<OwnedFd, TimerError> {
        let until = deadline_after(time::now(), self.patience);
        let socket = seqpacket(SocketFlags::CLOEXEC)?;
        // The time-out of sending is that of connecting too, and is what `connect` waits if many stand before the door.
        let patience = self.patience.clamp(Duration::from_micros(1), DAY);
        set_socket_timeout(&socket, Timeout::Send, Some(patience)).map_err(io::Error::from)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(patience)).map_err(io::Error::from)?;
        let address = SocketAddrUnix::new(&self.path).map_err(io::Error::from)?;
        patiently(until, || connect(&socket, &address)).map_err(failed)?;
        match self.listen(&socket, until, RecvFlags::empty())? {
            Answer::Welcome => Ok(socket),
            Answer::Refused(why) => Err(TimerError::other(why)),
        }
    }

    /// What the server has to say.
    fn listen(
        &self,
        socket: &OwnedFd,
        until: Option<Instant>,
        flags: RecvFlags,
    ) -> Result<Answer, TimerError> {
        let mut bytes = [0; 16];
        let (len, _) = patiently(until, || recv(socket, &mut bytes, flags)).map_err(failed)?;
        if len == 0 {
            return Err(TimerError::ServerGone);
        }
        let strange = |_| io::Error::new(io::ErrorKind::InvalidData, "this is no timer server");
        Ok(wire::answered(&bytes[..len]).map_err(strange)?)
    }

    fn say(&self, scope: &Scope, deadline: Option<Instant>, signal: Signal) -> Result<(), TimerError> {
        let deadline_nanos = deadline.map(|at| self.anchor.nanos(at));
        let message = wire::said(scope.name(), deadline_nanos, signal)
            .map_err(|size| TimerError::too_large(size, MAX_MESSAGE))?;
        let seat = self.seat();
        let mut again = deadline.is_none();
        loop {
            let line = self.line(seat)?;
            let until = deadline_after(time::now(), self.patience);
            let error = match patiently(until, || send(&line, message.bytes(), SendFlags::NOSIGNAL)) {
                Ok(_) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => self.hung_up(seat, &line),
                Err(error) => return Err(failed(error)),
            };
            // A release means the same however often it is said, and a server that closed the line may have kept the timer.
            if !std::mem::take(&mut again) {
                return Err(error);
            }
        }
    }

    /// The server has closed the line: it is given up, and why is what the server's last words say.
    fn hung_up(&self, seat: &Seat, line: &Arc<OwnedFd>) -> TimerError {
        let mut socket = seat.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.take_if(|socket| Arc::ptr_eq(socket, line));
        drop(socket);
        // The first reading may tell only that what we had sent was not read.
        for _ in 0..2 {
            if let Ok(Answer::Refused(why)) = self.listen(line, None, RecvFlags::DONTWAIT) {
                return TimerError::other(why);
            }
        }
        TimerError::ServerGone
    }
}

impl Seat {
    fn new() -> Seat {
        Seat { pid: process::id(), socket: Mutex::new(None), next: OnceLock::new() }
    }
}

/// Does it again if a signal came between, until then.
fn patiently<T>(until: Option<Instant>, mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match f() {
            Err(Errno::INTR) if until.is_none_or(|until| time::now() < until) => {}
            done => return done,
        }
    }
}

fn failed(error: Errno) -> TimerError {
    match error {
        Errno::NOENT | Errno::CONNREFUSED | Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => {
            TimerError::ServerGone
        }
        Errno::AGAIN | Errno::INTR => {
            TimerError::Io(io::Error::new(io::ErrorKind::TimedOut, "the timer server does not read"))
        }
        error => TimerError::Io(error.into()),
    }
}

impl TimerClient for LocalTimerClient {
    fn acquire(&self, scope: &Scope, deadline: Instant) -> Result<(), TimerError> {
        self.say(scope, Some(deadline), Signal::Default)
    }

    fn release(&self, scope: &Scope) -> Result<(), TimerError> {
        self.say(scope, None, Signal::Default)
    }

    fn acquire_with(&self, scope: &Scope, deadline: Instant, signal: Signal) -> Result<(), TimerError> {
        if let Signal::Number(number) = signal {
            let number = i32::try_from(number.get()).unwrap_or(i32::MAX);
            wire::known(number).ok_or_else(|| unnamed(number))?;
        }
        self.say(scope, Some(deadline), signal)
    }
}

/// Makes the server that the environment names the one that [`expires`](crate::expiry::expires) talks to.
///
/// # Errors
///
/// As for [`LocalTimerClient::from_env`].
pub fn configure_from_env() -> Result<(), TimerError> {
    configure(LocalTimerClient::from_env()?);
    Ok(())
}

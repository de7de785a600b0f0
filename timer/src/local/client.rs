//! The worker's end of the socket.
//!
//! # How it is used by threads and by forks
//!
//! A message is one `send`, which the kernel keeps whole. Threads send under the lock of the connection, so that it is known how many messages were sent before a
//! release that goes into the [backlog](super::backlog). Nobody waits under that lock for room in the server's queue.
//!
//! A forked child has a copy of its parent's connection, and must not send on it: the server would refuse the messages
//! of a foreign process. It also has copies of the parent's locks, one of which a thread that the child does not have
//! may have held. So there is a list with one *seat* for each process. A seat has the id of the process that made it,
//! and only the last seat with that id is used. A child finds none, and appends its own; it takes no lock of its
//! parent's. (A grandchild whose id is that of an ancestor finds that ancestor's seat. Its message there is refused,
//! and then it connects anew.)
//!
//! # Why an acquire is not acknowledged
//!
//! What `send` has taken lies in the server's queue in the kernel: it is lost only with the server, and then there is nobody to kill anyone. When
//! the server reads it makes no difference, since the message says *when* the timer expires, not how long it runs. An answer would make every
//! acquire wait until the server has had the processor. Whether the server takes the connection at all is answered, once, when it is made.

use std::env;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::slice;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::shim::{Mutex, MutexGuard, time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, connect,
    recvmsg, send,
    sockopt::{Timeout, set_socket_timeout},
};

use super::backlog::Unsent;
use super::clock::Anchor;
use super::place::seqpacket;
use super::wire::{self, Answer, MAX_MESSAGE, Message};
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
/// One for all threads is enough. `acquire` and `release` cost one system call beside that which asks for the process's number.
///
/// The server's queue is full when some 270 messages are unread. Then an `acquire` waits for room, and returns an error
/// after the client's time-out. A `release` does not wait: the client writes it into a file in memory that the server
/// has given to it. The server reads that file before it kills a process. The file has room for 1,024 releases. A
/// release waits only if there is no room, or if the server is of a version without that file.
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::local::{LocalTimerClient, LocalTimerServer};
/// use forebear::timer::TimerGuard;
///
/// let server = LocalTimerServer::bind()?.start()?;
/// let client = LocalTimerClient::connect_timeout(server.path(), Duration::from_secs(10))?;
/// assert_eq!(client.path(), server.path());
/// TimerGuard::builder().client(&client).within(Duration::from_secs(60), || 6 * 7)?;
/// server.stop()?;
/// # Ok::<(), forebear::timer::TimerError>(())
/// ```
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
    line: Mutex<Option<Line>>,
    /// That of a child, in the child.
    next: OnceLock<Box<Seat>>,
}

/// A connection that the server has taken.
#[derive(Debug)]
struct Line {
    socket: Arc<OwnedFd>,
    /// How many messages it has taken.
    sent: u64,
    /// For releases that cannot be sent. `None`: the server gave no file.
    unsent: Option<Unsent>,
}

/// What has become of a message.
enum SendResult {
    /// The server will hear it.
    Yes,
    /// There is no room for it on this connection.
    Full(Arc<OwnedFd>),
    /// The server has closed this connection.
    Closed(Arc<OwnedFd>),
}

impl LocalTimerClient {
    /// Connects to the server at this path.
    ///
    /// # Errors
    ///
    /// [`TimerError::ServerGone`] if there is none; a [`Refusal`](super::Refusal) in [`TimerError::Other`] if it does not want us;
    /// [`TimerError::Io`] if it does not answer within ten seconds, or the system fails.
    ///
    /// ```
    /// use forebear::timer::TimerError;
    /// use forebear::timer::local::LocalTimerClient;
    ///
    /// let nobody = LocalTimerClient::connect("/no/such/directory/timers");
    /// assert!(matches!(nobody, Err(TimerError::ServerGone)));
    /// ```
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
    ///
    /// ```
    /// use forebear::timer::TimerError;
    /// use forebear::timer::local::LocalTimerClient;
    ///
    /// // This process was not started by one that has a server.
    /// assert!(matches!(LocalTimerClient::from_env(), Err(TimerError::NotConfigured)));
    /// ```
    pub fn from_env() -> Result<LocalTimerClient, TimerError> {
        let path = env::var_os(ENVIRONMENT).filter(|path| !path.is_empty());
        LocalTimerClient::connect(path.ok_or(TimerError::NotConfigured)?)
    }

    fn patient(path: PathBuf, patience: Duration) -> Result<LocalTimerClient, TimerError> {
        let client = LocalTimerClient { path, patience, anchor: Anchor::new(), first: Seat::new() };
        let line = client.dial()?;
        *client.first.lock() = Some(line);
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

    /// Says it on the seat's connection, or on a new one if it has none, without waiting for room.
    fn try_say(&self, seat: &Seat, message: &Message, releases: bool) -> Result<SendResult, TimerError> {
        let mut line = seat.lock();
        let line = match &mut *line {
            Some(line) => line,
            none => none.insert(self.dial()?),
        };
        let mut unsent = releases;
        loop {
            match send(&line.socket, message.bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => {
                    line.sent += 1;
                    return Ok(SendResult::Yes);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if std::mem::take(&mut unsent) => {
                    let written = line.unsent.as_mut();
                    if !written.is_some_and(|unsent| unsent.write(message.bytes(), line.sent)) {
                        return Ok(SendResult::Full(line.socket.clone()));
                    }
                    // R1 of the backlog: once more, now that it is written.
                }
                Err(Errno::AGAIN) if releases => return Ok(SendResult::Yes),
                Err(Errno::AGAIN) => return Ok(SendResult::Full(line.socket.clone())),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    return Ok(SendResult::Closed(line.socket.clone()));
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Connects, and waits for the welcome.
    fn dial(&self) -> Result<Line, TimerError> {
        let until = deadline_after(time::now(), self.patience);
        let socket = seqpacket(SocketFlags::CLOEXEC)?;
        // The time-out of sending is that of connecting too, and is what `connect` waits if many stand before the door.
        let patience = self.patience.clamp(Duration::from_micros(1), DAY);
        set_socket_timeout(&socket, Timeout::Send, Some(patience)).map_err(io::Error::from)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(patience)).map_err(io::Error::from)?;
        let address = SocketAddrUnix::new(&self.path).map_err(io::Error::from)?;
        patiently(until, || connect(&socket, &address)).map_err(failed)?;
        match self.listen(&socket, until, RecvFlags::empty())? {
            (Answer::Welcome, file) => {
                Ok(Line { socket: Arc::new(socket), sent: 0, unsent: file.map(Unsent::new) })
            }
            (Answer::Refused(why), _) => Err(TimerError::other(why)),
        }
    }

    /// What the server has to say, and the file that comes with it.
    fn listen(
        &self,
        socket: &OwnedFd,
        until: Option<Instant>,
        flags: RecvFlags,
    ) -> Result<(Answer, Option<OwnedFd>), TimerError> {
        let mut bytes = [0; 16];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let heard =
            patiently(until, || recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags));
        let len = heard.map_err(failed)?.bytes;
        if len == 0 {
            return Err(TimerError::ServerGone);
        }
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let strange = |_| io::Error::new(io::ErrorKind::InvalidData, "this is no timer server");
        Ok((wire::answered(&bytes[..len]).map_err(strange)?, file))
    }

    fn say(&self, scope: &Scope, deadline: Option<Instant>, signal: Signal) -> Result<(), TimerError> {
        let deadline_nanos = deadline.map(|at| self.anchor.nanos(at));
        let message = wire::said(scope, deadline_nanos, signal)
            .map_err(|size| TimerError::too_large(size, MAX_MESSAGE))?;
        let seat = self.seat();
        let releases = deadline.is_none();
        let mut again = releases;
        let mut until = None;
        loop {
            let socket = match self.try_say(seat, &message, releases)? {
                SendResult::Yes => return Ok(()),
                SendResult::Full(socket) => {
                    let until = *until.get_or_insert_with(|| deadline_after(time::now(), self.patience));
                    wait_for_room(&socket, until).map_err(failed)?;
                    continue;
                }
                SendResult::Closed(socket) => socket,
            };
            let error = self.hung_up(seat, &socket);
            // A release means the same however often it is said, and a server that closed the line may have kept the timer.
            if !std::mem::take(&mut again) {
                return Err(error);
            }
        }
    }

    /// The server has closed the line: it is given up, and why is what the server's last words say.
    fn hung_up(&self, seat: &Seat, socket: &Arc<OwnedFd>) -> TimerError {
        seat.lock().take_if(|line| Arc::ptr_eq(&line.socket, socket));
        // The first reading may tell only that what we had sent was not read.
        for _ in 0..2 {
            if let Ok((Answer::Refused(why), _)) = self.listen(socket, None, RecvFlags::DONTWAIT) {
                return TimerError::other(why);
            }
        }
        TimerError::ServerGone
    }
}

impl Seat {
    fn new() -> Seat {
        Seat { pid: process::id(), line: Mutex::new(None), next: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Waits until the server has read so much that more can be sent; no longer than until then (`AGAIN`).
fn wait_for_room(socket: &OwnedFd, until: Option<Instant>) -> Result<(), Errno> {
    loop {
        let left = until.map_or(DAY, |until| until.saturating_duration_since(time::now()).min(DAY));
        let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(slice::from_mut(&mut PollFd::new(socket, PollFlags::OUT)), Some(&timeout)) {
            Ok(0) if left.is_zero() => return Err(Errno::AGAIN),
            Ok(0) | Err(Errno::INTR) => {}
            done => return done.map(drop),
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
///
/// ```
/// use forebear::timer::TimerError;
/// use forebear::timer::local::configure_from_env;
///
/// match configure_from_env() {
///     Ok(()) => println!("timers are on"),
///     Err(TimerError::NotConfigured) => println!("started by hand: without timers"),
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), TimerError>(())
/// ```
pub fn configure_from_env() -> Result<(), TimerError> {
    configure(LocalTimerClient::from_env()?);
    Ok(())
}

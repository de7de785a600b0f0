//! The worker's end of the socket.
//!
//! # How it is used by threads and by forks
//!
//! A message is one `send`, which the kernel does not split. Threads send under the connection's lock, so that a release in the
//! [backlog](super::backlog) has the exact count of messages sent before it. No thread waits for room in the server's queue while it holds that lock.
//!
//! A forked child has a copy of its parent's connection, and must not send on it: the server would refuse the messages
//! of a foreign process. It also has copies of the parent's locks, one of which a thread that the child does not have
//! may have held. So there is a list with one [`ProcessLink`] for each process. A link has the id of the process
//! that made it, and a process uses only the link with its own id. A child finds none, and appends one; it takes no
//! lock of its parent's. (A grandchild whose id is that of an ancestor finds that ancestor's link. The server
//! refuses its message, and then the grandchild connects anew.)
//!
//! # Why an acquire is not acknowledged
//!
//! A message that `send` has accepted lies in the server's queue in the kernel. It is lost only with the server, and then no process is killed.
//! It does not matter when the server reads it, since the message says *when* the timer expires, not how long it runs. An acknowledgement would
//! make every acquire wait until the server has run. The server acknowledges the connection once, when it is made.

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

/// The longest wait in one system call.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The default time-out.
const PATIENCE: Duration = Duration::from_secs(10);

/// The client of a [`LocalTimerServer`](super::LocalTimerServer), in a worker process. Its timers belong to the process.
///
/// One client serves all threads of a process. `acquire` and `release` cost two system calls: `getpid` and `send`.
///
/// The server's queue is full when some 270 messages are unread. Then an `acquire` waits for room, and returns an error
/// after the client's time-out. A `release` does not wait: the client writes it into a file in memory that the server
/// has given to it. The server reads that file before it kills a process. The file has room for 1,024 releases. A
/// release waits only if there is no room, or if the server is of a version without that file.
///
/// No call waits until the server has read its message. If the server refuses one, as beyond its limit of timers, it closes the connection, and the
/// next call that acquires a timer returns that [`Refusal`](super::Refusal). A call after that connects anew, and returns `Ok` before the server has read
/// its message. So `Ok` means that the message was sent, not that the server keeps the timer.
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
    first: ProcessLink,
}

/// A client's connection in one process: in the process that made the client, or in a forked child.
#[derive(Debug)]
struct ProcessLink {
    pid: u32,
    link: Mutex<Option<Link>>,
    /// The next one in the list: a forked child appends its own.
    next: OnceLock<Box<ProcessLink>>,
}

/// A connection that the server has welcomed.
#[derive(Debug)]
struct Link {
    socket: Arc<OwnedFd>,
    /// How many messages were sent on it.
    sent: u64,
    /// For releases that cannot be sent. `None`: the server gave no file.
    unsent: Option<Unsent>,
}

/// The result of an attempt to send.
enum SendResult {
    /// The server will receive it.
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
    /// [`TimerError::ServerGone`] if there is none; a [`Refusal`](super::Refusal) in [`TimerError::Other`] if it refuses this
    /// client; [`TimerError::Io`] if it does not answer within ten seconds, or the system fails.
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
        let client = LocalTimerClient { path, patience, anchor: Anchor::new(), first: ProcessLink::new() };
        let link = client.connect_new()?;
        *client.first.lock() = Some(link);
        Ok(client)
    }

    /// The path of the server.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The connection of this process.
    fn own_link(&self) -> &ProcessLink {
        let pid = process::id();
        let mut own = &self.first;
        while let Some(next) = own.next.get() {
            own = next;
        }
        while own.pid != pid {
            own = own.next.get_or_init(|| Box::new(ProcessLink::new()));
        }
        own
    }

    /// Sends the message on the process's connection, or on a new one if it has none, without
    /// waiting for room.
    fn try_send(
        &self,
        own: &ProcessLink,
        message: &Message,
        releases: bool,
    ) -> Result<SendResult, TimerError> {
        let mut link = own.lock();
        let link = match &mut *link {
            Some(link) => link,
            none => none.insert(self.connect_new()?),
        };
        let mut unsent = releases;
        loop {
            match send(&link.socket, message.bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => {
                    link.sent += 1;
                    return Ok(SendResult::Yes);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if std::mem::take(&mut unsent) => {
                    let written = link.unsent.as_mut();
                    if !written.is_some_and(|unsent| unsent.write(message.bytes(), link.sent)) {
                        return Ok(SendResult::Full(link.socket.clone()));
                    }
                    // R1 of the backlog: once more, now that it is written.
                }
                Err(Errno::AGAIN) if releases => return Ok(SendResult::Yes),
                Err(Errno::AGAIN) => return Ok(SendResult::Full(link.socket.clone())),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    return Ok(SendResult::Closed(link.socket.clone()));
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Connects, and waits for the welcome.
    fn connect_new(&self) -> Result<Link, TimerError> {
        let until = deadline_after(time::now(), self.patience);
        let socket = seqpacket(SocketFlags::CLOEXEC)?;
        // The send time-out also bounds `connect`, which waits while the server's accept queue is full.
        let patience = self.patience.clamp(Duration::from_micros(1), DAY);
        set_socket_timeout(&socket, Timeout::Send, Some(patience)).map_err(io::Error::from)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(patience)).map_err(io::Error::from)?;
        let address = SocketAddrUnix::new(&self.path).map_err(io::Error::from)?;
        retry_interrupted(until, || connect(&socket, &address)).map_err(failed)?;
        match self.read_answer(&socket, until, RecvFlags::empty())? {
            (Answer::Welcome, file) => {
                Ok(Link { socket: Arc::new(socket), sent: 0, unsent: file.map(Unsent::new) })
            }
            (Answer::Refused(why), _) => Err(TimerError::other(why)),
        }
    }

    /// Receives the server's answer, and the file that comes with it.
    fn read_answer(
        &self,
        socket: &OwnedFd,
        until: Option<Instant>,
        flags: RecvFlags,
    ) -> Result<(Answer, Option<OwnedFd>), TimerError> {
        let mut bytes = [0; 16];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let read = retry_interrupted(until, || {
            recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
        });
        let len = read.map_err(failed)?.bytes;
        if len == 0 {
            return Err(TimerError::ServerGone);
        }
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let strange = |_| io::Error::new(io::ErrorKind::InvalidData, "this is no timer server");
        Ok((wire::parse_answer(&bytes[..len]).map_err(strange)?, file))
    }

    fn send_request(
        &self,
        scope: &Scope,
        deadline: Option<Instant>,
        signal: Signal,
    ) -> Result<(), TimerError> {
        let deadline_nanos = deadline.map(|at| self.anchor.nanos(at));
        let message = wire::encode_request(scope, deadline_nanos, signal)
            .map_err(|size| TimerError::too_large(size, MAX_MESSAGE))?;
        let own = self.own_link();
        let releases = deadline.is_none();
        let mut again = releases;
        let mut until = None;
        loop {
            let socket = match self.try_send(own, &message, releases)? {
                SendResult::Yes => return Ok(()),
                SendResult::Full(socket) => {
                    let until = *until.get_or_insert_with(|| deadline_after(time::now(), self.patience));
                    wait_for_room(&socket, until).map_err(failed)?;
                    continue;
                }
                SendResult::Closed(socket) => socket,
            };
            let error = self.lost_link(own, &socket);
            // A release may be repeated, and a server that has closed the connection may have kept the timer.
            if !std::mem::take(&mut again) {
                return Err(error);
            }
        }
    }

    /// The server has closed the connection. Drops the link, and answers the server's reason.
    fn lost_link(&self, own: &ProcessLink, socket: &Arc<OwnedFd>) -> TimerError {
        own.lock().take_if(|link| Arc::ptr_eq(&link.socket, socket));
        // The first read may only report that the server did not read what this process sent.
        for _ in 0..2 {
            if let Ok((Answer::Refused(why), _)) = self.read_answer(socket, None, RecvFlags::DONTWAIT) {
                return TimerError::other(why);
            }
        }
        TimerError::ServerGone
    }
}

impl ProcessLink {
    fn new() -> ProcessLink {
        ProcessLink { pid: process::id(), link: Mutex::new(None), next: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Link>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Repeats a call that a signal interrupts, until `until`.
fn retry_interrupted<T>(until: Option<Instant>, mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match f() {
            Err(Errno::INTR) if until.is_none_or(|until| time::now() < until) => {}
            result => return result,
        }
    }
}

/// Waits until there is room in the server's queue, at most until `until` (then `AGAIN`).
fn wait_for_room(socket: &OwnedFd, until: Option<Instant>) -> Result<(), Errno> {
    loop {
        let left = until.map_or(DAY, |until| until.saturating_duration_since(time::now()).min(DAY));
        let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(slice::from_mut(&mut PollFd::new(socket, PollFlags::OUT)), Some(&timeout)) {
            Ok(0) if left.is_zero() => return Err(Errno::AGAIN),
            Ok(0) | Err(Errno::INTR) => {}
            result => return result.map(drop),
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
        self.send_request(scope, Some(deadline), Signal::Default)
    }

    fn release(&self, scope: &Scope) -> Result<(), TimerError> {
        self.send_request(scope, None, Signal::Default)
    }

    fn acquire_with(&self, scope: &Scope, deadline: Instant, signal: Signal) -> Result<(), TimerError> {
        if let Signal::Number(number) = signal {
            let number = i32::try_from(number.get()).unwrap_or(i32::MAX);
            wire::named_signal(number).ok_or_else(|| unnamed(number))?;
        }
        self.send_request(scope, Some(deadline), signal)
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

//! Which clients the server admits, and by what proof it watches a process.
//!
//! # The proof
//!
//! A process is watched, and can be signalled, only after these steps:
//!
//! 1. A client connects. Its process id was P when it connected.
//! 2. The server opens a pidfd for P. Call D the process that it names.
//! 3. The server finds the connection empty, and then welcomes the client. (A client that sends before the welcome is
//!    refused.)
//! 4. A message arrives, and the kernel reports that its sender's id was P when it was sent. That was after 3, hence after
//!    2.
//! 5. After that, the server finds that D has not ended.
//!
//! (If D has ended it is watched all the same, since it cannot be signalled any more. The server registers its messages, and then D
//! leaves.)
//!
//! The system reuses a process id only after its owner has ended and was waited for. So D had the id P from 2 to 5, and within that time a
//! process with the id P sent the message: the sender *is* D. It does not matter which process connected, which others hold the connection (a
//! child inherits it), and which ids were reused meanwhile. Every later message must come from P as well; the server refuses messages of
//! another process on the connection.
//!
//! While a watched process with the id P has not ended, a second connection of P belongs to that process.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use forebear_context::clock::deadline_after;
use forebear_context::shim::time;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, accept_with, send, sendmsg,
};

use super::{Connection, LocalQueue, Watched, send_refusal};
use crate::local::backlog::Backlog;
use crate::local::kernel::{self, Received};
use crate::local::wire::{self, Answer, MAX_MESSAGE};
use crate::local::{LocalEvent, LocalWorker, Refusal};

/// How many connections are accepted in a row.
const ACCEPTS: usize = 16;
/// After descriptors have run out, the server accepts no connection for this long.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// The process of an admitted client, and the file for the releases that it cannot send.
type Admitted = (LocalWorker, Option<Backlog>);

/// Sends the welcome, with this file if possible. Answers whether the file was sent.
fn welcome(socket: &OwnedFd, file: Option<&OwnedFd>) -> Result<bool, Errno> {
    let words = wire::encode_answer(Answer::Welcome);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if let Some(file) = file {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let files = [file.as_fd()];
        if control.push(SendAncillaryMessage::ScmRights(&files))
            && sendmsg(socket, &[IoSlice::new(&words)], &mut control, flags).is_ok()
        {
            return Ok(true);
        }
    }
    send(socket, &words, flags).map(|_| false)
}

impl LocalQueue {
    /// Accepts waiting clients. Answers whether there was any.
    pub(super) fn accept(&mut self) -> bool {
        for taken in 0..ACCEPTS {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let pid = kernel::connected(socket.as_fd()).ok();
                    let pid = pid.filter(|peer| self.is_of_ours(peer.uid)).and_then(|peer| peer.pid);
                    let admitted = pid.map_or(Err(Refusal::Stranger), |pid| self.admit(&socket, pid));
                    match (admitted, pid) {
                        (Ok(Some(admitted)), Some(pid)) => self.take_in(socket, pid, admitted),
                        (Ok(_), _) => {}
                        (Err(why), pid) => {
                            send_refusal(&socket, why);
                            self.reporter.refused(pid, why);
                        }
                    }
                }
                Err(Errno::AGAIN) => return taken > 0,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    // The listener stays readable while a client waits, so it is not watched for a while.
                    _ = epoll::delete(&self.sources, &self.listener);
                    self.shut = deadline_after(time::now(), PAUSE);
                    self.reporter.report(&LocalEvent::Full { error: &error.into(), again_in: PAUSE });
                    return taken > 0;
                }
            }
        }
        true
    }

    /// Whether a process of this user may have timers here: we must be able to signal it.
    fn is_of_ours(&self, uid: u32) -> bool {
        let own = rustix::process::geteuid();
        own.is_root() || own.as_raw() == uid
    }

    /// Steps 2 and 3 of the proof. `None`: the client has disconnected.
    fn admit(&mut self, socket: &OwnedFd, pid: i32) -> Result<Option<Admitted>, Refusal> {
        if self.connections.len() >= self.limits.connections {
            return Err(Refusal::TooManyConnections);
        }
        if self.has_enough(pid) {
            // It may have closed connections whose end was not read yet.
            let of_it = self.connections.iter().filter(|(_, connection)| connection.pid == pid);
            let of_it: Vec<u64> = of_it.map(|(number, _)| *number).collect();
            for number in of_it {
                self.read(number);
            }
            if self.has_enough(pid) {
                return Err(Refusal::TooManyOfOne);
            }
        }
        let known = self.by_pid.get(&pid).and_then(|number| self.watched.get(number));
        let worker = match known.filter(|known| !known.worker.has_ended()) {
            Some(known) => known.worker.clone(),
            None => match LocalWorker::open(pid, &self.serials, &self.wakeup) {
                Ok(Some(worker)) => worker,
                Ok(None) => return Ok(None),
                // Descriptors have run out.
                Err(_) => return Err(Refusal::TooManyConnections),
            },
        };
        match kernel::receive(socket.as_fd(), &mut [0; MAX_MESSAGE]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(Received { len: 0, sender: None, .. }) | Err(_) => return Ok(None),
            Ok(_) => return Err(Refusal::Malformed),
        }
        // Without a file (no descriptors or memory), a release waits for room as an acquire does.
        let (backlog, file) = Backlog::create().ok().unzip();
        match welcome(socket, file.as_ref()) {
            Ok(true) => Ok(Some((worker, backlog))),
            Ok(false) => Ok(Some((worker, None))),
            Err(_) => Ok(None),
        }
    }

    /// Whether one process has as many connections as it may.
    fn has_enough(&self, pid: i32) -> bool {
        self.counts.get(&pid).is_some_and(|count| *count >= self.limits.connections_of_one)
    }

    fn take_in(&mut self, socket: OwnedFd, pid: i32, (worker, backlog): Admitted) {
        let number = self.number();
        let connection =
            Connection { socket, pid, worker, proven: None, read: Default::default(), received: 0, backlog };
        let data = EventData::new_u64(number);
        if epoll::add(&self.sources, &connection.socket, data, EventFlags::IN).is_ok() {
            *self.counts.entry(pid).or_default() += 1;
            self.connections.insert(number, connection);
        }
    }

    /// Step 5 of the proof. `None`: the sender has ended, and another process has its id.
    pub(super) fn prove(&mut self, number: u64) -> Result<Option<u64>, Refusal> {
        let Some(connection) = self.connections.get(&number) else { return Ok(None) };
        let (pid, worker) = (connection.pid, connection.worker.clone());
        let over = worker.has_ended();
        let before = self.by_pid.get(&pid).copied();
        let same = |number: &u64| self.watched.get(number).is_some_and(|before| before.worker == worker);
        let same = before.filter(same);
        if let (Some(before), None) = (before, same) {
            // `ended` checks again: of two records with one id, at most one process lives.
            self.ended(before);
        }
        let watched = match same.or_else(|| self.by_pid.get(&pid).copied().filter(|_| !over)) {
            Some(watched) => watched,
            None if self.by_pid.contains_key(&pid) => return Ok(None),
            None => {
                if self.watched.len() >= self.limits.workers && !self.make_room() {
                    return Err(Refusal::TooManyWorkers);
                }
                let watched = self.number();
                let data = EventData::new_u64(watched);
                if epoll::add(&self.sources, &worker, data, EventFlags::IN).is_err() {
                    return Err(Refusal::TooManyWorkers);
                }
                self.reporter.report(&LocalEvent::Joined { worker: &worker });
                let new = Watched { worker, connections: 0, scopes: HashMap::new(), survived: None };
                self.watched.insert(watched, new);
                self.by_pid.insert(pid, watched);
                watched
            }
        };
        if let Some(watched) = self.watched.get_mut(&watched) {
            watched.connections += 1;
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.proven = Some(watched);
        }
        Ok(Some(watched))
    }
}

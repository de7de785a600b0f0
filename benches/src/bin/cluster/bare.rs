//! The bare socket pair: the messages that two processes can exchange, without an engine.
//!
//! A worker is a process of this program that has one end of the pair as standard input, as a worker of `LocalProcesses` has. A task is a message of [`SIZE`] bytes, about what
//! the engine's messages take, and its result is another one. `many` has as many messages in flight as the engine has slots, and a thread for each worker. `alone` has one. Each side writes all that it has by
//! one call, and reads all that is there by one call. The second candidate reads and writes each message by a call of its own.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::Whether;
use crate::candidates::{SLOTS, WORKERS};
use crate::figures::{one_by_one, print, rate};

const SIZE: usize = 32;

/// The worker: sends back whole messages, at most so many by one call, until the socket ends.
pub(crate) fn echo(at_once: &str) -> Whether<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let (mut buffer, mut held) = (vec![0; at_once.parse::<usize>()? * SIZE], 0);
    loop {
        let read = socket.read(&mut buffer[held..])?;
        if read == 0 {
            return Ok(());
        }
        held += read;
        let whole = held - held % SIZE;
        socket.write_all(&buffer[..whole])?;
        buffer.copy_within(whole..held, 0);
        held -= whole;
    }
}

/// A worker process, and the way to it. The process ends with the socket.
struct Peer {
    socket: UnixStream,
    child: Child,
    /// At most so many messages are read by one call.
    at_once: usize,
}

impl Peer {
    fn start(at_once: usize) -> io::Result<Peer> {
        let (socket, its) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["echo", &at_once.to_string()]).stdin(Stdio::from(OwnedFd::from(its)));
        let mut peer = Peer { socket, child: command.spawn()?, at_once };
        peer.send(SLOTS)?; // it has started when it has answered
        Ok(peer)
    }

    /// So many messages and their answers, [`SLOTS`] at once.
    fn send(&mut self, n: usize) -> io::Result<()> {
        let mut buffer = vec![7; SLOTS * SIZE];
        let (mut sent, mut back) = (n.min(SLOTS), 0);
        for first in buffer[..sent * SIZE].chunks(self.at_once * SIZE) {
            self.socket.write_all(first)?;
        }
        while back < n * SIZE {
            let before = back / SIZE;
            let read = self.socket.read(&mut buffer[..self.at_once * SIZE])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            back += read;
            let more = (back / SIZE - before).min(n - sent);
            self.socket.write_all(&buffer[..more * SIZE])?;
            sent += more;
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

pub(crate) fn many(n: u64, at_once: usize) -> Whether<()> {
    let mut peers = (0..WORKERS).map(|_| Peer::start(at_once)).collect::<io::Result<Vec<_>>>()?;
    let share = usize::try_from(n)? / WORKERS;
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = peers.iter_mut().map(|peer| scope.spawn(move || peer.send(share))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
        })
    })?;
    print("a second", rate((share * WORKERS) as u64, begun.elapsed()));
    Ok(())
}

pub(crate) fn alone(n: u64) -> Whether<()> {
    let mut peer = Peer::start(1)?;
    one_by_one(n, |_| Ok(peer.send(1)?))
}

//! [`Outlet`]: the sending end of a socket, for threads that must not wait.
//!
//! Frames are put into a buffer. The thread that has put the last one *flushes*: it sends what the socket takes at once, in one system call for all frames. If the socket does not take
//! all, a thread of its own sends the rest, and what is put there meanwhile. So frames that come in quick succession share a system call, and a single one wakes nobody but its receiver.
//!
//! A writer that expects more frames at once flushes *soon*: immediately if nothing was sent a moment ago. Else the frame stays for the next flush, and for the thread, which looks after a moment. So a frame waits for
//! little more than that. The thread is woken once for many frames: it goes on to look, with longer pauses while others send all, until nothing was left in one of them.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use serde::Serialize;

use super::frames::{Unput, put};

/// A buffer that has grown above this is dropped when it is empty.
const KEPT: usize = 1 << 20;

/// While the socket takes nothing, the thread asks for the patience once in so much time.
const LOOK: Duration = Duration::from_millis(100);

/// What is flushed soon may wait so long.
const MOMENT: Duration = Duration::from_micros(50);

/// No pause between two looks is longer.
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct Outlet {
    socket: UnixStream,
    /// No frame is longer.
    limit: usize,
    state: Mutex<OutletState>,
    /// The thread sleeps on it.
    work: Condvar,
}

#[derive(Default)]
struct OutletState {
    /// Frames, and so much of them has been sent.
    frames: Vec<u8>,
    sent: usize,
    /// The thread is to send what is there.
    handed: bool,
    /// The thread sends frames that it has taken out. What comes later goes after those.
    sending: bool,
    /// When something was sent last.
    last: Option<Instant>,
    /// The thread looks when the moment is over.
    looks: bool,
    /// Something was left to its next look.
    left: bool,
    asleep: bool,
    closed: bool,
    failed: bool,
}

impl OutletState {
    fn is_empty(&self) -> bool {
        self.sent == self.frames.len()
    }

    fn clear(&mut self) {
        self.sent = 0;
        if self.frames.capacity() > KEPT {
            self.frames = Vec::new();
        }
        self.frames.clear();
    }
}

impl Outlet {
    /// For frames of at most so many bytes.
    pub(crate) fn new(socket: UnixStream, limit: usize) -> Outlet {
        Outlet { socket, limit, state: Mutex::default(), work: Condvar::new() }
    }

    /// No frame is longer, in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, OutletState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame there. Nothing happens after [`close`](Self::close). A message that cannot be put breaks the socket: the peer waits for it.
    pub(crate) fn put<T: Serialize>(&self, message: &T) {
        if self.try_put(message).is_err() {
            let mut state = self.lock();
            self.fail(&mut state);
        }
    }

    /// The same, but a message that cannot be put breaks nothing.
    pub(crate) fn try_put<T: Serialize>(&self, message: &T) -> Result<(), Unput> {
        let mut state = self.lock();
        if state.closed { Ok(()) } else { put(&mut state.frames, message, self.limit) }
    }

    /// Sends what is there, as far as the socket takes it, and leaves the rest to the thread. Does not wait.
    pub(crate) fn flush(&self) {
        let mut state = self.lock();
        self.flush_under(&mut state, Instant::now());
    }

    fn flush_under(&self, state: &mut OutletState, now: Instant) {
        state.last = Some(now);
        while !(state.is_empty() || state.sending || state.handed || state.failed) {
            match send(&self.socket, &state.frames[state.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => state.sent += sent,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.hand(state),
                Err(_) => self.fail(state),
            }
        }
        if state.is_empty() {
            state.clear();
        }
    }

    /// The same, but what comes less than a moment after the last flush may stay for the next one.
    pub(crate) fn flush_soon(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        if state.last.is_none_or(|last| now.saturating_duration_since(last) >= MOMENT) {
            return self.flush_under(&mut state, now);
        }
        state.left = true;
        if !std::mem::replace(&mut state.looks, true) {
            self.wake_under(&mut state);
        }
    }

    /// Has the thread look at its time again.
    pub(crate) fn wake(&self) {
        let mut state = self.lock();
        self.wake_under(&mut state);
    }

    /// No more frames come. `true`: this is not the first call.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        self.wake_under(&mut state);
        std::mem::replace(&mut state.closed, true)
    }

    fn hand(&self, state: &mut OutletState) {
        state.handed = true;
        self.wake_under(state);
    }

    fn fail(&self, state: &mut OutletState) {
        state.failed = true;
        self.wake_under(state);
    }

    fn wake_under(&self, state: &mut OutletState) {
        if std::mem::take(&mut state.asleep) {
            self.work.notify_one();
        }
    }

    /// The thread's work: sends what was left to it, until the outlet is closed and empty. `patience` says for how long it may sleep; `Err` ends it.
    ///
    /// # Errors
    ///
    /// `None`: the patience is at an end. Else the socket does not take any more.
    pub(crate) fn serve(
        &self,
        mut patience: impl FnMut() -> Result<Option<Duration>, ()>,
    ) -> Result<(), Option<io::Error>> {
        let mut pause = MOMENT;
        let mut state = self.lock();
        loop {
            if state.failed {
                return Err(Some(io::ErrorKind::BrokenPipe.into()));
            }
            // Under the lock: who shortens it and then wakes finds the thread asleep, or did so before.
            let left = patience().map_err(|()| None)?;
            if (state.handed || state.closed) && !state.is_empty() {
                let (frames, sent) = (std::mem::take(&mut state.frames), std::mem::take(&mut state.sent));
                (state.handed, state.sending) = (false, true);
                drop(state);
                let written = self.send_all(&frames[sent..], &mut patience);
                state = self.lock();
                match written {
                    Err(None) => return Err(None),
                    written => state.failed |= written.is_err(),
                }
                state.sending = false;
                // Nobody has flushed meanwhile.
                state.handed = !state.is_empty();
                continue;
            }
            state.handed = false;
            if state.closed {
                return Ok(());
            }
            let looks = state.looks;
            let left = [left, looks.then_some(pause)].into_iter().flatten().min();
            state.asleep = true;
            state = match left {
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
            state.asleep = false;
            if looks {
                state.looks = std::mem::take(&mut state.left);
                pause = if state.looks && state.is_empty() { (2 * pause).min(PAUSE) } else { MOMENT };
                self.flush_under(&mut state, Instant::now());
            }
        }
    }

    /// Sends these bytes, and waits for room. A peer that reads nothing ends the wait when the patience does.
    fn send_all(
        &self,
        mut frames: &[u8],
        patience: &mut impl FnMut() -> Result<Option<Duration>, ()>,
    ) -> Result<(), Option<io::Error>> {
        while !frames.is_empty() {
            match send(&self.socket, frames, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => frames = &frames[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    let left = patience().map_err(|()| None)?.unwrap_or(LOOK).min(LOOK);
                    let left = Timespec::try_from(left).ok();
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], left.as_ref());
                }
                Err(error) => return Err(Some(error.into())),
            }
        }
        Ok(())
    }

    /// Sends a last frame, and waits for room, as [`serve`](Self::serve) does.
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve).
    pub(crate) fn send_last<T: Serialize>(
        &self,
        last: &T,
        mut patience: impl FnMut() -> Result<Option<Duration>, ()>,
    ) -> Result<(), Option<io::Error>> {
        let mut frame = Vec::new();
        put(&mut frame, last, self.limit).map_err(|unput| Some(unput.into()))?;
        self.send_all(&frame, &mut patience)
    }

    /// Ends the sending half of the socket.
    pub(crate) fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::thread;

    use super::super::frames::{Inlet, LONGEST};
    use super::*;

    /// What takes longer does not end.
    const LONG: Duration = Duration::from_secs(60);

    /// Two ends. A read at the other one that gets nothing fails.
    fn pair() -> (Arc<Outlet>, Inlet) {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_read_timeout(Some(LONG)).unwrap();
        (Arc::new(Outlet::new(here, LONGEST)), Inlet::new(there))
    }

    /// Runs it in a thread of its own. What it answers is there, or not in time.
    fn apart<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (tell, told) = channel();
        thread::spawn(move || _ = tell.send(f()));
        told
    }

    #[track_caller]
    fn within<T>(told: &Receiver<T>) -> T {
        told.recv_timeout(LONG).unwrap_or_else(|why| match why {
            RecvTimeoutError::Timeout => panic!("it has not ended in {LONG:?}"),
            RecvTimeoutError::Disconnected => panic!("it has panicked"),
        })
    }

    #[test]
    fn what_the_socket_does_not_take_at_once_is_sent_by_the_thread_in_its_order() {
        let (outlet, mut inlet) = pair();
        let frame = |n: u32| (n, vec![7_u8; 1000]);
        let put = |frames: std::ops::Range<u32>| {
            let its = outlet.clone();
            apart(move || {
                for n in frames {
                    its.put(&frame(n));
                    its.flush();
                }
            })
        };
        // Nobody reads, and it does not wait.
        within(&put(0..2_000));
        let its = outlet.clone();
        let served = apart(move || {
            let served = its.serve(|| Ok(None));
            its.end();
            served.is_ok()
        });
        // More comes while the thread sends.
        let more = put(2_000..4_000);
        for n in 0..4_000 {
            assert_eq!(inlet.receive().unwrap(), Some(frame(n)));
        }
        within(&more);
        outlet.put(&frame(4_000));
        outlet.flush_soon();
        assert_eq!(inlet.receive().unwrap(), Some(frame(4_000)));
        assert!(!outlet.close());
        assert_eq!(inlet.receive::<u32>().unwrap(), None);
        assert!(within(&served));
    }

    #[test]
    fn what_is_flushed_soon_is_sent_although_nothing_follows() {
        let (outlet, mut inlet) = pair();
        let its = outlet.clone();
        let served = apart(move || its.serve(|| Ok(None)).is_ok());
        for n in 0..1_000_u32 {
            // The second one comes less than a moment after the first, unless this thread is held up.
            for m in [2 * n, 2 * n + 1] {
                outlet.put(&m);
                outlet.flush_soon();
            }
            assert_eq!([(); 2].map(|()| inlet.receive().unwrap()), [Some(2 * n), Some(2 * n + 1)]);
        }
        outlet.close();
        assert!(within(&served));
    }

    #[test]
    fn what_is_there_at_the_end_is_sent_and_nothing_that_comes_later() {
        let (outlet, mut inlet) = pair();
        outlet.put(&1_u32);
        assert!(!outlet.close());
        assert!(outlet.close(), "it is closed already");
        outlet.put(&2_u32);
        let _open = within(&apart(move || {
            assert!(outlet.serve(|| Ok(None)).is_ok());
            assert!(outlet.send_last(&3_u32, || Ok(None)).is_ok());
            outlet.end();
            outlet
        }));
        let received: Vec<u32> = std::iter::from_fn(|| inlet.receive().unwrap()).collect();
        assert_eq!(received, [1, 3]);
    }

    #[test]
    fn a_wake_has_the_patience_asked_for_again() {
        let (outlet, _inlet) = pair();
        let (asked, asks) = channel();
        let (its, mut times) = (outlet.clone(), 0);
        let served = apart(move || {
            its.serve(|| {
                times += 1;
                asked.send(()).unwrap();
                if times < 2 { Ok(None) } else { Err(()) }
            })
            .is_err()
        });
        within(&asks);
        outlet.wake();
        assert!(within(&served));
    }

    /// A worker that stands still reads nothing. The order that it is late for may come after the thread has begun to wait for room.
    #[test]
    fn a_peer_that_reads_nothing_is_waited_for_as_long_as_the_patience_lasts() {
        let (outlet, inlet) = pair();
        let its = outlet.clone();
        let ended = within(&apart(move || {
            its.put(&vec![7_u8; 4 << 20]);
            its.flush();
            let mut times = 0;
            let mut patience = || {
                times += 1;
                if times < 4 { Ok(None) } else { Err(()) }
            };
            [its.serve(&mut patience), its.send_last(&1_u32, patience)]
                .map(|ended| matches!(ended, Err(None)))
        }));
        assert_eq!(ended, [true; 2]);
        drop(inlet);
        assert!(matches!(within(&apart(move || outlet.send_last(&1_u32, || Ok(None)))), Err(Some(_))));
    }
}

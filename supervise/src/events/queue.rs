//! Records on their way from the callers of `write` to the thread that writes the file.
//!
//! # A batch
//!
//! A caller appends its record to one buffer, under a lock. The thread takes the whole buffer, writes it to the file without the lock, and wakes the callers that wait. So a record
//! costs neither a system call nor memory of its own. After a write the thread pauses for [`PAUSE`], in which the next batch grows; a full one, a flush and the end cut the pause short.
//! Without records the thread sleeps without a limit, and the first one wakes it.
//!
//! # Waiting callers
//!
//! A caller waits by a oneshot channel whose sender it leaves here, under the lock: for room, if [`MOST`] bytes are there, or for a flush. The thread takes the senders together with the
//! buffer. A flush that comes during a write belongs to the next batch, which the thread takes after that write. When the thread ends, for whatever reason, it drops the senders
//! that are left, and a caller finds no thread from then on.

use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebear::channel::{RecvError, oneshot};

/// How long the thread waits for more after a write.
const PAUSE: Duration = Duration::from_millis(1);
/// A batch of so many bytes is written without a pause.
const FULL: usize = 1 << 16;
/// With so many bytes the callers wait.
const MOST: usize = 1 << 20;

/// See the module head.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    wake: Condvar,
}

#[derive(Default)]
struct QueueState {
    bytes: Vec<u8>,
    for_room: Vec<oneshot::Sender<()>>,
    for_flush: Vec<oneshot::Sender<()>>,
    rest: Rest,
    /// No more records come.
    closed: bool,
    /// The thread has ended, and why if the system has refused a write.
    ended: bool,
    refused: Option<Arc<io::Error>>,
}

/// What the thread does.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Rest {
    /// It works, or was woken.
    #[default]
    None,
    Pause,
    Sleep,
}

/// Why a record was not taken.
pub(super) enum Refused {
    /// The caller was cancelled.
    Cancelled,
    /// The thread has ended.
    Ended(Arc<io::Error>),
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record. Suspends while there is no room.
    pub(super) fn put(&self, record: &[u8]) -> Result<(), Refused> {
        loop {
            let mut state = self.lock();
            if state.ended {
                return Err(state.failed());
            }
            if state.bytes.len() < MOST {
                state.bytes.extend_from_slice(record);
                let wakes = match state.rest {
                    Rest::None => false,
                    Rest::Pause => state.bytes.len() >= FULL,
                    Rest::Sleep => true,
                };
                self.wake_if(wakes, state);
                return Ok(());
            }
            let (room, has_room) = oneshot::channel();
            state.for_room.push(room);
            drop(state);
            self.wait(has_room)?;
        }
    }

    /// Waits until all records of earlier calls are in the file. Suspends.
    pub(super) fn flush(&self) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.ended {
            return Err(state.failed());
        }
        let (done, is_done) = oneshot::channel();
        state.for_flush.push(done);
        let rests = state.rest != Rest::None;
        self.wake_if(rests, state);
        self.wait(is_done)
    }

    /// No more records come. The thread ends after those that are here.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.wake_if(true, state);
    }

    fn wake_if(&self, wakes: bool, mut state: MutexGuard<'_, QueueState>) {
        if wakes {
            state.rest = Rest::None;
            drop(state);
            self.wake.notify_one();
        }
    }

    fn wait(&self, event: oneshot::Receiver<()>) -> Result<(), Refused> {
        match event.recv() {
            Ok(()) => Ok(()),
            Err(RecvError::Cancelled) => Err(Refused::Cancelled),
            Err(_) => Err(self.lock().failed()),
        }
    }

    /// The loop of the thread.
    pub(super) fn write_to(&self, file: &mut File) {
        let ends = Ends(self);
        let mut batch = Vec::with_capacity(FULL);
        while let Some(flushes) = self.next(&mut batch) {
            if let Err(error) = file.write_all(&batch) {
                self.lock().refused = Some(Arc::new(error));
                // Before those that have asked for a flush learn of the end.
                drop(ends);
                return;
            }
            flushes.into_iter().for_each(|done| _ = done.send(()));
        }
    }

    /// The next batch, in exchange for the memory of the last one, and the flushes that end with it. `None`: it was closed, and nothing is left.
    fn next(&self, batch: &mut Vec<u8>) -> Option<Vec<oneshot::Sender<()>>> {
        batch.clear();
        let mut state = self.lock();
        if !state.is_urgent() {
            state.rest = Rest::Pause;
            let paused = |state: &mut QueueState| state.rest == Rest::Pause;
            let (woken, _) =
                self.wake.wait_timeout_while(state, PAUSE, paused).unwrap_or_else(PoisonError::into_inner);
            state = woken;
        }
        while state.bytes.is_empty() && state.for_flush.is_empty() {
            if state.closed {
                return None;
            }
            state.rest = Rest::Sleep;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.rest = Rest::None;
        mem::swap(&mut state.bytes, batch);
        let (room, flushes) = (mem::take(&mut state.for_room), mem::take(&mut state.for_flush));
        drop(state);
        room.into_iter().for_each(|room| _ = room.send(()));
        Some(flushes)
    }
}

impl QueueState {
    fn is_urgent(&self) -> bool {
        self.closed || self.bytes.len() >= FULL || !self.for_flush.is_empty()
    }

    fn failed(&self) -> Refused {
        let ended = || Arc::new(io::Error::other("the thread that writes has ended"));
        Refused::Ended(self.refused.clone().unwrap_or_else(ended))
    }
}

/// The end of the thread, also by a panic.
struct Ends<'a>(&'a Queue);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        let left = (mem::take(&mut state.for_room), mem::take(&mut state.for_flush));
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn callers_wait_for_room_until_the_thread_takes_the_buffer_and_for_nothing_after_its_end() {
        let queue = Arc::new(Queue::default());
        assert!(queue.put(&vec![0; MOST]).is_ok());
        let puts = queue.clone();
        let waits = thread::spawn(move || puts.put(&[1]).is_ok());
        while queue.lock().for_room.is_empty() {
            thread::yield_now();
        }
        let mut batch = Vec::new();
        let ends = Ends(&queue);
        assert!(queue.next(&mut batch).is_some() && batch.len() == MOST);
        assert!(waits.join().unwrap());
        assert!(queue.next(&mut batch).is_some() && batch == [1]);
        drop(ends);
        assert!(matches!(queue.put(&[2]), Err(Refused::Ended(_))));
        assert!(matches!(queue.flush(), Err(Refused::Ended(_))));
    }
}

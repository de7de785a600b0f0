//! The outbox of the dispatcher: messages that one caller at a time sends, without the lock.
//!
//! A caller that finds the outbox in use leaves its messages there. So messages are sent one at a time, in the order of the changes. Events that stand together are told together, and a port is flushed when
//! all that was in the outbox is sent: orders that come together may share a system call.

use std::collections::VecDeque;
use std::mem;
use std::ptr;
use std::sync::Arc;

use super::{DispatchState, Dispatcher, Port};
use crate::engine::{Answer, Event, Order};

pub(super) enum Message {
    Order(Arc<dyn Port>, Order),
    Stop(Arc<dyn Port>),
    Event(Event),
}

/// The caller that empties the outbox. If it panics, it leaves to others what it has not sent.
struct Sending<'a> {
    of: &'a Dispatcher,
    batch: Batch,
    over: bool,
}

/// Messages that are being sent, and the ports that have orders since they were flushed. Empty between two callers, and kept for the memory.
#[derive(Default)]
pub(super) struct Batch {
    messages: VecDeque<Message>,
    ports: Vec<Arc<dyn Port>>,
}

impl Sending<'_> {
    /// Sends what there is, in its order.
    fn send(&mut self) {
        let Batch { messages, ports } = &mut self.batch;
        while let Some(message) = messages.pop_front() {
            match message {
                Message::Order(port, order) => {
                    port.order(order);
                    if !ports.iter().any(|known| ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(&port))) {
                        ports.push(port);
                    }
                }
                Message::Stop(port) => port.stop(),
                Message::Event(event) => {
                    let mut events = Events { first: Some(event), rest: messages };
                    self.of.events.tell_all(&mut events);
                    // The coordinator may be gone, and has taken none.
                    events.for_each(drop);
                }
            }
        }
        ports.drain(..).for_each(|port| port.flush());
    }
}

impl Message {
    /// A task has ended, and has not failed.
    fn is_good_end(&self) -> bool {
        let Message::Event(Event::Ended { answer, .. }) = self else { return false };
        matches!(answer, Answer::Done(_) | Answer::Stored { .. })
    }
}

/// The events that are the next messages.
struct Events<'a> {
    first: Option<Event>,
    rest: &'a mut VecDeque<Message>,
}

impl Iterator for Events<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.first.take().or_else(|| match self.rest.pop_front()? {
            Message::Event(event) => Some(event),
            other => {
                self.rest.push_front(other);
                None
            }
        })
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.over {
            let mut state = self.of.lock();
            state.sending = false;
            state.spare.ports = mem::take(&mut self.batch.ports);
            while let Some(message) = self.batch.messages.pop_back() {
                state.outbox.push_front(message);
            }
        }
    }
}

impl Dispatcher {
    /// Changes the state, sends what there is to send, and then hands out what can be handed out.
    pub(super) fn change(&self, change: impl FnOnce(&mut DispatchState)) {
        let mut state = self.lock();
        change(&mut state);
        state.tell_drained();
        if mem::replace(&mut state.sending, true) {
            return;
        }
        let mut sending = Sending { of: self, batch: mem::take(&mut state.spare), over: false };
        while state.next_messages(&mut sending.batch.messages) || !sending.batch.ports.is_empty() {
            drop(state);
            sending.send();
            state = self.lock();
        }
        #[cfg(mutant = "outbox_left_behind")]
        {
            drop(state);
            state = self.lock();
        }
        state.sending = false;
        state.spare = mem::take(&mut sending.batch);
        sending.over = true;
    }
}

impl DispatchState {
    /// Moves out what is to be sent next, if there is anything. Tasks are handed out before ends are told that can cancel nothing: so their worker continues meanwhile. All else is told first, and a failure
    /// cancels what is queued before the slot is used again. Twice in a row nothing is put off.
    fn next_messages(&mut self, messages: &mut VecDeque<Message>) -> bool {
        let put_off = !mem::take(&mut self.put_off) && self.outbox.iter().all(Message::is_good_end);
        mem::swap(&mut self.outbox, messages);
        if put_off || messages.is_empty() {
            self.hand_out();
            if !self.outbox.is_empty() {
                mem::swap(&mut self.outbox, messages);
                self.put_off = !self.outbox.is_empty();
            }
        }
        !messages.is_empty()
    }
}

//! Handles and links of a request in a model, and taking its value: `request.rs`, `any.rs`.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use forebear_runtime::model::word::{CANCELLED, Cancel, FINISHED, HandleDrop};

use super::{Job, Waiter};

impl Job {
    /// The drop of an untyped handle, or of a stale entry.
    pub fn release_link(&self) {
        self.touch();
        if self.word.release_link() {
            self.end();
        }
    }

    /// `AnyRequest::parent`, asked of a child and dropped again. The child knows that the header's memory is there, and no
    /// more: it has not ended before the child has. True: there was a handle to drop.
    pub fn ask_for_parent(&self) -> bool {
        let linked = self.word.try_add_link();
        if linked {
            self.touch();
            self.release_link();
        }
        linked
    }

    /// The drop of a handle.
    pub fn drop_handle(&self) -> HandleDrop {
        self.touch();
        let bits = self.word.load();
        if bits.life() == FINISHED && bits.is_sole_handle() && !self.children {
            // `end_alone`.
            self.drop_value();
            self.end();
            return HandleDrop::TerminalAlone;
        }
        self.touch();
        let answer = self.word.drop_handle();
        match answer {
            HandleDrop::NotLast | HandleDrop::Running => {}
            HandleDrop::Unstarted => _ = self.act(Cancel::Ended),
            HandleDrop::Terminal | HandleDrop::TerminalAlone => {
                self.touch();
                let _ = self.word.load();
                self.drop_value();
                self.touch();
                if answer == HandleDrop::TerminalAlone || self.word.release_link() {
                    self.end();
                }
            }
        }
        answer
    }

    /// The drop of a handle by the worker in whose private queue the request stands, or stood. True: it was let go by a
    /// plain store. (The runtime looks at the word before, to save a call; the look in here must do alone.)
    pub fn drop_own_handle(&self) -> bool {
        self.touch();
        if self.word.drop_sole(self.word.load(), || self.begin_touch()) {
            self.touched();
            return true;
        }
        self.drop_handle();
        false
    }

    /// `Request::take` by the worker in whose private queue it is; `during` is the callable's own doing.
    pub fn take(&self, waiter: &Waiter, listed: &Cell<bool>, during: impl FnOnce()) -> Took {
        self.touch();
        if !self.word.claim_sole(|| self.begin_touch()) {
            self.wait(waiter, true, Some(listed));
            return self.take_over();
        }
        self.unlink(listed);
        let value = self.call();
        during();
        self.touch();
        if self.word.is_still_sole() {
            self.end();
            self.notes.alone.fetch_add(1, Relaxed);
            self.notes.taken.fetch_add(1, Relaxed);
            return Took::Alone;
        }
        self.put_value(value);
        self.finish(FINISHED, false);
        self.take_over()
    }

    /// `take_over`: the end of a take whose target is over.
    pub fn take_over(&self) -> Took {
        self.touch();
        let bits = self.word.load();
        if bits.life() == CANCELLED {
            self.reason();
            self.drop_handle();
            return Took::Cancelled;
        }
        assert_eq!(bits.life(), FINISHED);
        if bits.handles() > 1 {
            self.drop_handle();
            return Took::Shared;
        }
        // SAFETY: J1.
        let value = self.value.with_mut(|value| unsafe { (*value).take() });
        assert_eq!(value, Some(7), "a value that is not there");
        self.notes.taken.fetch_add(1, Relaxed);
        // `take_value`.
        if self.word.load().is_sole_handle() && !self.children || self.word.release_handle() {
            self.end();
        }
        Took::Value
    }
}

/// How a take went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// Without an exchange, to the end.
    Alone,
    /// At the terminal state, as the only handle.
    Value,
    /// There were other handles.
    Shared,
    /// There is no value.
    Cancelled,
}

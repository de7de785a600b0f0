//! What the owner of a local request does with its request in a model, and who asks: `submit.rs`, `wait.rs`, `finish.rs`,
//! `header.rs`, `api/request/counts.rs`.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use forebear_runtime::model::word::{FINISHED, HandleDrop, LocalStep, PRIVATE, SUBMITTED};

use super::{How, Job, Waiter};

impl Job {
    /// `Header::word`, by one who is not the owner: before whatever else it does with the request.
    pub fn ask(&self) {
        self.touch();
        if self.word.is_local() {
            self.word.revoke(&self.local, &self.local_owner);
        }
    }

    /// The same by the owner, or who has the sole handle by value.
    pub fn publish_state(&self) {
        self.touch();
        if self.word.is_local() {
            self.word.publish_state(&self.local, 0);
        }
    }

    fn advance_local(&self, step: LocalStep) -> bool {
        self.touch();
        self.word.advance_local(&self.local, &self.local_owner, self.local.stage(), step)
    }

    /// `Request::submit` by the owner.
    pub fn submit_own(&self, listed: &Cell<bool>) {
        self.touch();
        if self.word.is_local() {
            if !self.local.stage().is_new() {
                return;
            }
            if self.advance_local(LocalStep::Listed) {
                listed.set(true);
                return;
            }
        }
        if self.word.submit(SUBMITTED | PRIVATE) {
            listed.set(true);
        }
    }

    /// The claim of `Request::wait` by the owner, and no more.
    pub fn start_own(&self) -> bool {
        self.touch();
        self.word.is_local() && self.advance_local(LocalStep::Started)
    }

    /// `Request::wait` by the owner: true if all of it was a local request when it did it.
    pub fn wait_own(&self, waiter: &Waiter, listed: &Cell<bool>) -> (How, bool) {
        self.touch();
        let started = self.word.is_local() && self.advance_local(LocalStep::Started);
        if started && listed.get() {
            self.take_out(listed);
        }
        self.wait_started(started, waiter, listed)
    }

    /// The same where the owner touches the entry first: the order of `run_local`, by the same macro.
    pub fn wait_own_at_once(&self, waiter: &Waiter, listed: &Cell<bool>) -> (How, bool) {
        self.touch();
        if !self.word.is_local() || !self.start_entry(|| self.advance_local(LocalStep::Started)) {
            return self.wait_own(waiter, listed);
        }
        self.unlink(listed);
        self.wait_started(true, waiter, listed)
    }

    fn wait_started(&self, started: bool, waiter: &Waiter, listed: &Cell<bool>) -> (How, bool) {
        if started {
            let value = self.call();
            self.put_value(value);
            if self.word.is_local() && self.advance_local(LocalStep::Done) {
                self.notes.terminal.fetch_add(1, Relaxed);
                self.notes.life.store(FINISHED, Relaxed);
                return (How::Ran, true);
            }
            self.finish(FINISHED, false);
            return (How::Ran, false);
        }
        self.publish_state();
        (self.wait(waiter, true, Some(listed)), false)
    }

    /// What the owner does with an entry that it pops. True: it ran it.
    pub fn run_own_entry(&self, listed: &Cell<bool>) -> bool {
        self.take_out(listed);
        self.publish_state();
        self.run_popped()
    }

    /// The drop of the handle by the owner.
    pub fn drop_own(&self) -> HandleDrop {
        self.touch();
        if self.word.is_local() && self.local.is(LocalStep::Done) {
            // `end_alone`.
            self.drop_value();
            self.end();
            return HandleDrop::TerminalAlone;
        }
        if self.word.is_local() && self.word.drop_listed(&self.local, || self.begin_touch()) {
            self.touched();
            return HandleDrop::Running;
        }
        self.publish_state();
        self.drop_handle()
    }
}

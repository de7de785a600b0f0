//! What the keeper of a secret does with its request in a model, and who asks: `submit.rs`, `wait.rs`, `run.rs`,
//! `header.rs`, `api/request/counts.rs`.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use forebear_runtime::model::word::{Confided, FINISHED, HandleDrop, PRIVATE, SUBMITTED};

use super::{How, Job, Waiter};

impl Job {
    /// `Header::word`, by one who is not the keeper: before whatever else it does with the request.
    pub fn ask(&self) {
        self.touch();
        if self.word.is_secret() {
            self.word.ask_for(&self.secret, &self.keeper);
        }
    }

    /// The same by the keeper, or who has the sole handle by value.
    pub fn reveal(&self) {
        self.touch();
        if self.word.is_secret() {
            self.word.reveal(&self.secret, 0);
        }
    }

    fn confide(&self, step: Confided) -> bool {
        self.touch();
        self.word.confide(&self.secret, &self.keeper, step)
    }

    /// `Request::submit` by the keeper.
    pub fn submit_own(&self, listed: &Cell<bool>) {
        self.touch();
        if self.word.is_secret() {
            if !self.secret.is_new() {
                return;
            }
            if self.confide(Confided::Listed) {
                listed.set(true);
                return;
            }
        }
        if self.word.submit(SUBMITTED | PRIVATE) {
            listed.set(true);
        }
    }

    /// The claim of `Request::wait` by the keeper, and no more.
    pub fn start_own(&self) -> bool {
        self.touch();
        self.word.is_secret() && self.confide(Confided::Started)
    }

    /// `Request::wait` by the keeper: true if all of it was a secret when it did it.
    pub fn wait_own(&self, waiter: &Waiter, listed: &Cell<bool>) -> (How, bool) {
        self.touch();
        if self.word.is_secret() && self.confide(Confided::Started) {
            if listed.get() {
                self.take_out(listed);
            }
            let value = self.call();
            self.put_value(value);
            if self.word.is_secret() && self.confide(Confided::Done) {
                self.notes.terminal.fetch_add(1, Relaxed);
                self.notes.life.store(FINISHED, Relaxed);
                return (How::Ran, true);
            }
            self.finish(FINISHED, false);
            return (How::Ran, false);
        }
        self.reveal();
        (self.wait(waiter, true, Some(listed)), false)
    }

    /// What the keeper does with an entry that it pops. True: it ran it.
    pub fn run_own_entry(&self, listed: &Cell<bool>) -> bool {
        self.take_out(listed);
        self.reveal();
        self.run_popped()
    }

    /// The drop of the handle by the keeper.
    pub fn drop_own(&self) -> HandleDrop {
        self.touch();
        if self.word.is_secret() && self.secret.is(Confided::Done) {
            // `end_alone`.
            self.drop_value();
            self.end();
            return HandleDrop::TerminalAlone;
        }
        if self.word.is_secret() && self.word.drop_listed(&self.secret, || self.begin_touch()) {
            self.touched();
            return HandleDrop::Running;
        }
        self.reveal();
        self.drop_handle()
    }
}

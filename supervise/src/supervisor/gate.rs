//! [`Gate`]: how saves and steps keep apart.
//!
//! A step holds `gate` shared while it changes the state and counts itself. A save holds it alone while it reads the counter and has the state copied. So what it writes is the
//! state after whole steps, and the number of them.
//!
//! Saves come one after the other (`saving`), from the reading of the counter on: the newest file is that of the latest step.
//!
//! # The races
//!
//! * *A step that has changed the state and not counted itself, against a save.* The counter is changed before the step leaves the gate. A save that comes after it reads both.
//! * *A save that has read the counter, against a later one that is written first.* The second one waits for its turn before it reads.
//! * *A save that has begun, against the end of the session.* The end makes the session no chief's, and then waits for its turn (`wait_for_save`). A save looks whether the session is the
//!   chief's after its turn has come. So it has finished before the wait returns, or is refused.
//! * *The copy against the next step.* The copy is whole before the save opens the gate. A state without a copy is written before.

use std::time::Duration;

use forebear::Cancelled;
use forebear::sync::{Mutex, RwLock};

/// See the module head.
pub(super) struct Gate {
    gate: RwLock<()>,
    saving: Mutex<()>,
}

impl Gate {
    pub(super) fn new() -> Gate {
        Gate { gate: RwLock::new(()), saving: Mutex::new(()) }
    }

    /// Makes a step. `count` is called after it, before a save can come. A cancelled caller makes none.
    pub(super) fn step<R>(&self, step: impl FnOnce() -> R, count: impl FnOnce()) -> Result<R, Cancelled> {
        let no_save = self.gate.read_or_cancelled()?;
        let value = step();
        #[cfg(mutant = "step_counted_outside")]
        drop(no_save);
        count();
        #[cfg(not(mutant = "step_counted_outside"))]
        drop(no_save);
        Ok(value)
    }

    /// Waits until the save that is being made is over, if there is one. Answers whether it is over by then.
    pub(super) fn wait_for_save(&self, at_most: Duration) -> bool {
        #[cfg(mutant = "end_waits_for_no_save")]
        return at_most > Duration::ZERO;
        #[cfg(not(mutant = "end_waits_for_no_save"))]
        self.saving.lock_timeout(at_most).is_ok()
    }

    /// Makes a save. `read` takes what is written, while no step continues; `write` writes it. If `is_copy` says that what was taken is a copy, steps go on before that.
    pub(super) fn save<T, E, R>(
        &self,
        read: impl FnOnce() -> Result<T, E>,
        is_copy: impl FnOnce(&T) -> bool,
        write: impl FnOnce(T) -> Result<R, E>,
    ) -> Result<R, E> {
        #[cfg(not(mutant = "save_reads_before_its_turn"))]
        let _one_at_a_time = self.saving.lock();
        let no_step = self.gate.write();
        #[cfg(mutant = "save_lets_go_before_the_copy")]
        drop(no_step);
        let taken = read()?;
        #[cfg(not(mutant = "save_lets_go_before_the_copy"))]
        let _held = if is_copy(&taken) {
            drop(no_step);
            None
        } else {
            Some(no_step)
        };
        #[cfg(mutant = "save_lets_go_before_the_copy")]
        let _ = is_copy;
        #[cfg(mutant = "save_reads_before_its_turn")]
        let _one_at_a_time = self.saving.lock();
        write(taken)
    }
}

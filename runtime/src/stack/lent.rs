//! What a frame has lent to other stacks: an unwind must not leave it.
//!
//! Some calls lend their frame: what they have spawned, or published, borrows from it and runs on another stack. Such a call returns when all that
//! borrows is over. An unwind through its frame would free what is borrowed. What the user's code does is caught before. What is left is code of
//! ours that is not expected to unwind, and code of the user's that the wait calls (a clock, a panic hook's payload). There is nothing to fall
//! back on: the process ends, and the message says by what.
//!
//! `docs/loans.md` lists all places where something is lent.

use crate::record::report;

/// Ends the process if it is dropped by an unwind. It costs nothing else.
#[must_use = "it guards what comes after it"]
pub(crate) struct Lent<W: Fn() -> &'static str>(W);

impl<W: Fn() -> &'static str> Lent<W> {
    /// From here on this frame is lent to these. Only an unwind asks for their name, so that the guard takes no room.
    #[inline(always)]
    pub(crate) fn to(whom: W) -> Lent<W> {
        Lent(whom)
    }

    /// All of them are over.
    #[inline(always)]
    pub(crate) fn given_back(self) {
        std::mem::forget(self);
    }
}

impl<W: Fn() -> &'static str> Drop for Lent<W> {
    #[cold]
    fn drop(&mut self) {
        report::die(&format_args!("a panic would leave a frame that is lent to {}", (self.0)()));
    }
}

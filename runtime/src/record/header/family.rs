//! What a request's worker knows of its children, and has done about it. All of it by the owner of `ran_on`, or by the request's own stack; before it has started, by
//! its maker.

use super::{FAMILY, Header, SCATTERED};

impl Header {
    /// Whether children of it are there (H1).
    #[inline(always)]
    pub(crate) fn has_children(&self) -> bool {
        self.next_rank.get() != self.gone.get()
    }

    /// How many.
    pub(in crate::record) fn children(&self) -> u32 {
        // Both counts may wrap: fewer children than that live at a time.
        self.next_rank.get().wrapping_sub(self.gone.get())
    }

    /// One of them has gone.
    #[inline(always)]
    pub(in crate::record) fn count_gone(&self) {
        self.gone.set(self.gone.get().wrapping_add(1));
    }

    /// Whether it has ever made one.
    #[inline(always)]
    pub(crate) fn made_children(&self) -> bool {
        self.next_rank.get() != 0
    }

    /// Its last child in the private queue, if that is known; else null.
    pub(crate) fn last_child(&self) -> *const Header {
        self.last_child.get()
    }

    /// Whether this has been done about it: [`SETTLED`](super::SETTLED), [`DELIVERED`](super::DELIVERED), [`KNOWN`](super::KNOWN),
    /// [`REGION`](super::REGION).
    #[inline(always)]
    pub(crate) fn has_state(&self, bit: u8) -> bool {
        self.state.get() & bit != 0
    }

    /// This has been done about it.
    #[inline(always)]
    pub(crate) fn add_state(&self, bit: u8) {
        self.state.set(self.state.get() | bit);
    }

    /// Takes that back, and answers whether it had been done.
    #[inline(always)]
    pub(crate) fn take_state(&self, bit: u8) -> bool {
        let had = self.has_state(bit);
        if had {
            self.state.set(self.state.get() & !bit);
        }
        had
    }

    /// Whether it left a link to its children. By the owner of `ran_on`, as what follows.
    #[inline(always)]
    pub(crate) fn has_family(&self) -> bool {
        self.state.get() & FAMILY != 0
    }

    /// Says whether it does, and answers whether it did.
    #[inline(always)]
    pub(crate) fn set_family(&self, family: bool) -> bool {
        let state = self.state.get();
        self.state.set(if family { state | FAMILY } else { state & !FAMILY });
        state & FAMILY != 0
    }

    /// Says that its children in the private queue may stand apart. By the owner of `ran_on`, as what follows.
    pub(crate) fn scatter(&self) {
        self.state.set(self.state.get() | SCATTERED);
    }

    /// Whether they may.
    #[inline(always)]
    pub(crate) fn is_scattered(&self) -> bool {
        self.state.get() & SCATTERED != 0
    }
}

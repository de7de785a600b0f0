//! Cloning and dropping handles, and what the last one leaves to do.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::Request;
use crate::cell;
use crate::header::Header;
use crate::home;
use crate::hooks;
use crate::strand;
use crate::word::{Bits, FAILED, FINISHED, HandleDrop, SEEN, SPAWNED};

impl<T> Clone for Request<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.header().word.add_handle();
        Request { header: self.header, value: PhantomData }
    }
}

impl<T> Drop for Request<T> {
    #[inline(always)]
    fn drop(&mut self) {
        let h = self.header();
        let bits = h.word.load();
        // Spawned and let go: nobody else knows of it yet, so a plain store will do (W8), if the private list it stands
        // in is this worker's.
        if bits.0 == SPAWNED && ptr::eq(strand::current_home(), h.home.get()) && h.word.drop_sole() {
            return;
        }
        self.drop_counted(bits);
    }
}

impl<T> Request<T> {
    /// The drop of a handle of whose request others may know.
    #[inline(never)]
    fn drop_counted(&self, bits: Bits) {
        let (header, h) = (self.header, self.header());
        // Finished, and nobody else is left: what others did with it was seen with the load (W7). It never had children,
        // who could ask for it as their parent; and whoever may find it from its own parent is this thread.
        if bits.life() == FINISHED
            && bits.is_sole_handle()
            && h.next_rank.get() == 0
            && ptr::eq(strand::current_home(), h.home.get())
        {
            // SAFETY: W2, W4: the last count of all is ours.
            unsafe { end_alone::<T>(header) };
            return;
        }
        match self.header().word.drop_handle() {
            HandleDrop::NotLast | HandleDrop::Running => {}
            // SAFETY: each by what the drop left us with.
            last => unsafe { drop_last(header, last) },
        }
    }
}

/// The end of a finished request that nobody else knows of, on its home.
///
/// # Safety
///
/// W2, W4; M1 for its home, if it has one.
#[inline(always)]
unsafe fn end_alone<T>(header: NonNull<Header>) {
    // SAFETY: by contract.
    unsafe {
        let h = header.as_ref();
        if const { std::mem::needs_drop::<T>() } {
            cell::drop_value_contained(header);
        }
        match h.home.get().as_ref() {
            Some(home) => home::end_child(home, header),
            None => home::end(header),
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn drop_last(header: NonNull<Header>, last: HandleDrop) {
    // SAFETY: by the answer of `drop_handle`.
    unsafe {
        if last == HandleDrop::Unstarted {
            // Its callable is `'static`: only such are ever unsubmitted.
            cell::end_unstarted(header);
            return;
        }
        let h = header.as_ref();
        let bits = h.word.load();
        if bits.life() == FAILED
            && !bits.has(SEEN)
            && h.scope.get().is_null()
            && let Some(failure) = h.failure()
        {
            hooks::unseen_failure(h.home.get().as_ref().map(|home| home.shared()), failure);
        }
        cell::drop_value_contained(header);
        if last == HandleDrop::TerminalAlone || h.word.release_link() {
            home::end(header);
        }
    }
}

//! Handles and links: who still knows of a request.
//!
//! Handles reach the value, links the header only. The last handle decides about the value, and the last count of both
//! kinds about the header. Between the two a handle may have to turn into a link (W6): another thread's link may be the
//! last count while the value is still being dropped.

use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::{hint, mutant};

use super::Word;
use super::bits::*;

/// What the drop of a handle leaves its holder to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleDrop {
    /// Others remain: nothing.
    NotLast,
    /// It was never submitted. The dropper has claimed it, marked; its handle is now the runner's link: drop the
    /// callable, go terminal, release.
    Unstarted,
    /// It runs or will: its runner drops the value.
    Running,
    /// It is over. The handle is now a link (W6): drop the value, then release the link.
    Terminal,
    /// It is over and there was nobody else: drop the value, then the header is the dropper's alone.
    TerminalAlone,
}

impl Word {
    /// One more handle, from a handle (W5).
    #[inline]
    pub fn add_handle(&self) {
        let before = Bits(self.0.fetch_add(HANDLE, Ordering::Relaxed));
        if before.handles() >= COUNT_LIMIT {
            too_many();
        }
    }

    /// One more link, from a handle or a link.
    #[inline]
    pub fn add_link(&self) {
        let before = Bits(self.0.fetch_add(LINK, Ordering::Relaxed));
        if before.links() >= COUNT_LIMIT {
            too_many();
        }
    }

    /// One more link, from one who only knows that the header is there. False: it is about to end, or has only its
    /// children left.
    pub fn try_add_link(&self) -> bool {
        self.update(|b| (!b.is_forgotten()).then(|| Bits(b.0 + LINK))).is_ok()
    }

    /// Gives a handle back; see [`HandleDrop`].
    #[inline]
    pub fn drop_handle(&self) -> HandleDrop {
        mutant!("last_handle_by_sub", {
            let before = Bits(self.0.fetch_sub(HANDLE, Ordering::AcqRel));
            return match (before.handles(), before.life(), before.links()) {
                (2.., ..) => HandleDrop::NotLast,
                (_, FINISHED.., 0) => HandleDrop::TerminalAlone,
                (_, FINISHED.., _) => HandleDrop::Terminal,
                _ => HandleDrop::Running,
            };
        });
        let mut seen = self.peek();
        loop {
            let less = seen.0 - HANDLE;
            let (next, answer) = if seen.handles() > 1 {
                (less, HandleDrop::NotLast)
            } else if seen.life() == NEW {
                if seen.has(LOCK) {
                    hint::spin_loop();
                    seen = self.peek();
                    continue;
                }
                (Bits(less).with_life(CLAIMED).0 | MARKED, HandleDrop::Unstarted)
            } else if !seen.is_terminal() {
                (less, HandleDrop::Running)
            } else if seen.links() == 0 {
                // Exchanged all the same: a child of this one may be asking for its parent at this moment, and must
                // find nobody to add a link to.
                (less, HandleDrop::TerminalAlone)
            } else {
                (less, HandleDrop::Terminal)
            };
            #[cfg(mutant = "alone_by_look")]
            if answer == HandleDrop::TerminalAlone {
                return answer;
            }
            let next = match answer {
                HandleDrop::Unstarted | HandleDrop::Terminal => next + LINK,
                _ => next,
            };
            let swapped = mutant!(
                "handle_down_relaxed",
                self.0
                    .compare_exchange(seen.0, next, Ordering::Relaxed, Ordering::Relaxed)
                    .map(drop)
                    .map_err(Bits),
                self.swap_if(seen, Bits(next))
            );
            match swapped {
                Ok(()) => return answer,
                Err(now) => seen = now,
            }
        }
    }

    /// Gives back the only handle of one that is over, whose value the caller has moved out: nothing is left for a link to wait for (W6). True: it was
    /// the last of both kinds, and the header is the caller's to end (W4, W7).
    #[inline]
    pub fn release_handle(&self) -> bool {
        let order = mutant!("emptied_handle_down_relaxed", Ordering::Relaxed, Ordering::AcqRel);
        Bits(self.0.fetch_sub(HANDLE, order).wrapping_sub(HANDLE)).is_forgotten()
    }

    /// Gives a link back. True: it was the last of both kinds, and the header is the caller's to end (W4, W7).
    #[inline]
    pub fn release_link(&self) -> bool {
        let order = mutant!("link_down_relaxed", Ordering::Relaxed, Ordering::AcqRel);
        Bits(self.0.fetch_sub(LINK, order).wrapping_sub(LINK)).is_forgotten()
    }

    /// Remembers that somebody looked at the failure.
    #[inline]
    pub fn mark_seen(&self) {
        self.0.fetch_or(SEEN, Ordering::Relaxed);
    }
}

#[cold]
fn too_many() -> ! {
    // Unwinding would drop handles and could bring the count back into range while clones are still being leaked.
    std::process::abort()
}

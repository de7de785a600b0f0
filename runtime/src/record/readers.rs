//! Whether anybody looks at the stacks of threads that go on: then memory of requests is freed later ([`crate::record::reclaim`]).
//!
//! # Invariants
//!
//! * **GV1** A reader says so, then passes a fence, then reads the first pointer. A thread that frees has taken the request off its
//!   stack, then passes a fence, then asks whether anybody looks. (Nearly all is freed while nobody looks, so the fence is one of which the looker pays
//!   all, [`crate::state::asymmetric`], where there is one.) So one of them sees the other: what is freed was off its
//!   stack when the look began.
//! * **GV2** Where there is no such fence, or none any more, the count of looks has the bit [`PAY`], for good. A thread that frees and finds
//!   the count not zero passes a fence of its own and reads the count again. The bit is set before the first runtime starts, or
//!   by a looker that has paid once more and still is counted. So nobody reads zero after that looker has begun.

use forebear_context::shim::atomic::{AtomicUsize, Ordering, fence};

use crate::state::asymmetric;

/// How many look, in all runtimes: a stack may hold requests of several.
static READERS: AtomicUsize = AtomicUsize::new(0);
/// In [`READERS`]: a thread that frees memory passes a fence of its own (GV2).
const PAY: usize = 1 << (usize::BITS - 1);

/// A reader is about to look. Answers whether it pays for both sides of the fence.
pub(crate) fn enter() -> bool {
    READERS.fetch_add(1, Ordering::AcqRel) & PAY == 0
}

/// The reader may look from now on; `pays` is the answer of [`enter`].
pub(crate) fn look_begins(pays: bool) {
    // GV1.
    if pays {
        asymmetric::heavy();
        settle_who_pays();
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The look is over. True: nobody looks any more. Under the lock of what is deferred: a thread that defers looks again there.
pub(crate) fn leave() -> bool {
    READERS.fetch_sub(1, Ordering::AcqRel) & !PAY == 1
}

/// In a forked child nobody looks.
pub(crate) fn forget() {
    READERS.fetch_and(PAY, Ordering::Relaxed);
}

/// GV2. By the first runtime, before it starts; and by a looker that has paid.
pub(crate) fn settle_who_pays() {
    if !asymmetric::is_available() {
        READERS.fetch_or(PAY, Ordering::AcqRel);
    }
}

/// Whether what has gone off its stack may be seen by somebody all the same.
pub(crate) fn has_readers() -> bool {
    // GV1.
    asymmetric::light();
    READERS.load(Ordering::Acquire) > 0 && has_readers_now()
}

#[cold]
fn has_readers_now() -> bool {
    // GV2.
    fence(Ordering::SeqCst);
    READERS.load(Ordering::Acquire) & !PAY > 0
}

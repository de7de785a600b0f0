//! Whether a thread reads the stacks of other threads. While one does, memory of requests is freed later ([`crate::record::reclaim`]).
//!
//! # Invariants
//!
//! * **GV1** A reader counts itself, then passes a fence, then reads the first pointer. A thread that frees has taken the request off its
//!   stack, then passes a fence, then reads the count. So one of the two sees the other: memory that is freed was off its stack when the read
//!   section began. Nearly all memory is freed while there is no reader, so the fence is asymmetric where there is such a fence: the reader pays for
//!   both sides ([`crate::state::asymmetric`]).
//! * **GV2** Where there is no such fence, or none any more, the count of readers has the bit [`PAY`], for good. A thread that frees and finds
//!   the count not zero passes a fence of its own and reads the count again. The bit is set before the first runtime starts, or
//!   by a reader that has paid once more and is still counted. So no thread reads zero after that reader has begun.

use forebear_context::shim::atomic::{AtomicUsize, Ordering, fence};

use crate::state::asymmetric;

/// The number of readers, in all runtimes: a stack may have requests of several.
static READERS: AtomicUsize = AtomicUsize::new(0);
/// In [`READERS`]: a thread that frees memory passes a fence of its own (GV2).
const PAY: usize = 1 << (usize::BITS - 1);

/// A reader is about to begin. Returns whether it pays for both sides of the fence.
pub(crate) fn enter() -> bool {
    READERS.fetch_add(1, Ordering::AcqRel) & PAY == 0
}

/// The read section begins; `pays` is the answer of [`enter`].
pub(crate) fn look_begins(pays: bool) {
    // GV1.
    if pays {
        asymmetric::heavy();
        settle_who_pays();
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The read section ends. True: it was the last. Called under the lock of the deferred memory; a thread that defers reads the count again there.
pub(crate) fn leave() -> bool {
    READERS.fetch_sub(1, Ordering::AcqRel) & !PAY == 1
}

/// In a forked child there are no readers.
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

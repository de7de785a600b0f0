//! Locks and their kin for requests and for threads, written once on the context seam.
//!
//! A request that waits here is suspended, and its worker goes on with other work; a thread that waits blocks. Both stand in the same
//! lists. Nothing here knows requests: what waits is a [context](forebear_context::context).
//!
//! | to | use |
//! | --- | --- |
//! | change something one at a time | [`Mutex`] |
//! | hand something to somebody else | [`channel`] |
//!
//! # How the waiters stand
//!
//! In a [`LockQueue`], keyed by urgency: the most urgent goes first, and among equals the one that came first. A place in it lies in the
//! waiter's own frame, so to wait allocates nothing.

pub mod channel;
mod guarded;
mod heap;
mod lock_queue;
mod mutex;
mod raw_lock;

pub use self::lock_queue::{Chosen, ChosenList, LockQueue, Place};
pub use self::mutex::{Mutex, MutexGuard};

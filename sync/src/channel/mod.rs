//! Channels: what one context hands to another.
//!
//! | of | made by | a send waits | a receive waits |
//! | --- | --- | --- | --- |
//! | many items, at most so many at a time | [`bounded`] | for room | for an item |
//! | many items | [`unbounded`] | never | for an item |
//! | one item | [`oneshot::channel`] | never | for the item |
//! | the newest value only | [`watch::channel`] | never | for a newer one |
//!
//! Both ends of the first two can be cloned: many send, many receive, and each item goes to one of them. Requests and threads use the
//! same ends, and compete as equals.
//!
//! # How it ends
//!
//! As in std: when the last sender has gone, what was sent is still received, and then every receive answers *disconnected*; when the
//! last receiver has gone, every send does, gives the item back, and what nobody has received is dropped.
//!
//! Every method that waits is a cancellation point. In a cancelled request it answers `Cancelled` even where it would not have to wait;
//! the `try_` forms never wait, and work there as ever.
//!
//! Nothing is lost on the way: an item that could not be sent comes back in the error, and one that was given to a receiver is
//! returned there, whatever happened to it meanwhile.
//!
//! # Fairness
//!
//! Items come out in the order in which they went in. Who waits stands in a [`LockQueue`](crate::primitive::LockQueue): the most urgent receiver
//! gets the next item, the most urgent sender the next place, and among equals the one that came first. An item or a place is given to
//! a waiter by the operation that provides it, before the waiter runs: no newcomer can take it instead.
//!
//! A wait without a limit, or with one of a millisecond or more, whose other side is on another worker as far as is known, begins with up to
//! 16 looks, 2 to 6 µs together, while nobody waits on this side; the caller's worker does nothing else meanwhile. Only then does the caller stand among those who
//! wait. Where looks are in vain they become fewer, down to none but a try in sixteen waits.
//!
//! # Panics
//!
//! In a [`no_suspend`](https://docs.rs/forebear/latest/forebear/fn.no_suspend.html) region, whatever would have to wait.
//!
//! ```
//! use forebear::channel::{RecvError, bounded};
//!
//! let (sender, receiver) = bounded(2);
//! std::thread::spawn(move || (1..=3).try_for_each(|n| sender.send(n)));
//! assert_eq!(receiver.recv(), Ok(1));
//! assert_eq!(receiver.recv(), Ok(2));
//! assert_eq!(receiver.recv(), Ok(3));
//! assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
//! ```

mod arms;
mod core;
mod ends;
mod error;
#[cfg(panic = "unwind")]
mod iter;
mod looks;
pub mod oneshot;
mod try_iter;
pub mod watch;

pub use self::arms::Sending;
pub use self::ends::{Receiver, Sender, bounded, bounded_named, unbounded, unbounded_named};
pub use self::error::{RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError};
#[cfg(panic = "unwind")]
pub use self::iter::{IntoIter, Iter};
pub use self::try_iter::TryIter;

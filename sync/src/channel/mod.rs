//! Channels: passing items from one context to another.
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
//! # The end of a channel
//!
//! As in std. When the last sender is dropped, the items in the channel are still received; then every receive returns *disconnected*.
//! When the last receiver is dropped, every send returns *disconnected* with its item, and the items in the channel are dropped.
//!
//! Every method that waits is a cancellation point. In a cancelled request it returns `Cancelled` even where it would not have to wait;
//! the `try_` forms never wait, and work there as ever.
//!
//! No item is lost on the way. An item that could not be sent comes back in the error. An item that was given to a receiver is
//! returned there, even if the receiver was cancelled meanwhile.
//!
//! # Fairness
//!
//! Items come out in the order in which they went in. Waiters stand in a [`LockQueue`](crate::primitive::LockQueue): the most urgent receiver
//! gets the next item, the most urgent sender the next place, and among equals the earliest. The operation that provides an item or a
//! place gives it to a waiter, before the waiter runs: no newcomer can take it instead.
//!
//! A wait whose other side runs on another worker polls first: up to 16 times, 2 to 6 µs together, while there is no other waiter on this
//! side. The caller's worker does nothing else meanwhile. Only then does the caller enter the queue. A wait with a limit below a
//! millisecond does not poll. Where polls are in vain they become fewer, down to one try in sixteen waits.
//!
//! # Streams between workers
//!
//! A receiver that finds several items from another worker takes them out of the channel's shared memory at once, so that the next receives do not
//! contend with the senders. If they were few, the receive after them begins with up to 80 pauses of the processor (0.8 µs on a Xeon of 2021), in which
//! senders send more. A program sees none of that but the time: such items still count for the length and the bound, and the next receiver gets
//! them. For this a channel takes memory a second time, for up to 1024 items and 64 KiB, once it is in need of it.
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
pub mod oneshot;
mod sides;
mod try_iter;
pub mod watch;

pub use self::arms::Sending;
pub use self::ends::{Receiver, Sender, bounded, bounded_named, unbounded, unbounded_named};
pub use self::error::{RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError};
#[cfg(panic = "unwind")]
pub use self::iter::{IntoIter, Iter};
pub use self::try_iter::TryIter;

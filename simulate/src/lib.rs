//! A discrete-event model of the scheduler: what it does on more cores than there are at hand.
//!
//! # What is in it
//!
//! Workers as they are in `runtime/src/schedule/worker/` and `pool/src/worker.rs`:
//!
//! * the private queue, and its publication when another worker is hungry;
//! * shared queues, the half that a thief takes, and a thief's patience;
//! * the injector behind its inbox;
//! * picks that compare published keys. Above eight workers they read the words of groups, four in turn, and one pick in 32 reads all;
//! * mailboxes of resumed requests;
//! * the protocol of sleep: searchers and their heirs, the list of sleepers, ticks, and passing a wake-up on.
//!
//! Requests are lists of steps ([`work`]).
//!
//! Time is made of [`costs::Costs`]. What limits many cores is modelled by [lines](line::Line). A core that reads what another has
//! written waits for a hop. Writes to one line, and the holders of a lock, take turns. Threads have cores: with more threads than
//! cores they take turns.
//!
//! # What is not
//!
//! * Direct execution, arms of `join`, cancellation, locks and channels: here a request that is made is run by a loop.
//! * The number of hops that a machine's interconnect can carry, and that hops between sockets are longer.
//! * The order of steps within less than a microsecond, where a step writes several lines: it books them as it begins.
//!
//! The same seed gives the same run. What it says, beside what is measured, stands in `docs/scaling.md`.

#![forbid(unsafe_code)]

pub mod costs;
pub mod line;
pub mod random;
pub mod result;
pub mod shared_queue;
pub mod work;
pub mod world;

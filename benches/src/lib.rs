//! One bench a claim, with the rivals in the same run.
//!
//! * A [`Load`] says what is to be done ("fork-join fib of 27", "a million tasks from inside") and knows how many
//!   operations that is and which value must result. A runtime that skips work fails instead of winning.
//! * A [`Rival`] is a started runtime. It takes a load and does it in its own idiom, or says that it cannot.
//!   [`rivals`] has one file for each; forebear is one of them.
//! * A [`Claim`] is a line of what forebear promises: rows (one load a runtime, since the slow ones get a smaller one)
//!   and goals. [`claims`] has one file for each.
//! * [`measure`] repeats a load in this process and reduces the repeats; [`report`] puts rounds together and judges.
//! * [`kept`] keeps the raw figures in a file. [`page`], [`plot`] and [`svg`] make the published page of them,
//!   and [`machine`] describes the machine.
//!
//! Two ways to run them. `cargo bench -p forebear-benches --bench fib` is criterion's, one runtime after the other in
//! one process. The binary `claims` gives every runtime a process of its own and interleaves them in rounds. The
//! goals are judged by these rounds: an idle pool that polls, a heap left in pieces or a heartbeat thread of one
//! runtime must not be charged to the next. The binary `counts` does a small fixed amount of work under callgrind.
//!
//! The clock is read inside the runtime, in the task that does the load, so that getting into the pool is not counted
//! where it is not the subject.

pub mod claim;
pub mod claims;
pub mod kept;
pub mod load;
pub mod machine;
pub mod measure;
pub mod page;
pub mod plot;
pub mod report;
pub mod rival;
pub mod rivals;
pub mod svg;
pub mod work;

pub use claim::{Bound, Claim, Goal, Measure, NATURAL, Row, Runner};
pub use load::{Across, Arrivals, Contenders, Edges, Fixed, Grows, How, Load, Stand, With};
pub use rival::{Rival, Run};

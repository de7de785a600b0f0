//! Models of the shipped code, by loom, and larger scenarios, by shuttle; see `tests/`.

#[cfg(any(loom, shuttle))]
mod answers;
#[cfg(loom)]
mod by_loom;
#[cfg(shuttle)]
mod by_shuttle;

#[cfg(any(loom, shuttle))]
pub use self::answers::Answers;
#[cfg(loom)]
pub use self::by_loom::{exhaust, explore, explore_long};
#[cfg(shuttle)]
pub use self::by_shuttle::roam;

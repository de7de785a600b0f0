//! The one door to atomics, cells, locks and threads.
//!
//! Everything in forebear that can race imports these names from here and from nowhere else. In an ordinary build they
//! are std's; under `cfg(loom)` they are loom's and under `cfg(shuttle)` shuttle's, so the code that ships is the code that is
//! modelled: small questions by loom, in every order of steps, larger ones by shuttle, in many orders chosen at random.
//! The three modules below have the same surface; an algorithm never mentions them itself.
//!
//! [`UnsafeCell`] is the one type that is not std's under its own name: access goes through `with` and `with_mut`, as
//! the models want it, and compiles to nothing in an ordinary build.

#[cfg(loom)]
mod loom;
#[cfg(shuttle)]
mod shuttle;
#[cfg(not(any(loom, shuttle)))]
mod std;

#[cfg(loom)]
pub use self::loom::*;
#[cfg(shuttle)]
pub use self::shuttle::*;
#[cfg(not(any(loom, shuttle)))]
pub use self::std::*;

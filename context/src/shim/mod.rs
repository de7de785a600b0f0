//! The one door to atomics, cells, locks and threads.
//!
//! Everything in forebear that can race imports these names from here and from nowhere else. In an ordinary build they
//! are std's; under `cfg(loom)` they are loom's, so the code that ships is the code that is modelled. The two modules
//! below have the same surface; an algorithm never mentions `cfg(loom)` itself.
//!
//! [`UnsafeCell`] is the one type that is not std's under its own name: access goes through `with` and `with_mut`, as
//! loom wants it, and compiles to nothing in an ordinary build.

#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod std;

#[cfg(loom)]
pub use self::loom::*;
#[cfg(not(loom))]
pub use self::std::*;

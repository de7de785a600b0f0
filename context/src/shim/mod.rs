//! The one door to atomics, cells, locks and threads.
//!
//! Everything in forebear that can race imports these names from here and from nowhere else. In an ordinary build they
//! are std's; under `cfg(loom)` they are loom's and under `cfg(shuttle)` shuttle's. So the models run the code that
//! ships. Loom answers small questions, in every order of steps; shuttle larger ones, in many orders chosen at random.
//! The three modules below have the same surface; an algorithm never mentions them itself.
//!
//! [`UnsafeCell`] alone differs from std's type of that name. Its accesses go through `with` and `with_mut`, as the
//! models need it, which compile to nothing in an ordinary build.
//!
//! [`mutant!`] plants a mistake that a model must catch, beside the code that ships.

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
pub use crate::mutant;

/// What a thread of the library runs. All are started with this one type: each type of body has a copy of std's code that starts a thread, 2 kB in
/// every program.
pub type ThreadBody = Box<dyn FnOnce() + Send>;

/// Plants a mistake that a model or scenario must catch: `mutant!(NAME, wrong, right)` is `right`, and `wrong` in the build
/// in which `ci/mutants` tries NAME. `mutant!(NAME, wrong)` is nothing, or `wrong`, which mostly ends in a `return`.
/// `mutant!(NAME, (), right)` is a line that the mistake leaves out; with a `mutant!(NAME, right)` elsewhere the mistake moves it.
///
/// Both are compiled in every build, so a mistake cannot go stale unseen. The condition is a literal, and the compiler removes the
/// branch not taken before it makes code of it. Lines have a `cfg` instead where wrong and right do not compile together, because
/// both move a value or declare a name, and where the mistake leaves out several lines.
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal, (), $right:expr $(,)?) => {
        if !cfg!(mutant = $name) {
            $right;
        }
    };
    ($name:literal, $wrong:expr $(,)?) => {
        if cfg!(mutant = $name) {
            $wrong;
        }
    };
    ($name:literal, $wrong:expr, $right:expr $(,)?) => {
        if cfg!(mutant = $name) { $wrong } else { $right }
    };
}

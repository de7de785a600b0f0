//! Where code of the user's is called from inside the runtime: what it may do there, and how the rest is refused.
//!
//! `docs/user-code.md` has the table; a test here bears the name of each of its promises.

#[path = "../../process/death/child.rs"]
mod child;
mod destructors;
mod elsewhere;
mod errors;
mod hooks;
mod no_stack;
mod returned;
#[path = "../../support/mod.rs"]
mod support;
mod unstarted;
mod unwinding;

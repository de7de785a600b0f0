//! Workers: what runs next, how a request is run, and how a wait leaves the worker and comes back to it.

pub(crate) mod above;
pub(crate) mod admission;
pub(crate) mod branches;
pub(crate) mod callbacks;
mod coroutine;
pub(crate) mod dependents;
pub(crate) mod driver;
pub(crate) mod finish;
pub(crate) mod held_back;
pub(crate) mod registration;
pub(crate) mod run;
pub(crate) mod submit;
mod supply;
pub(crate) mod wait;
pub(crate) mod worker;
pub(crate) mod yielding;

//! How a process dies, and how it does not: overflowing stacks, faults, signal handlers and panics.
//!
//! Every test runs its body in a child process ([`child::run`]), since what is tested is the end of a process: its
//! signal, and to the letter what it has said by then.
//!
//! With fibers on OS threads (`--cfg forebear_threads`) stacks are the threads' own and std reports their overflow, so
//! there is nothing to test here.
#![cfg(all(unix, not(forebear_threads)))]

#[cfg(debug_assertions)]
mod assertions;
mod child;
mod faults;
mod fork;
mod forked;
mod overflow;
mod panics;
mod unwinding;

//! Scenarios too large for loom: the whole runtime as it ships, in many orders of its steps, by shuttle.
//!
//! A scenario is a small program with several workers, requests and foreign threads, whose parts meet each other at random. It
//! ends by itself in every order, so a lost wake-up is a deadlock that shuttle finds, and nothing is waited for by sleeping.
//! What it checks at its end, and which answers must occur, is in its own few lines. `loom-tests/README.md` says how to add
//! one.
#![cfg(shuttle)]

mod admission;
mod callbacks;
mod cancelling;
mod cycles;
mod every_wait;
mod exits;
mod groups;
mod holds;
mod joins;
mod locks;
mod shields;
mod shutdown;
mod support;
mod waking;

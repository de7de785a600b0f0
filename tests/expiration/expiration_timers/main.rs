//! Expiration timers of worker processes: who is killed, who is not, and what servers and clients do when the other is strange or gone.
//!
//! Workers are this very program, started again in a role ([`worker`]). Order comes from what they write and read, from events and
//! exit statuses; time is only in the timers themselves.
#![cfg(all(target_os = "linux", feature = "local-timers"))]

mod ends;
mod groups;
mod hostile;
mod reapers;
mod servers;
mod strangers;
mod unsent;
mod worker;

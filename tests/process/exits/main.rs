//! What happens to whom when a thread exits, the process is put into a sandbox, or ends.
//!
//! Every test runs its body in a child process ([`child::run`]), since it is about the end of a process or changes it for good.
#![cfg(all(target_os = "linux", not(forebear_threads)))]

#[path = "../death/child.rs"]
mod child;

mod borrowers;
mod endings;
mod filter;
#[path = "../death/forked.rs"]
mod forked;
mod locals;
mod sandbox;
mod threads;

/// Has warnings written to standard error, also where a build would send them to `tracing`.
fn warned(builder: forebear::RuntimeBuilder) -> forebear::RuntimeBuilder {
    builder.on_warning(|what| eprintln!("forebear: {what}"))
}

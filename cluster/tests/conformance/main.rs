//! One suite for all engines: each row of `docs/cluster.md` that an engine must keep is a function of a [`Bed`](bed::Bed).
//!
//! What tasks do is seen through files alone, so an engine whose workers are other processes runs the same rows. A test waits for what it needs to have happened, and
//! nothing is ordered by time. The crate `forebear-cluster-nats` runs the same files over its engine.

#[macro_use]
mod rows;

mod bed;
mod beds;
mod beyond;
mod desk;
mod queue;
mod resources;
#[path = "../support/until.rs"]
mod until;
mod values;
mod wild;
mod workers;

pub(crate) use until::until;

conform! { in_process: crate::beds::InProcessBed }
#[cfg(target_os = "linux")]
conform! { local_processes: crate::beds::LocalProcessesBed }

/// What the worker processes of the suite run: this program, with this test alone.
#[test]
fn worker_process() {
    forebear_cluster::worker::entry(desk::all_tasks());
}

//! The suite of `cluster/tests/conformance/` over a real `nats-server`. `ci/nats` starts the server; without it each test is ignored, by name.

#[macro_use]
#[path = "../../tests/conformance/rows.rs"]
mod rows;

#[path = "../../tests/conformance/bed.rs"]
mod bed;
#[path = "../../tests/conformance/beyond.rs"]
mod beyond;
#[path = "../../tests/conformance/desk.rs"]
mod desk;
#[path = "../../tests/conformance/queue.rs"]
mod queue;
#[path = "../../tests/conformance/resources.rs"]
mod resources;
mod support;
#[path = "../../tests/conformance/values.rs"]
mod values;
#[path = "../../tests/conformance/wild.rs"]
mod wild;
#[path = "../../tests/conformance/workers.rs"]
mod workers;

use std::time::Duration;

use forebear_cluster::engine::Engine;
use forebear_cluster_nats::{Nats, NatsControl};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use support::until;

pub(crate) struct NatsBed(NatsControl);

impl bed::Bed for NatsBed {
    const ENDS_WORKERS: bool = true;

    fn engine_of_grace(workers: usize, cancel_grace: Duration) -> (Self, impl Engine) {
        // A lease so long that no test meets its end: deaths are seen by the process that started the worker.
        let engine = Nats::new(&support::shared_url(), &support::job())
            .token(&support::token())
            .workers(workers)
            .lease(Duration::from_secs(60))
            .cancel_grace(cancel_grace)
            .args(["worker_process", "--exact", "--nocapture"]);
        (NatsBed(engine.control()), engine)
    }

    fn add(&self, name: &str) {
        self.0.add(name).unwrap();
    }

    fn kill(&self, name: &str) {
        self.0.kill(name);
    }

    fn lose(&self, _: &str, process: u32) {
        kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
    }

    fn drain(&self, name: &str) {
        self.0.drain(name);
    }
}

conform! { nats: crate::NatsBed, [#[ignore = "needs a server: ci/nats"]] }

/// What the worker processes of the suite run: this program, with this test alone.
#[test]
fn worker_process() {
    forebear_cluster_nats::worker::entry(desk::all_tasks());
}

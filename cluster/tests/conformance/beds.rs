//! The [`Bed`]s of the engines of this crate.

use std::time::Duration;

use forebear_cluster::engine::Engine;
use forebear_cluster::{InProcess, InProcessControl};

#[cfg(target_os = "linux")]
use rustix::process::{Pid, Signal, kill_process};

use crate::bed::Bed;

pub(crate) struct InProcessBed(InProcessControl);

impl Bed for InProcessBed {
    const ENDS_WORKERS: bool = false;

    fn engine_of_grace(workers: usize, _: Duration) -> (Self, impl Engine) {
        let engine = InProcess::new(workers);
        (InProcessBed(engine.control()), engine)
    }

    fn add(&self, name: &str) {
        self.0.add(name).unwrap();
    }

    fn kill(&self, name: &str) {
        self.0.fail(name);
    }

    fn lose(&self, name: &str, _: u32) {
        self.0.fail(name);
        self.add(name);
    }

    fn drain(&self, name: &str) {
        self.0.drain(name);
    }
}

#[cfg(target_os = "linux")]
pub(crate) struct LocalProcessesBed(forebear_cluster::LocalProcessesControl);

#[cfg(target_os = "linux")]
impl Bed for LocalProcessesBed {
    const ENDS_WORKERS: bool = true;

    fn engine_of_grace(workers: usize, cancel_grace: Duration) -> (Self, impl Engine) {
        let engine = forebear_cluster::LocalProcesses::new(workers)
            .args(["worker_process", "--exact", "--nocapture"])
            .cancel_grace(cancel_grace);
        (LocalProcessesBed(engine.control()), engine)
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

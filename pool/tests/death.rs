//! What ends the process: the body of a worker that panics. Run in a child, which is this program again.

use std::env;
use std::process::Command;
use std::sync::Arc;

use forebear_pool::{Engine, Options, Signals, Supply, Worker};

const CHILD: &str = "FOREBEAR_POOL_TEST_CHILD";

struct Nothing(Signals);

impl Supply for Nothing {
    type Task = ();

    fn signals(&self) -> &Signals {
        &self.0
    }

    fn take(&self, _: usize) -> Option<()> {
        None
    }

    fn steal(&self, _: usize) -> Option<()> {
        None
    }

    fn best(&self, _: usize) -> u64 {
        u64::MAX
    }
}

#[test]
fn a_body_that_panics_ends_the_process_and_says_whose_it_was() {
    if env::var_os(CHILD).is_some() {
        let body = |_: &Worker<Nothing>| panic!("a mistake in a scheduler");
        let engine = Engine::start(Options::new(1), Arc::new(Nothing(Signals::new(1))), body).unwrap();
        engine.join();
        return;
    }
    let name = "a_body_that_panics_ends_the_process_and_says_whose_it_was";
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("a mistake in a scheduler"), "{said}");
    assert!(said.contains("Worker #0 panicked outside any task"), "{said}");
}

//! A destructor that waits while a panic unwinds it, beside others of its worker, ends the process by name.

use forebear::{Request, Runtime, spawn, yield_now};

use crate::child;

struct WaitsInDrop(Request<()>);

impl Drop for WaitsInDrop {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

#[test]
fn a_wait_in_a_destructor_that_a_panic_runs_ends_the_process_if_others_would_run_meanwhile() {
    let end = child::run("", &[], |_| {
        Runtime::builder().workers(1).build().unwrap().run(|| {
            let slow = Request::builder().own_stack().spawn(|| while yield_now().is_ok() {});
            let bad = Request::builder().name("the one that panics").build(move || {
                let _cleans_up = WaitsInDrop(slow);
                panic!("on purpose");
            });
            spawn(move || drop(bad.take())).wait().unwrap();
        });
    });
    assert!(end.stderr.contains("the one that panics") && end.stderr.contains("destructor"), "{end:#?}");
    assert!(!end.stderr.contains("survived"), "{end:#?}");
}

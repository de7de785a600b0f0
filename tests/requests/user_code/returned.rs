//! Errors of parents that go with the headers of children which other threads have ended, and so returned to the worker that made them.

use std::fmt;
use std::sync::mpsc;

use forebear::pool::WorkerState;
use forebear::{Request, Runtime, spawn, try_spawn};

use crate::support::{Count, Flag, Kind, Probe, Watchdog, hold_thread_until, hold_workers};

/// A runtime whose failures nobody is told of.
fn runtime(workers: usize) -> Runtime {
    Kind::Workers(workers).builder().on_unhandled_failure(|_| ()).build().unwrap()
}

/// A request that is over, whose parent has failed with `error` on a worker; no other handle of that parent is left.
fn child_of_a_failure<E: std::error::Error + Send + Sync + 'static>(
    runtime: &Runtime,
    error: E,
) -> Request<()> {
    let (give, given) = mpsc::channel();
    let parent = runtime.enter(|| {
        try_spawn(move || -> forebear::Result<()> {
            let child = spawn(|| ());
            child.wait()?;
            give.send(child).unwrap();
            Err(error.into())
        })
    });
    let child = given.recv().unwrap();
    assert!(parent.wait().is_err());
    child
}

/// An error that says when it goes.
#[derive(Debug)]
struct Told(#[expect(dead_code, reason = "for its destructor")] Probe);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("told")
    }
}

impl std::error::Error for Told {}

#[test]
fn an_error_that_another_thread_ends_goes_although_its_worker_sleeps() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let runtime = runtime(workers);
        let gone = Count::new();
        let child = child_of_a_failure(&runtime, Told(gone.probe()));
        hold_thread_until(|| runtime.states().iter().all(|state| *state == WorkerState::Sleeping));
        assert_eq!(gone.get(), 0);
        drop(child);
        hold_thread_until(|| gone.get() == 1);
    }
}

/// The same where the parent has ended well, and what it descends from has failed.
#[test]
fn an_error_of_an_ancestor_goes_although_its_worker_sleeps() {
    let _dog = Watchdog::new("an ancestor's error");
    let runtime = runtime(1);
    let gone = Count::new();
    let (give, given) = mpsc::channel();
    let error = Told(gone.probe());
    let ancestor = runtime.enter(|| {
        try_spawn(move || -> forebear::Result<()> {
            let between = spawn(move || {
                let last = spawn(|| 7);
                last.wait().unwrap();
                give.send(last).unwrap();
            });
            between.wait()?;
            Err(error.into())
        })
    });
    let descendant = given.recv().unwrap();
    assert!(ancestor.wait().is_err());
    drop(ancestor);
    hold_thread_until(|| runtime.states()[0] == WorkerState::Sleeping);
    assert_eq!(gone.get(), 0);
    drop(descendant);
    hold_thread_until(|| gone.get() == 1);
}

/// An error whose destructor meets that of another.
#[derive(Debug)]
struct Meets {
    here: Flag,
    there: Flag,
    gone: Count,
}

impl fmt::Display for Meets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("meets another")
    }
}

impl std::error::Error for Meets {}

impl Drop for Meets {
    fn drop(&mut self) {
        self.here.raise();
        self.there.wait();
        self.gone.up();
    }
}

/// The worker is held while both come, so it takes both in at once.
#[test]
fn errors_that_go_together_may_wait_for_each_other() {
    for workers in [1, 2] {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let runtime = runtime(workers);
        let (one, other, gone) = (Flag::new(), Flag::new(), Count::new());
        let children = [(&one, &other), (&other, &one)].map(|(here, there)| {
            let error = Meets { here: here.clone(), there: there.clone(), gone: gone.clone() };
            child_of_a_failure(&runtime, error)
        });
        let held = hold_workers(&runtime);
        drop(children);
        held.release();
        hold_thread_until(|| gone.get() == 2);
    }
}

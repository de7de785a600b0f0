//! What the tests of order share: a log of what happened, a gate that no worker is needed to open, and one worker.

use std::sync::Arc;
use std::thread;

use forebear::{Priority, Request, RequestBuilder, Runtime, State};

use super::locked::Locked;
use super::{Flag, Joined, Watchdog, hold_workers, runtime, until};

/// What happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Locked<Vec<String>>>);

impl Log {
    pub(crate) fn note(&self, what: impl Into<String>) {
        let what = what.into();
        self.0.with(|lines| lines.push(what));
    }

    pub(crate) fn told(&self) -> Vec<String> {
        self.0.with(|lines| lines.clone())
    }

    /// Checks that this is what happened.
    #[track_caller]
    pub(crate) fn check(&self, expected: &[&str]) {
        assert_eq!(self.told(), expected);
    }
}

/// A request to wait for that runs on a foreign thread, and so ends whatever the workers do.
pub(crate) struct Gate {
    pub(crate) request: Request<()>,
    opened: Flag,
    thread: thread::JoinHandle<()>,
}

impl Gate {
    pub(crate) fn new(runtime: &Runtime) -> Gate {
        let (opened, started) = (Flag::new(), Flag::new());
        let request = {
            let (opened, started) = (opened.clone(), started.clone());
            runtime.enter(|| {
                Request::new(move || {
                    started.raise();
                    opened.wait();
                })
            })
        };
        let runner = request.clone();
        let thread = thread::spawn(move || {
            runner.wait().unwrap();
        });
        started.wait();
        Gate { request, opened, thread }
    }

    /// Returns when all who wait have been woken.
    pub(crate) fn open(self) {
        self.opened.raise();
        self.thread.joined().unwrap();
    }
}

/// A description of a root with a stack of its own.
pub(crate) fn root(runtime: &Runtime) -> RequestBuilder {
    Request::builder().on(runtime).own_stack()
}

/// Runs the test on one worker.
#[track_caller]
pub(crate) fn on_one(test: impl FnOnce(&Runtime, Log)) {
    let _dog = Watchdog::new("one worker");
    let runtime = runtime(1);
    test(&runtime, Log::default());
}

/// Requests of several priorities that call `wait` one after the other and then note who they are; they sleep there when this
/// returns. On one worker. In the order in which they should go on they are [`BY_URGENCY`].
pub(crate) fn wait_by_urgency(
    runtime: &Runtime,
    log: &Log,
    wait: impl FnOnce() + Clone + Send + 'static,
) -> Vec<Request<()>> {
    let comers = [
        ("normal 1", Priority::NORMAL),
        ("background", Priority::BACKGROUND),
        ("normal 2", Priority::NORMAL),
        ("urgent", Priority::URGENT),
    ];
    let comer = |(name, priority)| {
        let (wait, log) = (wait.clone(), log.clone());
        let request = root(runtime).priority(priority).spawn(move || {
            wait();
            log.note(name);
        });
        until(|| request.state() == State::Suspended);
        request
    };
    let waiting = comers.into_iter().map(comer).collect();
    // The last has come to the list when something else can run.
    runtime.spawn(|| ()).wait().unwrap();
    waiting
}

/// See [`wait_by_urgency`].
pub(crate) const BY_URGENCY: [&str; 4] = ["urgent", "normal 1", "normal 2", "background"];

/// Opens the gate while nothing can run and a root of ordinary urgency has come, and waits for all of them: what has become more
/// urgent than that one goes before it. On one worker.
pub(crate) fn open_beside_a_normal_one(runtime: &Runtime, log: &Log, gate: Gate, others: &[&Request<()>]) {
    // Those that wait have come to their lists when something else can run.
    runtime.spawn(|| ()).wait().unwrap();
    let held = hold_workers(runtime);
    let normal = {
        let log = log.clone();
        root(runtime).spawn(move || log.note("normal"))
    };
    gate.open();
    held.release();
    for request in others.iter().copied().chain([&normal]) {
        request.wait().unwrap();
    }
}

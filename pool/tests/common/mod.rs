//! What the tests share: a gate to hold workers at, and a list to note things in.
#![allow(dead_code)] // no test uses all of it

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A gate: closed until opened, then open for good.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate::default()
    }

    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }
}

/// A list that grows, and can be waited for.
pub(crate) struct Notes<T>(Arc<(Mutex<Vec<T>>, Condvar)>);

impl<T> Clone for Notes<T> {
    fn clone(&self) -> Self {
        Notes(Arc::clone(&self.0))
    }
}

impl<T: Clone> Notes<T> {
    pub(crate) fn new() -> Notes<T> {
        Notes(Arc::new((Mutex::new(Vec::new()), Condvar::new())))
    }

    pub(crate) fn add(&self, note: T) {
        self.0.0.lock().unwrap().push(note);
        self.0.1.notify_all();
    }

    /// All notes, once there are `count` of them.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<T> {
        let mut notes = self.0.0.lock().unwrap();
        while notes.len() < count {
            notes = self.0.1.wait(notes).unwrap();
        }
        notes.clone()
    }

    pub(crate) fn now(&self) -> Vec<T> {
        self.0.0.lock().unwrap().clone()
    }
}

/// Waits for something that comes about without a signal, such as a state that is only displayed.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::yield_now();
    }
}

//! A thread that only looks whether a context waits, as it ships: `Context::is_parked`, from which a request's state is read. A thread that
//! finds the context parked also finds what it waits for.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | a wait is told from when it has begun | it is not in the list yet, so a cancel finds nobody who wants the target | `parked_as_begun` |
//! | the slot says relaxed that a wait has begun | what was told of the last wait is taken for this one | `begun_relaxed` |
//! | the flag is raised relaxed | it is seen, and the list as it was before | `parked_relaxed` |
#![cfg(loom)]

use std::ptr::{self, NonNull};

use forebear_context::context::{Cause, Context, ForeignContext, Reason, Ticket, unpark};
use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Arc, Mutex, thread};
use forebear_loom_tests::exhaust;

/// What is waited for: a list of one, and a look at it without the lock.
#[derive(Default)]
struct Target {
    list: Mutex<List>,
    has_waiter: AtomicBool,
}

#[derive(Default)]
struct List {
    waiter: Option<Ticket>,
    over: bool,
}

struct Waiter(ForeignContext);

// SAFETY: the cells are its own thread's.
unsafe impl Send for Waiter {}
// SAFETY: as above.
unsafe impl Sync for Waiter {}

impl Waiter {
    fn context(&self) -> &Context {
        self.0.context()
    }

    /// Ends the wait that goes on here.
    fn wake(&self, ticket: Ticket) {
        // SAFETY: C1: the waiter is kept by who calls this.
        assert!(unsafe { unpark(NonNull::from(self.context()), ticket, Cause::Woken) });
    }

    fn begin(&self) -> Ticket {
        // SAFETY: C2: by the thread that stands for its stack; C4: for nothing that is followed.
        unsafe { self.context().begin(Reason::Request, ptr::null_mut()) }
    }

    /// A wait that is over before it is parked.
    fn wait_for_nothing(&self) {
        let ticket = self.begin();
        self.wake(ticket);
        // SAFETY: on the context's own stack, after `begin`.
        unsafe { self.context().park(None) };
    }

    fn wait(&self, target: &Target) {
        let ticket = self.begin();
        let mut list = target.list.lock().unwrap();
        if list.over {
            // SAFETY: C2: begun above, and not parked.
            return unsafe { self.context().abandon(ticket) };
        }
        list.waiter = Some(ticket);
        target.has_waiter.store(true, Ordering::Relaxed);
        drop(list);
        // SAFETY: as above.
        unsafe { self.context().park(None) };
    }
}

#[test]
fn who_is_seen_to_wait_is_found_where_it_waits() {
    exhaust(&["seen", "unseen", "over before"], |answers| {
        let (waiter, target) = (Arc::new(Waiter(ForeignContext::new())), Arc::new(Target::default()));
        // So that the flag is up from an earlier wait.
        waiter.wait_for_nothing();
        let (there, its, answers) = (waiter.clone(), target.clone(), answers.clone());
        let looks = thread::spawn(move || {
            let parked = there.context().is_parked();
            let found = its.has_waiter.load(Ordering::Relaxed);
            assert!(!parked || found, "a waiter that is in no list");
            let waiter = {
                let mut list = its.list.lock().unwrap();
                list.over = true;
                list.waiter.take()
            };
            answers.note(match waiter {
                Some(_) if parked => "seen",
                Some(_) => "unseen",
                None => "over before",
            });
            if let Some(ticket) = waiter {
                there.wake(ticket);
            }
        });
        waiter.wait(&target);
        assert!(!waiter.context().is_parked());
        looks.join().unwrap();
    });
}

//! The count of a scope's jobs: `Jobs`, as it ships, and a foreign context's wait.
//!
//! The frame that jobs borrow from is a cell that loom watches: jobs read it until they are counted down, and the owner writes it when its
//! wait is over, as if the frame were used for something else. The fibers are addresses that are only compared.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | a scope without fast spawns names a null owner | threads without a fiber count in the plain cell at once; one count is lost | `nobody_is_null` |
//! | the owner counts in the plain cell when that has been read | the count is lost, and the frame goes under the job | `owner_counts_on`, and for spawns that are not fast `owner_counts_in_a_closed_cell` |
//! | the decrement is no release and no acquire | the owner does not see what the jobs did | `job_done_relaxed` |
//! | an owner that finds all jobs over does not acquire | the same | `jobs_over_relaxed` |
#![cfg(loom)]

use std::ptr::{self, NonNull};

use forebear_context::context::{ForeignContext, Reason};
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_loom_tests::{exhaust, explore};
use forebear_runtime::model::jobs::Jobs;

/// The owner's fiber.
const OWNER: *mut () = ptr::without_provenance_mut(64);
/// Of a thread that no runtime knows.
const NONE: *const () = ptr::null();

/// A scope, and the frame that its jobs borrow from.
struct Scope {
    jobs: Jobs,
    frame: UnsafeCell<u32>,
}

// SAFETY: that is what the models ask: loom sees every access of the frame.
unsafe impl Sync for Scope {}
// SAFETY: as above.
unsafe impl Send for Scope {}

impl Scope {
    fn new(spawns_fast: bool) -> Arc<Scope> {
        let fast = spawns_fast.then(|| NonNull::new(OWNER).unwrap());
        Arc::new(Scope { jobs: Jobs::new(fast), frame: UnsafeCell::new(7) })
    }

    /// Counts a job, as `ScopeCore::count_spawn` does.
    fn count(&self, spawner: *const ()) {
        // SAFETY: JC2: each model counts before the body is over, or in a job.
        if !unsafe { self.jobs.count_fast(spawner) } {
            // SAFETY: as above; the models tell the owner from others.
            unsafe { self.jobs.count(ptr::eq(spawner, OWNER)) };
        }
    }

    /// Runs a job that was counted.
    fn run(&self) {
        // SAFETY: that is what the models ask.
        self.frame.with(|frame| assert_eq!(unsafe { *frame }, 7, "the frame has been left"));
        // SAFETY: JC3: the last access.
        unsafe { self.jobs.done(1) };
    }

    /// The end of the body, as `ScopeCore::wait`; `inside` is what runs on the owner's stack inside the wait. Answers whether jobs were left.
    fn wait(&self, inside: impl FnOnce()) -> bool {
        // SAFETY: by the owner, before it waits.
        if unsafe { self.jobs.are_over() } {
            // SAFETY: that is what the models ask.
            self.frame.with_mut(|frame| unsafe { *frame = 0 });
            return false;
        }
        let foreign = ForeignContext::new();
        let context = foreign.context();
        // SAFETY: C2: this thread's own context; nothing follows the target.
        let ticket = unsafe { context.begin(Reason::Scope, ptr::null_mut()) };
        // SAFETY: once, and it is waited for below.
        let left = !unsafe { self.jobs.close(context, ticket) };
        if left {
            inside();
            // SAFETY: this thread's context, after `begin`.
            unsafe { context.park(None) };
        } else {
            // SAFETY: C2: begun above, and given to nobody.
            unsafe { context.abandon(ticket) };
        }
        // SAFETY: that is what the models ask.
        self.frame.with_mut(|frame| unsafe { *frame = 0 });
        left
    }
}

/// Two jobs of a scope outside any request each have a thread that no runtime knows spawn another: are all four waited for?
#[test]
fn threads_that_no_runtime_knows_spawn_into_a_scope_at_once() {
    explore(&["all over", "waited"], |answers| {
        let scope = Scope::new(false);
        let spawners = [0, 1].map(|_| {
            scope.count(OWNER);
            let scope = scope.clone();
            thread::spawn(move || {
                scope.count(NONE);
                scope.run();
                scope.run();
            })
        });
        answers.note(if scope.wait(|| ()) { "waited" } else { "all over" });
        spawners.into_iter().for_each(|spawner| spawner.join().unwrap());
    });
}

/// The same of a scope inside a request that is stopped meanwhile, while its owner spawns.
#[test]
fn threads_that_no_runtime_knows_spawn_into_a_scope_that_is_stopped() {
    explore(&["all over", "waited"], |answers| {
        let scope = Scope::new(true);
        let spawners = [0, 1].map(|_| {
            scope.count(OWNER);
            let scope = scope.clone();
            thread::spawn(move || {
                scope.jobs.stop_fast();
                scope.count(NONE);
                scope.run();
                scope.run();
            })
        });
        scope.count(OWNER);
        // SAFETY: JC3: it was taken.
        unsafe { scope.jobs.taken(OWNER) };
        answers.note(if scope.wait(|| ()) { "waited" } else { "all over" });
        spawners.into_iter().for_each(|spawner| spawner.join().unwrap());
    });
}

/// A destructor on the owner's stack spawns inside the wait: is that job waited for, too?
#[test]
fn the_owner_spawns_while_it_waits() {
    the_owner_spawns_inside_its_wait(true);
}

/// The same outside any request, where no spawn is fast.
#[test]
fn the_owner_outside_spawns_while_it_waits() {
    the_owner_spawns_inside_its_wait(false);
}

fn the_owner_spawns_inside_its_wait(spawns_fast: bool) {
    exhaust(&["waited"], move |answers| {
        let scope = Scope::new(spawns_fast);
        scope.count(OWNER);
        let dropped = scope.clone();
        let mut job = None;
        // The first job is counted down after its captures are dropped, which is inside the wait.
        let left = scope.wait(|| {
            dropped.count(OWNER);
            let other = dropped.clone();
            job = Some(thread::spawn(move || other.run()));
            dropped.run();
        });
        assert!(left);
        answers.note("waited");
        job.unwrap().join().unwrap();
    });
}

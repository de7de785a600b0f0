//! Which thread owns which arena, and what ends on a foreign thread.

use std::fmt;
use std::sync::mpsc; // not modelled: a test
use std::thread::{self, ThreadId};

use forebear_context::context::Reason;

use super::*;
use crate::schedule::worker::HasWorkers;
use crate::shared::thread::{outside_a_wait, owns};
use crate::{Error, Request, Runtime};

fn arena_of(runtime: &Runtime) -> NonNull<Arena> {
    arena_for(runtime.shared()).unwrap()
}

#[test]
fn a_thread_owns_its_arenas_and_nobody_elses() {
    let runtimes = [(); 2].map(|()| Runtime::builder().workers(1).build().unwrap());
    let own = runtimes.each_ref().map(arena_of);
    assert_ne!(own[0], own[1], "an arena for each runtime");
    assert!(own.iter().all(|arena| owns(arena.as_ptr())));
    let worker = runtimes[0].shared().workers()[0].arena();
    assert!(!owns(worker), "a worker's");
    assert!(!owns(ptr::null()));
    let own = own.map(|arena| arena.as_ptr().addr());
    thread::scope(|scope| {
        scope.spawn(|| {
            let at = |n: usize| ptr::with_exposed_provenance::<Arena>(own[n]);
            assert!(!owns(at(0)) && !owns(at(1)), "another thread's");
            let here = arena_of(&runtimes[0]);
            assert!(here.as_ptr().addr() != own[0] && owns(here.as_ptr()) && !owns(at(0)));
        });
    });
}

#[test]
fn a_arena_that_is_lent_to_the_next_thread_is_the_next_threads() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let on_a_thread = || {
        let there = || {
            let arena = arena_of(&runtime);
            (arena.as_ptr().expose_provenance(), owns(arena.as_ptr()))
        };
        thread::scope(|scope| scope.spawn(there).join().unwrap())
    };
    let (first, second) = (on_a_thread(), on_a_thread());
    assert_eq!(first, second);
    assert!(first.1);
    assert!(!owns(ptr::with_exposed_provenance(first.0)), "never ours");
}

/// What ends meanwhile asks this, and must neither be told that the arena is this thread's nor find the list locked.
#[test]
fn a_arena_that_is_being_given_back_is_nobodys() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let arena = arena_of(&runtime);
    FOREIGN.with(|foreign| {
        let _given_back = foreign.arenas.borrow_mut();
        assert!(!owns(arena.as_ptr()));
    });
    assert!(owns(arena.as_ptr()));
}

/// What a thread makes outside, and drops there, is back in its arena at once: not on its way, where the next round would not find it.
#[test]
fn what_ends_on_its_own_foreign_thread_makes_no_journey() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let make = || runtime.enter(|| crate::Request::new(|| 7));
    // SAFETY: M3: this thread's, and the runtime is there.
    let arena = unsafe { arena_of(&runtime).as_ref() };
    for _ in 0..3 {
        drop(make());
        assert!(!arena.has_returns());
    }
    // One that ends elsewhere does travel.
    let request = make();
    thread::scope(|scope| drop(scope.spawn(move || drop(request))));
    assert!(arena.has_returns());
}

/// An error whose destructor says where it is called.
#[derive(Debug)]
struct Says(mpsc::Sender<ThreadId>);

impl fmt::Display for Says {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("says")
    }
}

impl std::error::Error for Says {}

impl Drop for Says {
    fn drop(&mut self) {
        self.0.send(thread::current().id()).unwrap();
    }
}

/// Code of the user's that waits would begin another wait on the same context.
#[test]
fn between_the_begin_of_a_wait_and_its_park_no_code_of_the_users_is_called() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (say, said) = mpsc::channel();
    let error = Says(say.clone());
    let failed = runtime.enter(|| Request::try_new(move || -> Result<(), Error> { Err(error.into()) }));
    assert!(failed.wait().is_err());
    let context = fiber().unwrap().context();
    // SAFETY: C2: this thread's own, and not in a wait; C4: for nothing, and it is taken back below.
    let ticket = unsafe { context.begin(Reason::None, ptr::null_mut()) };
    outside_a_wait(move || say.send(thread::current().id()).unwrap());
    assert_ne!(said.recv().unwrap(), thread::current().id(), "what ends with a runtime");
    drop(failed);
    assert!(said.try_recv().is_err(), "what a request has failed with");
    // SAFETY: C2: begun above, and not parked.
    unsafe { context.abandon(ticket) };
    // The next wait.
    settle_arenas();
    assert_eq!(said.try_recv(), Ok(thread::current().id()));
}

/// What is suspended there on another thread's seat is for that thread.
#[test]
fn a_thread_takes_no_seat_where_the_last_handle_has_gone_and_nothing_is_for_it() {
    let runtime = Runtime::builder().workers(0).build().unwrap();
    let shared = runtime.shared().clone();
    runtime.run(|| ());
    assert!(seat_taken(&shared).is_some());
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let other = thread::spawn({
        let runtime = runtime.clone();
        move || {
            let suspended = runtime.spawn(|| while crate::yield_now().is_ok() {});
            drop(runtime);
            tell.send(()).unwrap();
            ended.recv().unwrap();
            suspended.cancel();
            let _ = suspended.wait();
        }
    });
    told.recv().unwrap();
    // The last one: nothing is left on this thread's seat.
    drop(runtime);
    assert!(seat_taken(&shared).is_none());
    let Seats { seats, lacking, others } = seats();
    assert!(seats.is_empty() && lacking.is_empty() && others);
    end.send(()).unwrap();
    other.join().unwrap();
}

//! Raids as they ship: who publishes what another worker keeps private, against that worker's plain stores.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | no fence on the owner's side | neither sees the other: run twice | `local_without_light_fence` |
//! | none on the raider's | the same | `revoked_without_heavy_fence` |
//! | the owner does not say what it touches | the same | `touched_untold` |
//! | a waiter starts a local request before it touches the entry | the raid finds one that has started, and nothing undoes the start | `started_before_the_touch` |
//! | the waiter does not touch the entry at all | the raider reads a header that ends meanwhile | `started_untouched` |
//! | the raider does not look what is touched | the same | `raided_while_touched` |
//! | the owner does not wait for the raider | the raider reads what has ended | `settled_beside_the_raider` |
//! | a deadline's entry without a link of its own | the timer gives up the entry's | `limited_without_a_link` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::cell::Cell;
use std::sync::Arc;

use forebear_context::shim::thread::JoinHandle;
use forebear_runtime::model::word::{Cancel, LocalOwner, SPAWNED, SPAWNED_DETACHED, SPAWNED_LIMITED};

use self::cell::{BLOCKING, Job, List, Took, explore, told, with};

const PATIENT: u32 = 100;
/// Stands for the reason that a deadline has come.
const DEADLINE: u32 = 2;

/// A worker that has nothing to do: raids, and runs what it has published.
fn raider(list: &Arc<List>) -> JoinHandle<&'static str> {
    with(list, |list| match (list.raid(), list.run_published()) {
        (0, _) => "raided nothing",
        (_, Some(true)) => "ran it",
        (_, _) => "found it stale",
    })
}

/// The timer thread, which fires the deadline of a request, and gives up the entry's link.
fn timer(job: &Arc<Job>) -> JoinHandle<Cancel> {
    with(job, |job| {
        let came = job.abort(DEADLINE);
        job.release_link();
        came
    })
}

/// One that is listed, of a list that is raided.
fn listed(bits: u64) -> (Arc<List>, Arc<Job>) {
    let list = List::new();
    let job = Job::in_list(bits, &list);
    job.enter(&list);
    (list, job)
}

/// What its owner does with an entry that is stale, or whose handle has gone.
fn pop(job: &Job, listed: &Cell<bool>) {
    if listed.get() {
        job.run_own_entry(listed);
    }
}

#[test]
fn what_is_taken_by_value_is_raided() {
    explore(&["raided nothing", "ran it", "found it stale"], |answers| {
        let (list, job) = listed(SPAWNED);
        let raider = raider(&list);
        let listed = Cell::new(true);
        let took = job.take(&job.waiter(&BLOCKING), &listed, || {});
        assert!(matches!(took, Took::Alone | Took::Value));
        pop(&job, &listed);
        answers.note(raider.join().unwrap());
        job.check();
    });
}

#[test]
fn what_is_popped_is_raided() {
    explore(&["raided nothing", "ran it", "found it stale"], |answers| {
        let (list, job) = listed(SPAWNED_DETACHED);
        let raider = raider(&list);
        pop(&job, &Cell::new(true));
        answers.note(raider.join().unwrap());
        job.check();
    });
}

#[test]
fn what_is_let_go_of_and_popped_is_raided() {
    explore(&["raided nothing", "ran it", "found it stale"], |answers| {
        let (list, job) = listed(SPAWNED);
        let raider = raider(&list);
        job.drop_own_handle();
        pop(&job, &Cell::new(true));
        answers.note(raider.join().unwrap());
        job.check();
    });
}

/// A second raid goes on behind what the first has looked at, and begins anew when the owner has settled.
#[test]
fn what_is_raided_twice_is_taken() {
    explore(&["raided nothing", "once"], |answers| {
        let (list, job) = listed(SPAWNED);
        let raider = with(&list, |list| (list.raid(), list.raid()));
        let listed = Cell::new(true);
        assert_ne!(job.take(&job.waiter(&BLOCKING), &listed, || {}), Took::Shared);
        pop(&job, &listed);
        answers.note(match raider.join().unwrap() {
            (0, 0) => "raided nothing",
            (1, 0) | (0, 1) => "once",
            _ => "twice",
        });
        while list.run_published().is_some() {}
        job.check();
    });
}

/// It is entered while somebody raids: whoever sees the link sees what it leads to.
#[test]
fn what_is_entered_is_raided() {
    explore(&["raided nothing", "ran it"], |answers| {
        let list = List::new();
        let job = Job::in_list(SPAWNED, &list);
        let raider = raider(&list);
        job.enter(&list);
        answers.note(raider.join().unwrap());
        let listed = Cell::new(true);
        assert_ne!(job.take(&job.waiter(&BLOCKING), &listed, || {}), Took::Shared);
        pop(&job, &listed);
        job.check();
    });
}

/// It is entered in the middle of a list while another worker raids. The raider meets it, or leaves it, or ends its walk in front of it; each entry runs once.
#[test]
fn what_is_entered_between_two_entries_is_raided_once_with_them() {
    explore(&["raided one", "raided two", "raided three"], |answers| {
        let (list, first) = listed(SPAWNED_DETACHED);
        let [middle, last] = [(); 2].map(|()| Job::in_list(SPAWNED_DETACHED, &list));
        last.enter_behind(&first);
        let raider = with(&list, |list| list.raid());
        middle.enter_behind(&first);
        answers.note(match raider.join().unwrap() {
            1 => "raided one",
            2 => "raided two",
            3 => "raided three",
            _ => "raided nothing, or too much",
        });
        while list.run_published().is_some() {}
        for job in [&last, &middle, &first] {
            pop(job, &Cell::new(true));
            job.check();
        }
    });
}

/// It is born with a deadline, which its maker arms before it enters the request (`list_built` in `api/builder/make.rs`). So the timer may end the request that
/// stands nowhere yet, while another worker raids: its entry is stale then, and the counts of all go.
#[test]
fn a_deadline_that_comes_before_its_request_is_entered_ends_it_once() {
    explore(&["ended", "marked", "too late", "found it stale", "raided nothing", "ran it"], |answers| {
        let list = List::new();
        let job = Job::in_list(SPAWNED_LIMITED, &list);
        let timer = timer(&job);
        let raider = raider(&list);
        job.enter_known(&list);
        let listed = Cell::new(true);
        let took = job.take(&job.waiter(&BLOCKING), &listed, || {});
        pop(&job, &listed);
        let came = timer.join().unwrap();
        assert_eq!(took == Took::Cancelled, matches!(came, Cancel::Ended | Cancel::Marked));
        answers.note(told(came));
        answers.note(raider.join().unwrap());
        job.check();
    });
}

/// The same of one whose handle goes at once: the thread that gives up the last count ends the header.
#[test]
fn a_deadline_that_comes_before_its_request_is_entered_meets_the_drop_of_its_handle() {
    explore(&["ended", "marked", "too late"], |answers| {
        let list = List::new();
        let job = Job::in_list(SPAWNED_LIMITED, &list);
        let timer = timer(&job);
        job.enter_known(&list);
        job.drop_own_handle();
        pop(&job, &Cell::new(true));
        answers.note(told(timer.join().unwrap()));
        job.check();
    });
}

// ---- local requests -----------------------------------------------------------------------------------------------------------------

fn local() -> (Arc<List>, Arc<Job>, Cell<bool>) {
    let list = List::new();
    let job = Job::local_in_list(&Arc::new(LocalOwner::new(PATIENT)), &list);
    let listed = Cell::new(false);
    job.submit_own(&listed);
    job.enter(&list);
    (list, job, listed)
}

#[test]
fn a_local_request_that_is_waited_for_is_raided() {
    explore(&["raided nothing", "ran it", "found it stale"], |answers| {
        let (list, job, listed) = local();
        let raider = raider(&list);
        job.wait_own(&job.waiter(&BLOCKING), &listed);
        pop(&job, &listed);
        answers.note(raider.join().unwrap());
        job.drop_own();
        job.check();
    });
}

#[test]
fn a_local_request_that_is_run_at_once_is_raided() {
    explore(&["raided nothing", "ran it", "found it stale"], |answers| {
        let (list, job, listed) = local();
        let raider = raider(&list);
        job.wait_own_at_once(&job.waiter(&BLOCKING), &listed);
        pop(&job, &listed);
        // While the raider may be looking.
        job.drop_own();
        answers.note(raider.join().unwrap());
        job.check();
    });
}

#[test]
fn a_local_request_that_is_let_go_of_is_raided() {
    explore(&["raided nothing", "ran it", "found it stale"], |answers| {
        let (list, job, listed) = local();
        let raider = raider(&list);
        job.drop_own();
        pop(&job, &listed);
        answers.note(raider.join().unwrap());
        job.check();
    });
}

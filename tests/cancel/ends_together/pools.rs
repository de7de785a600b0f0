//! A pool that stops or is dropped: it marks all included requests before it ends one, and drops held callables although no member ends.

use super::*;

/// How a pool stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    BeforeTheWait,
    ByAMember,
    ByAThread,
    ByAFailure,
    ByTheReceiver,
}

/// What the captures of the first included request wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// The second, which the pool holds back.
    TheSecond,
    /// What is after the second.
    WhatIsAfterTheSecond,
    /// The second, which runs until it is cancelled.
    WhatRuns,
}

fn included_captures_wait(stop: Stop, wanted: For) {
    let runtime = Runtime::current();
    let (captures, place, ends) = waits_for();
    let (completer, first, second);
    if wanted == For::WhatRuns {
        second = endless(&runtime);
        let (gate, request) = unstarted(&runtime, captures);
        (completer, first) = (Some(gate), request);
    } else {
        second = Request::new(|| unreachable!());
        (completer, first) = (None, Request::new(move || drop(captures)));
    }
    let waited_for =
        if wanted == For::WhatIsAfterTheSecond { second.then(|()| unreachable!()) } else { second.clone() };
    place.set(waited_for).unwrap();
    let began = Flag::new();
    let mut pool = RequestPool::new().max_active(1 + usize::from(wanted == For::WhatRuns));
    let (canceller, up) = (pool.canceller(), began.clone());
    pool.try_add(move || {
        up.raise();
        match stop {
            Stop::ByAFailure => return Err(Error::other("no")),
            Stop::ByTheReceiver => return Ok(()),
            Stop::ByAMember => canceller.cancel(),
            Stop::BeforeTheWait | Stop::ByAThread => {}
        }
        until_cancelled()
    });
    pool.include(first.clone()).include(second.clone());
    let canceller = pool.canceller();
    if stop == Stop::BeforeTheWait {
        canceller.cancel();
    }
    let up = began.clone();
    let thread = (stop == Stop::ByAThread).then(|| {
        thread::spawn(move || {
            hold_thread_until(|| up.is_up());
            canceller.cancel();
        })
    });
    let answer = pool.try_wait_each(|_, ()| Err(Error::other("full")));
    assert!(answer.is_err());
    for request in [&first, &second] {
        assert_eq!(request.state(), State::Cancelled, "{stop:?}, {wanted:?}");
    }
    assert_eq!(ends.get(), 1);
    assert!(place.get().unwrap().is_done());
    if let Some(thread) = thread {
        thread.joined().unwrap();
    }
    drop(completer);
}

#[test]
fn a_pool_that_stops_marks_all_that_is_included_before_it_ends_any() {
    in_both_worlds(|| {
        for wanted in [For::TheSecond, For::WhatIsAfterTheSecond, For::WhatRuns] {
            for stop in
                [Stop::BeforeTheWait, Stop::ByAMember, Stop::ByAThread, Stop::ByAFailure, Stop::ByTheReceiver]
            {
                included_captures_wait(stop, wanted);
            }
        }
    });
}

/// A pool is stopped while one of its members waits for what the waiter does next. `by_the_member`: the member stops it.
fn a_member_waits_for_captures(by_the_member: bool) {
    let (completer, answer) = Request::<()>::completer("answer");
    let (began, told) = (Flag::new(), Count::new());
    let mut pool = RequestPool::new().max_active(1);
    let (canceller, up, counts) = (pool.canceller(), began.clone(), told.clone());
    let stops = by_the_member.then(|| canceller.clone());
    pool.add(move || {
        stops.iter().for_each(|canceller| canceller.cancel());
        up.raise();
        assert!(matches!(shield(|| answer.wait().copied()), Err(WaitError::Failed(_))));
        counts.up();
    });
    pool.add(move || drop(completer));
    let thread = (!by_the_member).then(|| {
        thread::spawn(move || {
            hold_thread_until(|| began.is_up());
            canceller.cancel();
        })
    });
    assert!(matches!(pool.wait(), Err(WaitError::TargetCancelled(CancelReason::PoolCancelled))));
    assert_eq!(told.get(), 1);
    if let Some(thread) = thread {
        thread.joined().unwrap();
    }
}

/// The member that has begun is shielded, and waits for what is abandoned with the captures of one that never begins.
#[test]
fn a_stopped_pool_drops_what_has_not_begun_though_no_member_ends() {
    in_both_worlds(|| a_member_waits_for_captures(true));
    on_each_of(&[1, 2], |runtime| {
        runtime.enter(|| a_member_waits_for_captures(false));
        runtime.run(|| a_member_waits_for_captures(false));
    });
}

#[test]
fn a_pool_that_is_dropped_unwaited_drops_captures_that_wait_for_each_other() {
    in_both_worlds(|| {
        let (captures, place, ends) = waits_for();
        let (first, second) = (Request::new(move || drop(captures)), Request::new(|| ()));
        place.set(second.then(|()| ())).unwrap();
        let mut pool = RequestPool::<()>::new();
        pool.include(first).include(second);
        drop(pool);
        assert_eq!(ends.get(), 1);
        assert_eq!(place.get().unwrap().state(), State::Finished);
    });
}

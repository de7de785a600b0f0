//! The timer thread, and workers that keep the time.

use super::*;

#[test]
fn an_earlier_deadline_wakes_the_timer_thread() {
    let (log, deadlines) = (Log::default(), on_its_own());
    let (late, soon) = (log.probe(1), log.probe(2));
    let at = deadlines.now() + HOUR;
    let _late = late.arm(&deadlines, at);
    eventually(|| sleeps(&deadlines) == until(&deadlines, at));
    let _soon = soon.arm(&deadlines, deadlines.now() + TICK);
    eventually(|| soon.timed_out());
    eventually(|| sleeps(&deadlines) == until(&deadlines, at));
    assert!(late.context.is_waiting());
    deadlines.close();
}

#[test]
fn the_timer_thread_sleeps_on_when_nothing_is_armed_and_wakes_for_the_next() {
    let (log, deadlines) = (Log::default(), on_its_own());
    for name in 0..3 {
        let probe = log.probe(name);
        let armed = probe.arm(&deadlines, deadlines.now() + TICK);
        eventually(|| probe.timed_out());
        eventually(|| sleeps(&deadlines) == Sleep::UntilTold);
        disarm(&deadlines, armed);
    }
}

#[test]
fn the_timer_thread_ends_with_its_runtime() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    until_it_has_a_thread(&shared.deadlines, |ticks| {
        runtime.run(|| {
            let at = shared.deadlines.after(TICK * ticks);
            assert_eq!(wait_until(&shared.deadlines, at, to_nobody), Cause::TimedOut);
        });
    });
    assert_eq!(Arc::strong_count(shared.deadlines.record()), 2, "ours and the thread's");
    drop(runtime);
    assert_eq!(Arc::strong_count(shared.deadlines.record()), 1);
}

#[test]
fn without_a_timer_thread_idle_workers_keep_the_time() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    shared.deadlines.record().refuse_thread(true);
    let wait = |ticks: u32| {
        let (shared, at) = (shared.clone(), shared.deadlines.now() + TICK * ticks);
        // Not on the stack of this thread, which keeps its own time.
        Request::builder()
            .on(&runtime)
            .own_stack()
            .spawn(move || (wait_until(&shared.deadlines, Some(at), to_nobody), at <= shared.deadlines.now()))
    };
    let waiters: Vec<_> = [20, 5, 10].map(wait).into();
    assert!(waiters.into_iter().all(|waiter| waiter.take().unwrap() == (Cause::TimedOut, true)));
    assert!(!has_thread(&shared.deadlines));
    shared.deadlines.record().refuse_thread(false);
    until_it_has_a_thread(&shared.deadlines, |ticks| {
        assert_eq!(wait(ticks).take().unwrap(), (Cause::TimedOut, true));
    });
    assert!(!shared.deadlines.is_unattended());
}

#[test]
fn code_without_a_scheduling_point_is_told_that_an_older_sleeper_is_due() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    let told = |ticks| {
        let at = shared.deadlines.now() + TICK * ticks;
        let here = shared.clone();
        let sleeper = runtime.spawn(move || wait_until(&here.deadlines, Some(at), to_nobody));
        eventually(|| armed(&shared.deadlines) == 1 || sleeper.is_done());
        let here = shared.clone();
        // Not on the stack of this thread.
        let busy = Request::builder().on(&runtime).own_stack().spawn(move || {
            // Held up until then, it proves nothing.
            (here.deadlines.now() < at).then(|| {
                eventually(|| here.worker_records().at(0).post.attention.get() & OLDER != 0);
                here.deadlines.now() >= at
            })
        });
        let told = busy.take().unwrap();
        assert_eq!(sleeper.take().unwrap(), Cause::TimedOut);
        told
    };
    assert_eq!([20, 200, 2000].into_iter().find_map(told), Some(true));
}

#[test]
fn without_a_thread_a_worker_that_sleeps_is_woken_to_keep_the_time_of_a_request() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    shared.deadlines.record().refuse_thread(true);
    for _ in 0..5 {
        let limited = runtime.enter(|| Request::builder().timeout(TICK * 5).build(|| ()));
        eventually(|| limited.is_done());
    }
    assert!(!has_thread(&shared.deadlines));
}

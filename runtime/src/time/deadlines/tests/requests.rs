//! Entries of requests.

use super::*;

#[test]
fn a_request_entry_holds_a_link_until_it_fires_is_taken_back_or_the_runtime_ends() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
    let shared = runtime.shared().clone();
    let request = runtime.enter(|| Request::new(|| ()));
    let links = || request.header().word().load().links();
    let before = links();
    assert!(!shared.deadlines.has_requests());
    let arm = |after: Duration| {
        request.header().word().add_link();
        // SAFETY: with that link.
        unsafe { shared.deadlines.arm_request(clock.now() + after, NonNull::from(request.header()), || ()) }
    };
    let fired = arm(TICK);
    assert_eq!(links(), before + 1);
    assert!(shared.deadlines.has_requests());
    clock.advance(TICK);
    assert_eq!(links(), before);
    assert!(!shared.deadlines.disarm_request(fired) && !shared.deadlines.has_requests());
    let _past = arm(Duration::ZERO);
    assert_eq!(links(), before);
    let armed = arm(TICK);
    assert!(shared.deadlines.disarm_request(armed) && !shared.deadlines.has_requests());
    assert_eq!(links(), before + 1, "it is ours again");
    assert!(!request.header().word().release_link());
    let _armed = arm(TICK);
    drop(runtime);
    assert_eq!(links(), before);
    assert!(!shared.deadlines.has_requests());
}

/// A link, on its way to another thread.
struct Link(NonNull<Header>);

// SAFETY: a link may be given up by any thread (T4).
unsafe impl Send for Link {}

impl Link {
    fn let_go(self) {
        // SAFETY: the link's.
        unsafe { let_go(self.0) }
    }
}

/// Tells where it is dropped.
struct Tells(mpsc::Sender<thread::ThreadId>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

#[test]
fn what_a_request_has_failed_with_is_dropped_by_a_worker_if_the_timers_link_is_the_last() {
    let (tells, dropped) = mpsc::channel();
    let runtime = Runtime::builder().workers(1).on_unhandled_failure(|_| ()).build().unwrap();
    let worker = runtime.run(|| thread::current().id());
    let failing: Request<()> =
        Request::builder().on(&runtime).own_stack().build(move || std::panic::panic_any(Tells(tells)));
    let link = Link(NonNull::from(failing.header()));
    failing.header().word().add_link();
    assert!(failing.wait().is_err());
    drop(failing);
    // The loop may still be on its way out of the request.
    runtime.run(|| ());
    assert!(dropped.try_recv().is_err(), "a link keeps it");
    // As the timer thread does, which is no thread of the runtime's.
    thread::spawn(move || link.let_go()).join().unwrap();
    assert_eq!(dropped.recv_timeout(Duration::from_secs(60)), Ok(worker));
}

#[test]
fn waits_look_for_deadlines_while_there_are_some_and_no_longer() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let shared = runtime.shared().clone();
    let look = || {
        shared.worker_records().iter().map(|worker| worker.post.attention.get() & LIMITS).collect::<Vec<_>>()
    };
    assert_eq!(look(), [0, 0]);
    let limited = runtime.enter(|| Request::builder().timeout(HOUR).build(|| ()));
    assert_eq!(look(), [LIMITS, LIMITS]);
    limited.wait().unwrap();
    // The next wait on each finds none left.
    let wait = || spawn(|| spawn(|| ()).take().unwrap()).take().unwrap();
    eventually(|| {
        runtime.run(wait);
        look().contains(&0)
    });
}

/// Which wheel the deadline of that request is in: 0, or that of the worker with this number less one.
fn wheel_of(request: &Request<u32>) -> u32 {
    request.header().due().unwrap().wheel()
}

#[test]
fn a_worker_keeps_the_deadlines_of_what_it_makes_and_other_threads_take_them_back() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    let armed = || (shared.deadlines.armed(), shared.deadlines.has_requests());
    let limited = || Request::builder().timeout(HOUR).build(|| 7);
    // Both at once: only one of them can stand where the worker's entry stays.
    let (first, second) = runtime.run(|| (limited(), limited()));
    assert_eq!((wheel_of(&first), wheel_of(&second)), (1, 1));
    assert_eq!(armed(), (2, true));
    // This thread runs it.
    assert_eq!(first.take().ok(), Some(7));
    assert_eq!(armed().0, 1);
    drop(second);
    assert_eq!(armed().0, 0);
    // The worker looks before it sleeps.
    runtime.run(|| ());
    eventually(|| !shared.deadlines.has_requests());
    let outside = runtime.enter(limited);
    assert_eq!(wheel_of(&outside), 0, "this thread is no worker");
    assert_eq!(armed(), (1, true));
    drop(outside);
    assert_eq!(armed(), (0, false));
}

#[test]
fn a_worker_whose_deadlines_others_take_back_keeps_none_any_more() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let limited = || Request::builder().timeout(HOUR).build(|| 7);
    let wheels: Vec<u32> = (0..100)
        .map(|_| {
            let request = runtime.run(limited);
            let wheel = wheel_of(&request);
            assert_eq!(request.take().ok(), Some(7));
            wheel
        })
        .collect();
    assert!(wheels.is_sorted_by(|before, after| before >= after));
    assert_eq!((wheels[0], wheels[99]), (1, 0));
}

#[test]
fn a_deadline_that_a_worker_keeps_comes_while_the_worker_computes() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let spins = || {
            let request = Request::builder().timeout(TICK).spawn(|| {
                while !crate::is_cancelled() {
                    std::hint::spin_loop();
                }
            });
            assert!(request.take().is_err());
        };
        // The second time in the entry that the first has left.
        spins();
        assert_eq!(Request::builder().timeout(HOUR).spawn(|| 7).take().ok(), Some(7));
        spins();
    });
}

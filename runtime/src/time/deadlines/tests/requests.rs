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
    let look =
        || shared.workers().iter().map(|worker| worker.post.attention.get() & LIMITS).collect::<Vec<_>>();
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

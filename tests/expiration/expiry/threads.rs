//! A server on a thread of its own: what wakes it, how long it sleeps, how it stops.

use super::*;

use std::process::{Command, Output};
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Wake, Waker};
use std::thread;

use forebear::timer::{Timer, TimerTable, WatchdogHandle};

/// A clock that is moved by hand and does not say so: as the system's, which never jumps.
#[derive(Clone, Debug, Default)]
struct Creeping(ManualClock);

impl Clock for Creeping {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

/// A queue whose every get says how long it would wait, and returns what the test says then.
struct Scripted {
    asked: Sender<Duration>,
    answers: Receiver<Vec<TimerRequest<u32>>>,
    waker: Option<Waker>,
}

impl RequestQueue<u32> for Scripted {
    fn get(&mut self, _: usize, timeout: Duration) -> Result<Vec<TimerRequest<u32>>, TimerError> {
        self.asked.send(timeout).map_err(TimerError::other)?;
        self.answers.recv().map_err(TimerError::other)
    }

    fn size(&mut self) -> usize {
        0
    }

    fn waker(&self) -> Option<Waker> {
        self.waker.clone()
    }
}

/// How often a queue was woken.
#[derive(Default)]
struct Woken(support::Count);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.up();
    }
}

type Script = (Receiver<Duration>, Sender<Vec<TimerRequest<u32>>>);

fn scripted(waker: Option<Waker>) -> (Scripted, Script) {
    let ((asked, asks), (answer, answers)) = (mpsc::channel(), mpsc::channel());
    (Scripted { asked, answers, waker }, (asks, answer))
}

/// Stops a server that has come to wait for the script.
fn stop((_, answer): Script, server: WatchdogHandle) {
    drop(answer);
    server.stop().unwrap();
}

/// Events of a server, as they come.
fn events(server: Server) -> (Server, Receiver<String>) {
    let (tell, told) = mpsc::channel();
    (server.on_event(move |event| drop(tell.send(short(event)))), told)
}

#[test]
fn t18_a_server_sleeps_exactly_to_the_next_deadline_or_until_it_is_woken() {
    let _dog = support::Watchdog::new("");
    let (queue, script) = scripted(Some(Waker::noop().clone()));
    let (clock, minute) = (Creeping::default(), Duration::from_secs(60));
    let server = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Retry(TimerError::other("not now")))
        .clock(clock.clone())
        .max_interval(minute)
        .retry_after(7 * SECOND)
        .on_event(|_| ());
    let server = server.start().unwrap();
    let acquire =
        |after| vec![TimerRequest::acquire(1, Timer::new("block", clock.now() + Duration::from_secs(after)))];
    let (asks, answer) = &script;
    assert_eq!(asks.recv(), Ok(Duration::ZERO), "the first look");
    answer.send(vec![]).unwrap();
    assert_eq!(asks.recv(), Ok(Duration::MAX), "nothing to do: no look every now and then");
    answer.send(acquire(1000)).unwrap();
    assert_eq!(asks.recv(), Ok(1000 * SECOND));
    clock.0.advance(400 * SECOND);
    answer.send(vec![]).unwrap();
    assert_eq!(asks.recv(), Ok(600 * SECOND));
    clock.0.advance(700 * SECOND);
    answer.send(vec![]).unwrap();
    assert_eq!(asks.recv(), Ok(7 * SECOND), "the pause of one that could not be reaped");
    answer.send(acquire(3)).unwrap();
    assert_eq!(asks.recv(), Ok(3 * SECOND), "which has saved itself");
    stop(script, server);
}

#[test]
fn on_a_clock_that_jumps_a_server_sleeps_until_a_jump_wakes_it() {
    let _dog = support::Watchdog::new("");
    let woken = Arc::new(Woken::default());
    let (queue, script) = scripted(Some(woken.clone().into()));
    let clock = ManualClock::new();
    let server = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped).clock(clock.clone());
    let server = server.retry_after(SECOND).on_event(|_| ()).start().unwrap();
    let (asks, answer) = &script;
    assert_eq!(asks.recv(), Ok(Duration::ZERO));
    answer.send(vec![TimerRequest::acquire(1, Timer::new("block", clock.now() + SECOND))]).unwrap();
    assert_eq!(asks.recv(), Ok(Duration::MAX), "whatever real time does meanwhile");
    assert_eq!(woken.0.get(), 0);
    clock.advance(SECOND);
    assert_eq!(woken.0.get(), 1);
    answer.send(vec![]).unwrap();
    assert_eq!(asks.recv(), Ok(Duration::MAX));
    assert_eq!(server.stats().reaped, 1);
    stop(script, server);
}

#[test]
fn t18_a_queue_that_cannot_be_woken_is_looked_into_every_max_interval() {
    let _dog = support::Watchdog::new("");
    let (queue, script) = scripted(None);
    let clock = Creeping::default();
    let server = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped).clock(clock.clone());
    let server = server.max_interval(60 * SECOND).retry_after(SECOND).on_event(|_| ()).start().unwrap();
    let (asks, answer) = &script;
    let acquire =
        |after| vec![TimerRequest::acquire(1, Timer::new("block", clock.now() + Duration::from_secs(after)))];
    assert_eq!(asks.recv(), Ok(Duration::ZERO));
    for _ in 0..10 {
        answer.send(vec![]).unwrap();
        assert_eq!(asks.recv(), Ok(60 * SECOND));
    }
    answer.send(acquire(61)).unwrap();
    assert_eq!(asks.recv(), Ok(60 * SECOND));
    answer.send(acquire(59)).unwrap();
    assert_eq!(asks.recv(), Ok(59 * SECOND), "a deadline is not missed for it");
    assert_eq!(server.stats().turns, 12);
    stop(script, server);
}

#[test]
fn a_server_is_woken_by_a_request_and_by_a_clock_that_jumps() {
    let _dog = support::Watchdog::new("");
    let bench = Bench::new();
    let (server, told) = events(bench.server);
    let server = server.start().unwrap();
    assert_eq!(told.recv().unwrap(), "started");
    let client = bench.timers.client(1).with_clock(bench.clock.clone());
    client.acquire(&"at once".into(), client.now()).unwrap();
    assert_eq!(told.recv().unwrap(), "expired 1 at once 0");
    assert_eq!(told.recv().unwrap(), "reaped 1 at once 0");
    client.acquire(&"in an hour".into(), client.now() + 3600 * SECOND).unwrap();
    bench.clock.advance(3600 * SECOND);
    assert_eq!(told.recv().unwrap(), "expired 1 in an hour 0");
    assert_eq!(told.recv().unwrap(), "reaped 1 in an hour 0");
    server.stop().unwrap();
}

#[test]
fn a_server_wakes_by_itself_when_real_time_has_come() {
    let _dog = support::Watchdog::new("");
    let (timers, queue) = channel();
    let (tell, told) = mpsc::channel();
    let reaper = move |overdue: &Overdue<'_, u32>| {
        tell.send((overdue.timer.deadline, overdue.now, Instant::now())).unwrap();
        Reap::Reaped
    };
    let server = Watchdog::new(queue, reaper).on_event(|_| ()).start().unwrap();
    let client = timers.client(1);
    let timer = TimerGuard::builder().client(&client).expires(Duration::from_millis(3)).unwrap();
    let (deadline, read, reaped) = told.recv().unwrap();
    assert!(deadline <= read && read <= reaped);
    drop(timer);
    // The request, the deadline, perhaps the release, perhaps one for nothing; and the first.
    assert!(server.stats().turns <= 5, "{:?}", server.stats());
    server.stop().unwrap();
}

#[test]
fn t21_stop_ends_the_server_and_its_clients_learn_of_it() {
    let _dog = support::Watchdog::new("");
    let bench = Bench::new();
    let (server, told) = events(bench.server);
    let server = server.max_interval(Duration::MAX).start().unwrap();
    assert!(server.is_running());
    server.stop().unwrap();
    assert!(!server.is_running());
    assert_eq!(told.iter().collect::<Vec<_>>(), ["started", "stopped"]);
    let client = bench.timers.client(1);
    assert!(matches!(client.acquire(&"block".into(), client.now()), Err(TimerError::ServerGone)));
}

#[test]
fn t21_to_stop_again_and_never_to_start_are_fine() {
    let _dog = support::Watchdog::new("");
    let (_timers, queue) = channel();
    drop(Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped));
    let server = Bench::new().server.start().unwrap();
    server.stop().unwrap();
    server.stop().unwrap();
    drop(server);
}

#[test]
fn t21_stop_waits_for_a_turn_no_longer_than_it_was_told() {
    let _dog = support::Watchdog::new("");
    let ((tell, begun), (go_on, hangs)) = (mpsc::channel(), mpsc::channel::<()>());
    let bench = Bench::with(move |_| {
        tell.send(()).unwrap();
        hangs.recv().unwrap();
        Reap::Reaped
    });
    bench.acquire(1, "block", 0);
    bench.acquire(2, "block", 100);
    let (server, told) = events(bench.server.max_interval(Duration::from_millis(1)));
    let server = server.start().unwrap();
    begun.recv().unwrap();
    assert!(matches!(server.stop(), Err(TimerError::StillRunning)));
    assert!(server.is_running());
    go_on.send(()).unwrap();
    // It has been told to stop, and does when it can: no turn begins any more.
    bench.clock.advance(100 * SECOND);
    let told: Vec<_> = told.iter().collect();
    assert_eq!(told, ["started", "expired 1 block 0", "reaped 1 block 0", "stopped"]);
    support::until(|| !server.is_running());
    server.stop().unwrap();
}

#[test]
fn t21_to_stop_the_server_from_its_own_thread_only_asks() {
    let _dog = support::Watchdog::new("");
    let (hand, handed) = mpsc::channel::<WatchdogHandle>();
    let (tell, told) = mpsc::channel();
    let bench = Bench::with(move |_| {
        let server = handed.recv().unwrap();
        server.stop().unwrap();
        assert!(server.is_running());
        tell.send(server).unwrap();
        Reap::Reaped
    });
    bench.acquire(1, "block", 0);
    hand.send(bench.server.start().unwrap()).unwrap();
    let server = told.recv().unwrap();
    server.stop().unwrap();
    assert!(!server.is_running());
}

#[test]
fn dropping_the_handle_stops_the_server_and_leaving_it_does_not() {
    let _dog = support::Watchdog::new("");
    let bench = Bench::new();
    let (server, told) = events(bench.server);
    drop(server.start().unwrap());
    assert_eq!(told.iter().last().unwrap(), "stopped");

    let bench = Bench::new();
    let (server, told) = events(bench.server);
    server.start().unwrap().detach();
    bench.timers.client(1).acquire(&"block".into(), bench.clock.now()).unwrap();
    assert_eq!(told.iter().nth(2).unwrap(), "reaped 1 block 0");
}

#[test]
fn t17_a_server_goes_on_after_a_turn_that_failed() {
    let _dog = support::Watchdog::new("");
    let (queue, script) = scripted(Some(Waker::noop().clone()));
    let (tell, told) = mpsc::channel();
    let server = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped)
        .server(Panics(TimerTable::new()))
        .retry_after(Duration::from_millis(1))
        .on_event(move |event| drop(tell.send(short(event))));
    let server = server.start().unwrap();
    let (asks, answer) = &script;
    assert_eq!(asks.recv(), Ok(Duration::ZERO));
    answer.send(vec![TimerRequest::release(13, "unlucky")]).unwrap();
    assert_eq!(asks.recv(), Ok(Duration::ZERO), "at once after the pause");
    assert_eq!(told.recv().unwrap(), "started");
    assert!(told.recv().unwrap().contains("the table's panic"));
    answer.send(vec![TimerRequest::acquire(1, Timer::new("block", Instant::now()))]).unwrap();
    assert_eq!(told.recv().unwrap(), "expired 1 block 0");
    assert_eq!(told.recv().unwrap(), "reaped 1 block 0");
    stop(script, server);
}

/// A table with a superstition.
struct Panics(TimerTable<u32>);

impl forebear::timer::TimerServer<u32> for Panics {
    fn register(&mut self, requests: Vec<TimerRequest<u32>>) -> Result<(), TimerError> {
        assert!(requests.iter().all(|request| request.worker != 13), "the table's panic");
        self.0.register(requests)
    }

    fn clear(&mut self, workers: &[u32]) -> Result<forebear::timer::TimersOf<u32>, TimerError> {
        self.0.clear(workers)
    }

    fn expired(&mut self, now: Instant) -> Result<forebear::timer::TimersOf<u32>, TimerError> {
        self.0.expired(now)
    }

    fn next_deadline(&mut self, looked: Instant) -> Option<Instant> {
        self.0.next_deadline(looked)
    }
}

#[test]
fn t23_of_many_clients_of_one_server_all_requests_are_counted() {
    let _dog = support::Watchdog::new("");
    let bench = Bench::new();
    let server = bench.server.start().unwrap();
    thread::scope(|scope| {
        let workers = (0..10).map(|worker| {
            let client = bench.timers.client(worker);
            scope.spawn(move || nested(&client, 10))
        });
        support::join_all(workers.collect::<Vec<_>>());
    });
    support::until(|| server.stats().requests == 200);
    server.stop().unwrap();
    assert_eq!((server.stats().requests, server.stats().expired), (200, 0));
}

fn nested(client: &dyn TimerClient, deep: u32) {
    let scope = format!("level {deep}");
    let _timer = TimerGuard::builder().client(client).scope(scope).expires(3600 * SECOND).unwrap();
    if deep > 1 {
        nested(client, deep - 1);
    }
}

/// Runs the calling test again, in a process of its own, where this calls `body` and is `None`; what that process has said.
fn in_a_child(body: impl FnOnce()) -> Option<Output> {
    const CHILD: &str = "FOREBEAR_EXPIRY_CHILD";
    if std::env::var_os(CHILD).is_some() {
        body();
        return None;
    }
    let name = thread::current().name().unwrap().to_owned();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", &name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    Some(output)
}

#[test]
fn t22_a_server_does_not_keep_its_process_alive() {
    let _dog = support::Watchdog::new("");
    in_a_child(|| {
        let bench = Bench::new();
        bench.acquire(1, "block", 3600);
        // The test ends, and with it `main`, while the server runs.
        bench.server.start().unwrap().detach();
    });
}

#[test]
fn t29_without_a_hook_what_happens_is_written_to_standard_error_with_the_name_of_the_run() {
    let _dog = support::Watchdog::new("");
    let output = in_a_child(|| {
        let (timers, queue) = channel();
        let mut server = Watchdog::new(queue, |_: &Overdue<'_, &str>| Reap::Reaped).name("run 7");
        timers.send(TimerRequest::acquire("one", Timer::new("block", Instant::now()))).unwrap();
        server.turn(Duration::ZERO).unwrap();
    });
    let Some(output) = output else { return };
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("forebear: run 7: the timer block of \"one\" expired "), "{said}");
    assert!(said.contains("forebear: run 7: \"one\" was reaped"), "{said}");
}

#[test]
fn t29_hooks_hear_of_all_that_happens_in_order_and_the_thread_has_the_servers_name() {
    let _dog = support::Watchdog::new("");
    let bench = Bench::new();
    let (name, names) = mpsc::channel();
    let server = bench.server.name("run 7").on_event(move |event| {
        if let TimerEvent::Started = event {
            name.send(thread::current().name().map(str::to_owned)).unwrap();
        }
    });
    let (server, told) = events(server);
    let server = server.start().unwrap();
    bench.timers.client(1).acquire(&"block".into(), bench.clock.now()).unwrap();
    assert_eq!(told.iter().nth(2).unwrap(), "reaped 1 block 0");
    server.stop().unwrap();
    assert_eq!(bench.events.read(), ["started", "expired 1 block 0", "reaped 1 block 0", "stopped"]);
    assert_eq!(names.recv().unwrap().as_deref(), Some("run 7"));
}

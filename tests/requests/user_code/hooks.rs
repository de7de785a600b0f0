//! Hooks for warnings and for failures that nobody has looked at.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use forebear::channel;
use forebear::sync::Event;
use forebear::time::Clock;
use forebear::{
    Failure, LateEnd, OrUnwind, Request, Runtime, join, scope, spawn, time, try_spawn, yield_now,
};

use crate::child;
use crate::support::{Kind, Watchdog, kinds};

/// What a hook or a clock must not do, by name, and what the refusal says.
type Refused = (&'static str, fn(), &'static str);

const REFUSED: [Refused; 11] = [
    ("sleep", || _ = time::sleep(Duration::from_millis(5)), "wait for 'a sleep'"),
    ("event", || _ = Event::new().wait(), "wait for 'Event'"),
    ("receive", receive, "wait for 'an item from a channel'"),
    ("request", || drop(Request::new(|| 7)), "make a request"),
    ("spawn", || drop(spawn(|| 7)), "make a request"),
    ("take", || drop(spawn(|| 7).take()), "make a request"),
    ("wait", || drop(made_before().wait()), "wait for a request"),
    ("timeout", || drop(made_before().wait_timeout(Duration::from_millis(1))), "wait for a request"),
    ("scope", || scope(|s| drop(s.spawn(|| 7))), "make a request"),
    ("yield", || _ = yield_now(), "wait for 'the others'"),
    ("run", || _ = other_runtime().run(|| 7), "make a request"),
];

fn receive() {
    let (_sender, receiver) = channel::bounded::<()>(1);
    let _ = receiver.recv();
}

static MADE_BEFORE: OnceLock<Request<u32>> = OnceLock::new();
static OTHER: OnceLock<Runtime> = OnceLock::new();

/// One that has not begun.
fn made_before() -> &'static Request<u32> {
    MADE_BEFORE.get().expect("made by the test")
}

fn other_runtime() -> &'static Runtime {
    OTHER.get().expect("made by the test")
}

/// Makes what the rows use.
fn make_before() {
    OTHER.get_or_init(|| Runtime::builder().workers(1).name("other").build().unwrap());
    MADE_BEFORE.get_or_init(|| other_runtime().enter(|| Request::builder().own_stack().build(|| 7)));
}

fn message(payload: Box<dyn std::any::Any + Send>) -> String {
    payload.downcast::<String>().map_or_else(|_| String::new(), |text| *text)
}

/// A hook that tries all of them, and sends what it is told.
fn tries_all(told: mpsc::Sender<Vec<String>>) -> impl Fn() + Send + Sync + 'static {
    move || {
        let tried = REFUSED
            .iter()
            .map(|(_, refused, _)| catch_unwind(refused).map_or_else(message, |()| "done".to_owned()));
        told.send(tried.collect()).unwrap();
    }
}

fn check(hook: &str, told: &[String], on_a_worker: bool) {
    for ((name, _, what), told) in REFUSED.iter().zip(told) {
        // A thread that yields has nobody to wait for.
        if *name == "yield" && !on_a_worker {
            continue;
        }
        assert!(told.starts_with(&format!("forebear: {hook} must not {what}")), "{name}: {told}");
    }
}

/// On the worker that drops the last handle, in a request and outside of any.
#[test]
fn a_hook_for_failures_that_waits_or_makes_work_is_refused_by_name() {
    make_before();
    for kind in [Kind::Workers(1), Kind::Workers(2)] {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let (told, tells) = mpsc::channel();
        let tries = tries_all(told);
        let runtime = kind.builder().on_unhandled_failure(move |_| tries()).build().unwrap();
        runtime.run(|| drop(try_spawn(|| -> forebear::Result<()> { Err(std::fmt::Error.into()) })));
        check("the hook `on_unhandled_failure`", &tells.recv().unwrap(), true);
        let failed = runtime.try_spawn(|| -> forebear::Result<()> { Err(std::fmt::Error.into()) });
        drop(failed);
        check("the hook `on_unhandled_failure`", &tells.recv().unwrap(), false);
        assert_eq!(runtime.run(|| spawn(|| 7).take().unwrap()), 7, "nothing is left behind");
    }
}

/// Waits when it is dropped.
struct WaitsInDrop(Arc<Event>);

impl Drop for WaitsInDrop {
    fn drop(&mut self) {
        self.0.wait().unwrap();
    }
}

/// The warning belongs to a wait that has begun; the hook is called when its stack has been left.
#[test]
fn a_hook_for_warnings_is_called_outside_of_the_wait_that_it_is_about_and_is_refused_by_name() {
    make_before();
    let _dog = Watchdog::new("");
    let (told, tells) = mpsc::channel();
    let tries = tries_all(told);
    let runtime = Runtime::builder().workers(1).on_warning(move |_| tries()).build().unwrap();
    let go = Arc::new(Event::new());
    let (began, begins) = mpsc::channel();
    let cancelled = runtime.spawn({
        let go = go.clone();
        move || {
            let _waits = WaitsInDrop(go);
            began.send(()).unwrap();
            Event::new().wait().or_unwind();
        }
    });
    begins.recv().unwrap();
    // Suspended beside it.
    let other = runtime.spawn({
        let go = go.clone();
        move || go.wait()
    });
    runtime.run(|| ());
    cancelled.cancel();
    check("the hook `on_warning`", &tells.recv().unwrap(), true);
    go.set();
    assert!(cancelled.wait().is_err());
    other.take().unwrap().unwrap();
}

/// What a hook and a clock may do.
#[test]
fn a_hook_may_notify_send_cancel_drop_and_join_what_does_not_wait() {
    let _dog = Watchdog::new("");
    for kind in kinds() {
        let (told, tells) = mpsc::channel();
        let event = Arc::new(Event::new());
        let set = event.clone();
        let hook = move |_: &Failure| {
            set.set();
            let (sender, _receiver) = channel::unbounded();
            sender.send(1).unwrap();
            let (a, b) = join(|| 1, || 2);
            drop(Request::ready(1));
            told.send(a + b).unwrap();
        };
        let runtime = kind.builder().on_unhandled_failure(hook).build().unwrap();
        runtime.run(|| {
            drop(try_spawn(|| -> forebear::Result<()> { Err(std::fmt::Error.into()) }));
            event.wait().unwrap();
        });
        assert_eq!(tells.recv().unwrap(), 3, "{kind:?}");
    }
}

#[derive(Debug)]
struct Bad(&'static str, AtomicBool);

impl Clock for Bad {
    fn now(&self) -> Instant {
        if !self.1.load(Ordering::Relaxed) || self.0 == "ready" {
            return Instant::now();
        }
        if let Some((_, refused, _)) = REFUSED.iter().find(|(name, ..)| *name == self.0) {
            refused();
        }
        match self.0 {
            "panic" => panic!("on purpose"),
            "itself" => _ = with_default(),
            _ => {}
        }
        Instant::now()
    }
}

static ITSELF: OnceLock<Runtime> = OnceLock::new();

fn with_default() -> Instant {
    ITSELF.get().expect("made by the test").now()
}

/// Timed waits of each kind, on workers and on a thread that is none.
fn waits_with_a_limit(runtime: &Runtime) {
    let jobs: Vec<_> = (0..20)
        .map(|n| {
            runtime.spawn(move || {
                time::sleep(Duration::from_micros(n)).unwrap();
                assert!(Event::new().wait_timeout(Duration::from_micros(50)).is_err());
                let never = Request::builder().own_stack().build(|| Event::new().wait());
                assert!(never.wait_timeout(Duration::from_micros(50)).is_err());
                never.cancel();
            })
        })
        .collect();
    for job in jobs {
        let _ = job.wait_timeout(Duration::from_secs(60));
    }
    runtime.enter(|| assert!(Event::new().wait_timeout(Duration::from_micros(50)).is_err()));
}

#[test]
fn a_clock_that_waits_makes_work_or_panics_ends_the_process_by_name() {
    let names = REFUSED.iter().map(|(name, ..)| *name).chain(["panic", "itself"]);
    // A thread that yields has nobody to wait for.
    for name in names.filter(|name| *name != "yield") {
        let end = child::run(name, &[], |name| {
            make_before();
            let rows = REFUSED.iter().map(|(name, ..)| *name).chain(["panic", "itself"]);
            let name = rows.into_iter().find(|row| *row == name).unwrap();
            let clock = Arc::new(Bad(name, AtomicBool::new(false)));
            let runtime = Runtime::builder().workers(2).clock(clock.clone()).build().unwrap();
            let _ = ITSELF.set(runtime.clone());
            clock.1.store(true, Ordering::Relaxed);
            waits_with_a_limit(&runtime);
        });
        end.assert_killed_by(libc::SIGABRT);
        assert!(end.stderr.contains("the clock of its runtime has panicked: "), "{name}: {end:#?}");
        let what = REFUSED.iter().find(|row| row.0 == name).map_or("", |row| row.2);
        // A sleep asks the clock for its end before it waits, so the clock may be refused for asking itself instead.
        let itself = end.stderr.contains("the clock of a runtime comes back to itself");
        assert!(end.stderr.contains(what) || name == "sleep" && itself, "{name}: {end:#?}");
    }
}

#[test]
fn a_clock_that_only_reads_serves_every_timed_wait() {
    let _dog = Watchdog::new("");
    for kind in [Kind::Workers(1), Kind::Workers(2), Kind::Synchronous] {
        let clock = Bad("ready", AtomicBool::new(true));
        let runtime = kind.builder().clock(clock).build().unwrap();
        waits_with_a_limit(&runtime);
    }
}

/// Tries in its `Display` what is refused there, and sends what it is told.
struct Tries(mpsc::Sender<Vec<String>>);

impl std::fmt::Display for Tries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        tries_all(self.0.clone())();
        f.write_str("tries")
    }
}

impl std::fmt::Debug for Tries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tries")
    }
}

impl std::error::Error for Tries {}

/// Without a hook the failure is formatted for the line that reports it.
#[test]
fn the_display_of_an_error_that_nobody_looked_at_is_refused_what_waits_by_name() {
    make_before();
    for kind in [Kind::Workers(1), Kind::Workers(2)] {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let (told, tells) = mpsc::channel();
        let runtime = kind.builder().build().unwrap();
        let own = told.clone();
        runtime.run(|| drop(try_spawn(move || -> forebear::Result<()> { Err(Tries(own).into()) })));
        check("the `Display` of an error", &tells.recv().unwrap(), true);
        let failed = runtime.try_spawn(move || -> forebear::Result<()> { Err(Tries(told).into()) });
        while !failed.is_done() {
            std::thread::yield_now();
        }
        drop(failed);
        check("the `Display` of an error", &tells.recv().unwrap(), false);
        assert_eq!(runtime.run(|| spawn(|| 7).take().unwrap()), 7, "nothing is left behind");
    }
}

/// Panics in its `Display`.
#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("`Display` panics on purpose")
    }
}

impl std::error::Error for Unspeakable {}

/// Hears what is reported, tries what is refused, and panics.
#[cfg(feature = "tracing")]
struct Subscriber;

#[cfg(feature = "tracing")]
impl tracing::Subscriber for Subscriber {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Shows;
        impl tracing::field::Visit for Shows {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                println!("{field}: {value:?}");
            }
        }
        event.record(&mut Shows);
        let (told, tells) = mpsc::channel();
        tries_all(told)();
        check("the subscriber of `tracing`", &tells.recv().unwrap(), true);
        println!("refused all");
        panic!("the subscriber panics on purpose");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[cfg(feature = "tracing")]
#[test]
fn a_subscriber_of_tracing_is_refused_what_waits_by_name_and_its_panic_ends_there() {
    let end = child::run("", &[], |_| {
        make_before();
        tracing::subscriber::set_global_default(Subscriber).unwrap();
        let runtime = Runtime::builder().workers(1).build().unwrap();
        runtime.run(|| drop(try_spawn(|| -> forebear::Result<()> { Err(std::fmt::Error.into()) })));
        runtime.run(|| drop(try_spawn(|| -> forebear::Result<()> { Err(Unspeakable.into()) })));
        assert_eq!(runtime.run(|| spawn(|| 7).take().unwrap()), 7, "nothing is left behind");
    });
    end.assert_survived();
    assert_eq!(end.stdout.matches("refused all").count(), 2, "{end:#?}");
    assert!(end.stdout.contains("whose `Display` has panicked"), "{end:#?}");
    let contained = "forebear: the subscriber of `tracing` has panicked: the subscriber panics on purpose";
    assert_eq!(end.stderr.matches(contained).count(), 2, "{end:#?}");
    // It has panicked, so the lines come as well.
    assert_eq!(end.stderr.matches("forebear: unhandled failure: ").count(), 2, "{end:#?}");
}

/// Takes errors, and no warnings.
#[cfg(feature = "tracing")]
struct TakesErrors;

#[cfg(feature = "tracing")]
impl tracing::Subscriber for TakesErrors {
    fn enabled(&self, event: &tracing::Metadata<'_>) -> bool {
        *event.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        println!("the subscriber was told");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Has a failure that nobody looks at, and a warning: the last handle goes before a request ends.
fn reports() {
    let runtime = Runtime::builder().workers(1).late_end(LateEnd::ShutDown).build().unwrap();
    runtime.run(|| drop(try_spawn(|| -> forebear::Result<()> { Err(std::fmt::Error.into()) })));
    runtime.spawn(|| _ = Event::new().wait());
}

const DEFAULTS: [&str; 2] = ["forebear: unhandled failure: ", "forebear: the last handle of runtime"];

/// The promise of both hooks, whatever features a build has: any crate of a program can turn `tracing` on.
#[test]
fn by_default_a_failure_and_a_warning_are_one_line_each_on_standard_error() {
    let end = child::run("", &[], |_| reports());
    end.assert_survived();
    assert_eq!(DEFAULTS.map(|line| end.stderr.matches(line).count()), [1, 1], "{end:#?}");
}

#[cfg(feature = "tracing")]
#[test]
fn what_a_subscriber_of_tracing_takes_is_no_line_on_standard_error() {
    let end = child::run("", &[], |_| {
        tracing::subscriber::set_global_default(TakesErrors).unwrap();
        reports();
    });
    end.assert_survived();
    assert_eq!(end.stdout.matches("the subscriber was told").count(), 1, "{end:#?}");
    assert_eq!(DEFAULTS.map(|line| end.stderr.matches(line).count()), [0, 1], "{end:#?}");
}

/// The line says whose it was.
#[test]
fn an_error_whose_display_panics_is_reported_by_its_request() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        runtime.run(|| {
            drop(
                Request::builder()
                    .name("unspeakable")
                    .try_spawn(|| -> forebear::Result<()> { Err(Unspeakable.into()) }),
            )
        });
    });
    end.assert_survived();
    assert!(
        end.stderr.contains("unhandled failure: that of request 'unspeakable', whose `Display` has panicked"),
        "{end:#?}"
    );
}

/// The line has the request that failed first, the error, and the requests that passed the failure on.
#[test]
fn a_failure_that_nobody_looked_at_is_reported_with_its_path() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        runtime.run(|| {
            let tile = || {
                let load = Request::builder().name("load");
                let load = load.try_spawn(|| Ok("x".parse::<u32>()?));
                Ok(load.take()?)
            };
            drop(Request::builder().name("tile").try_spawn(tile));
        });
    });
    end.assert_survived();
    let line = end.stderr.lines().find(|line| line.contains("unhandled failure: "));
    let line = line.unwrap_or_else(|| panic!("{end:#?}"));
    assert!(
        line.contains("request `load` failed: invalid digit found in string (passed on by `tile`)"),
        "{line}"
    );
}

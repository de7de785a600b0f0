//! What a block of code says by its guard. T-numbers are those of docs/behaviours.md.

use super::*;

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebear::sync::MutexGuard;
use forebear::timer::{TimerServer, TimerTable, configure, configured, expires, unconfigure, within};
use forebear::{Request, Runtime};
use std::thread;

/// Whoever uses the client of the process has it to itself, and finds none.
fn process_client() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock();
    unconfigure();
    alone
}

fn guard<'c>(client: &'c Recorder, scope: &str, seconds: u64) -> TimerGuard<'c> {
    TimerGuard::builder().client(client).scope(scope).expires(Duration::from_secs(seconds)).unwrap()
}

#[test]
fn t1_acquired_on_entry_and_released_on_exit_however_the_block_ends() {
    let client = Recorder::default();
    {
        let _timer = guard(&client, "by its end", 5);
        assert_eq!(client.log.read(), ["acquire by its end 5"]);
    }
    assert_eq!(client.log.read(), ["release by its end"]);

    let by_error = || -> Result<(), Box<dyn Error>> {
        let _timer = guard(&client, "by an error", 5);
        Err("the error")?;
        Ok(())
    };
    assert_eq!(by_error().unwrap_err().to_string(), "the error");
    assert_eq!(client.log.read(), ["acquire by an error 5", "release by an error"]);

    let by_panic = catch_unwind(AssertUnwindSafe(|| {
        let _timer = guard(&client, "by a panic", 5);
        std::panic::resume_unwind(Box::new("the panic"));
    }));
    assert_eq!(by_panic.unwrap_err().downcast_ref(), Some(&"the panic"));
    assert_eq!(client.log.read(), ["acquire by a panic 5", "release by a panic"]);
}

#[test]
fn a_closure_has_its_timer_until_it_returns_or_panics() {
    let alone = process_client();
    let client = Recorder::default();
    configure(client.clone());
    let here = format!("{}#{}", file!(), line!() + 1);
    let inside = within(5 * SECOND, || client.log.read()).unwrap();
    assert!(inside.len() == 1 && inside[0].starts_with(&format!("acquire {here} of")), "{inside:?}");
    let after = client.log.read();
    assert!(after.len() == 1 && after[0].starts_with(&format!("release {here} of")), "{after:?}");

    let builder = || TimerGuard::builder().client(&client).scope("panics");
    let by_panic = catch_unwind(AssertUnwindSafe(|| {
        builder().within(SECOND, || std::panic::resume_unwind(Box::new("the panic")))
    }));
    assert_eq!(by_panic.unwrap_err().downcast_ref(), Some(&"the panic"));
    assert_eq!(client.log.read(), ["acquire panics 1", "release panics"]);

    client.refuse(Some(|| TimerError::ServerGone));
    let refused = builder().within(SECOND, || panic!("there is no timer, so it is not called"));
    assert!(matches!(refused, Err(TimerError::ServerGone)));
    unconfigure();
    assert!(matches!(within(SECOND, || ()), Err(TimerError::NotConfigured)));
    drop(alone);
}

/// One place in the source, however often it is called from inside itself.
fn guarded<T>(client: &Recorder, seconds: u64, work: impl FnOnce() -> T) -> T {
    TimerGuard::builder().client(client).within(Duration::from_secs(seconds), work).unwrap()
}

#[test]
fn the_timer_of_a_closure_is_not_released_by_one_of_the_same_place_inside_it() {
    let client = Recorder::default();
    let place = format!("{}#{}", file!(), line!() - 6);
    // As they were said, without the holder.
    let said = || {
        let bare = |line: String| line.split_once(" of ").map_or(line.clone(), |(bare, _)| bare.to_owned());
        client.log.read().into_iter().map(|line| bare(line).replace(&place, "place")).collect::<Vec<_>>()
    };
    guarded(&client, 5, || {
        assert_eq!(said(), ["acquire place"]);
        guarded(&client, 2, || {
            assert_eq!(said(), ["acquire place nested 1"]);
            guarded(&client, 9, || assert_eq!(said(), ["acquire place nested 2"]));
            assert_eq!(said(), ["release place nested 2"]);
        });
        assert_eq!(said(), ["release place nested 1"], "the outer one still runs");
        // One that panics is left as any other.
        let panics = || guarded(&client, 2, || std::panic::resume_unwind(Box::new("the panic")));
        catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(said(), ["acquire place nested 1", "release place nested 1"]);
        // Other requests and threads are inside nothing.
        let (also, outer) = (client.clone(), Runtime::builder().workers(1).build().unwrap());
        let both = || guarded(&also, 2, || thread::scope(|s| _ = s.spawn(|| guarded(&also, 2, || ()))));
        outer.run(both);
        assert_eq!(said(), ["acquire place", "acquire place", "release place", "release place"]);
        // One that is refused leaves nothing.
        client.refuse(Some(|| TimerError::ServerGone));
        let refused = catch_unwind(AssertUnwindSafe(|| guarded(&client, 2, || ())));
        assert!(refused.is_err());
        client.refuse(None);
        assert_eq!(said(), ["acquire place nested 1"]);
        guarded(&client, 2, || ());
        assert_eq!(said(), ["acquire place nested 1", "release place nested 1"]);
    });
    assert_eq!(said(), ["release place"]);
    guarded(&client, 5, || ());
    assert_eq!(said(), ["acquire place", "release place"]);
}

#[test]
fn the_timer_of_a_closure_is_not_released_by_a_guard_of_the_same_line_inside_it() {
    let client = Recorder::default();
    let builder = || TimerGuard::builder().client(&client);
    #[rustfmt::skip]
    builder().within(5 * SECOND, || drop(builder().expires(SECOND).unwrap())).unwrap();
    let said = client.log.read();
    assert_eq!(said.len(), 4, "{said:?}");
    let of =
        |line: &str| line.split_once(' ').map(|(_, scope)| scope.split(" of ").next().unwrap().to_owned());
    assert!(of(&said[0]) == of(&said[3]) && of(&said[1]) == of(&said[2]), "{said:?}");
    assert_ne!(of(&said[0]), of(&said[1]), "{said:?}");
}

#[test]
fn a_name_that_is_given_stays_one_timer_also_inside_itself() {
    let client = Recorder::default();
    let named = || TimerGuard::builder().client(&client).scope("load");
    named().within(5 * SECOND, || named().within(2 * SECOND, || ()).unwrap()).unwrap();
    assert_eq!(client.log.read(), ["acquire load 5", "acquire load 2", "release load", "release load"]);
}

#[test]
fn t2_without_a_client_the_error_says_to_configure_one() {
    let _alone = process_client();
    let error = expires(SECOND).unwrap_err();
    assert!(matches!(error, TimerError::NotConfigured));
    assert!(error.to_string().contains("configure one first"), "{error}");
    assert!(configured().is_none());
}

#[test]
fn t3_a_client_that_is_given_beats_the_configured_one_and_hears_one_acquire_and_one_release() {
    let _alone = process_client();
    let (of_process, given) = (Recorder::default(), Recorder::default());
    configure(of_process.clone());
    drop(guard(&given, "given", 5));
    assert_eq!(given.log.read(), ["acquire given 5", "release given"]);
    assert_eq!(of_process.log.read(), [""; 0]);
    drop(TimerGuard::builder().scope("configured").expires(5 * SECOND).unwrap());
    assert_eq!(of_process.log.read(), ["acquire configured 5", "release configured"]);
    assert_eq!(given.log.read(), [""; 0]);
    unconfigure();
}

#[test]
fn the_client_of_the_process_is_replaced_at_any_time_and_its_timers_stay_with_it() {
    let _alone = process_client();
    let (first, second) = (Recorder::default(), Recorder::default());
    assert!(configure(first.clone()).is_none());
    let timer = TimerGuard::builder().scope("timer").expires(SECOND).unwrap();
    let before = configure(second.clone()).unwrap();
    drop(timer);
    assert_eq!(first.log.read(), ["acquire timer 1", "release timer"]);
    assert_eq!(second.log.read(), [""; 0]);
    drop(TimerGuard::builder().scope("next").expires(SECOND).unwrap());
    assert_eq!(second.log.read(), ["acquire next 1", "release next"]);
    before.release(&"by hand".into()).unwrap();
    assert_eq!(first.log.read(), ["release by hand"]);
    assert!(unconfigure().is_some());
}

#[test]
fn t4_the_default_scope_is_the_callers_file_and_line() {
    let _alone = process_client();
    configure(Recorder::default());
    let (by_function, line) = (expires(SECOND).unwrap(), line!());
    assert_eq!(by_function.scope().name(), format!("{}#{line}", file!()));
    let (by_builder, line) = (TimerGuard::builder().expires(SECOND).unwrap(), line!());
    assert_eq!(by_builder.scope().name(), format!("{}#{line}", file!()));
    let another = || expires(SECOND).unwrap();
    assert_eq!(another().scope(), another().scope(), "one place, one scope");
    assert_ne!(another().scope(), by_function.scope());
    unconfigure();
}

/// Goes `deep` levels down, each with a timer of a second for the one scope; each level, but the last, takes `each` on its way up.
fn descend(bench: &mut Bench, deep: u32, each: Duration) -> Vec<String> {
    let client = bench.client(1);
    let timer = TimerGuard::builder().client(&client).scope("level").expires(SECOND).unwrap();
    let mut reaped = bench.after(Duration::ZERO);
    if deep > 1 {
        reaped.extend(descend(bench, deep - 1, each));
        reaped.extend(bench.after(each));
    }
    drop(timer);
    reaped
}

#[test]
fn t5_the_same_scope_again_moves_the_deadline_and_the_first_release_ends_it() {
    let mut bench = Bench::new();
    bench.acquire(1, "scope", 1);
    bench.acquire(1, "scope", 3);
    assert_eq!(bench.after(2 * SECOND), [""; 0], "the last acquire counts");
    assert_eq!(bench.after(SECOND), ["1 scope 0"]);
    bench.acquire(1, "scope", 3);
    bench.acquire(1, "scope", 1);
    assert_eq!(bench.after(SECOND), ["1 scope 0"], "also if it is earlier");

    // Four levels, two seconds in all, though each has one: when the innermost has released there is no timer any more.
    let half = SECOND / 2;
    assert_eq!(descend(&mut bench, 4, half), [""; 0]);
    assert_eq!(bench.after(10 * SECOND), [""; 0]);

    // Each level's own time counts from its acquire: the innermost is late.
    let client = bench.client(1);
    let outer = TimerGuard::builder().client(&client).scope("level").expires(SECOND).unwrap();
    let inner = TimerGuard::builder().client(&client).scope("level").expires(SECOND).unwrap();
    assert_eq!(bench.after(2 * SECOND), ["1 level 0"]);
    drop((inner, outer));
}

#[test]
fn t6_different_scopes_of_a_worker_are_separate_timers() {
    let mut bench = Bench::new();
    bench.acquire(1, "one", 5);
    bench.acquire(1, "other", 2);
    bench.release(1, "one");
    assert_eq!(bench.after(SECOND), [""; 0]);
    assert_eq!(bench.after(SECOND), ["1 other 0"], "it was not released with the first");
    bench.acquire(2, "one", 2);
    bench.acquire(1, "one", 1);
    bench.release(1, "one");
    assert_eq!(bench.after(2 * SECOND), ["2 one 0"], "nor is another worker's of the same name");
}

#[test]
fn extend_gives_the_time_from_now() {
    let mut bench = Bench::new();
    let client = bench.client(1);
    let mut timer = TimerGuard::builder().client(&client).expires(2 * SECOND).unwrap();
    assert_eq!(bench.after(SECOND), [""; 0]);
    timer.extend(2 * SECOND).unwrap();
    assert_eq!(bench.after(2 * SECOND - NANO), [""; 0]);
    assert_eq!(bench.after(NANO).len(), 1);
    drop(timer);
}

#[test]
fn no_time_expires_at_once_and_a_very_long_one_never() {
    let mut bench = Bench::new();
    let (one, two) = (bench.client(1), bench.client(2));
    let _none = TimerGuard::builder().client(&one).scope("none").expires(Duration::ZERO).unwrap();
    let _all = TimerGuard::builder().client(&two).scope("all").expires(Duration::MAX).unwrap();
    assert_eq!(bench.turn(), ["1 none 0"]);
    assert_eq!(bench.after(Duration::from_secs(99 * 365 * 24 * 3600)), [""; 0]);
}

#[test]
fn release_says_what_the_client_says_and_is_not_said_twice() {
    let client = Recorder::default();
    let timer = guard(&client, "a", 1);
    timer.release().unwrap();
    assert_eq!(client.log.read(), ["acquire a 1", "release a"]);
    let timer = guard(&client, "b", 1);
    client.refuse(Some(|| TimerError::ServerGone));
    assert!(matches!(timer.release(), Err(TimerError::ServerGone)));
    assert_eq!(client.log.read(), ["acquire b 1", "release b"]);
}

#[test]
fn t24_without_a_server_a_client_errs_at_once() {
    let (timers, queue) = channel::<u32>();
    let client = timers.client(1);
    let mut timer = TimerGuard::builder().client(&client).expires(SECOND).unwrap();
    drop(queue);
    assert!(matches!(timer.extend(SECOND), Err(TimerError::ServerGone)));
    assert!(matches!(timer.release(), Err(TimerError::ServerGone)));
    assert!(matches!(
        TimerGuard::builder().client(&client).expires(SECOND).map(drop),
        Err(TimerError::ServerGone)
    ));
}

#[test]
fn t28_what_fits_into_no_message_is_an_error_and_then_there_is_no_timer() {
    let client = Recorder::default();
    client.refuse(Some(|| TimerError::too_large(100, 64)));
    let error = TimerGuard::builder().client(&client).scope("long").expires(SECOND).unwrap_err();
    assert!(matches!(error, TimerError::TooLarge { size: 100, limit: 64, .. }));
    assert!(error.to_string().contains("100 bytes"), "{error}");
    assert_eq!(client.log.read(), ["acquire long 1"], "nothing is released");
}

#[test]
fn t25_a_signal_that_the_client_cannot_tell_is_an_error() {
    let client = Recorder::default();
    let with = |signal: Signal| {
        TimerGuard::builder().client(&client).scope("s").signal(signal).expires(SECOND).map(drop)
    };
    assert!(matches!(with(15.into()), Err(TimerError::SignalUnsupported)));
    assert!(matches!(with(Signal::LogOnly), Err(TimerError::SignalUnsupported)));
    assert_eq!(client.log.read(), [""; 0]);
    with(Signal::Default).unwrap();
}

/// What stands in a server's table after everything that was sent to this queue.
fn table_of(queue: &mut TimerReceiver<u32>, table: &mut TimerTable<u32>) -> usize {
    let sent = queue.size();
    let requests = queue.get(sent, Duration::ZERO).unwrap();
    table.register(requests).unwrap();
    table.len()
}

#[test]
fn two_that_pass_the_same_line_have_a_timer_each_and_one_that_calls_itself_has_one() {
    fn passes(client: &impl TimerClient) -> TimerGuard<'_> {
        TimerGuard::builder().client(client).expires(SECOND).unwrap()
    }
    fn calls_itself(client: &impl TimerClient, deep: u32, inmost: &mut dyn FnMut()) {
        let _timer = passes(client);
        if deep == 0 { inmost() } else { calls_itself(client, deep - 1, inmost) }
    }
    let (timers, mut queue) = channel();
    let (client, mut table) = (timers.client(1), TimerTable::new());
    let (queue, table) = (&mut queue, &mut table);

    // Two threads.
    let here = passes(&client);
    let scope = here.scope();
    thread::scope(|s| {
        s.spawn(|| {
            let there = passes(&client);
            assert_eq!((scope.name(), scope == there.scope()), (there.scope().name(), false));
            assert_eq!(table_of(queue, table), 2);
        });
    });
    assert_eq!(table_of(queue, table), 1, "the release of the other thread stops its own timer only");
    calls_itself(&client, 3, &mut || assert_eq!(table_of(queue, table), 1));
    drop(here);
    assert_eq!(table_of(queue, table), 0);

    // A request, and a child that runs on its stack.
    let runtime = Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let outer = passes(&client);
        let inner = Request::new({
            let client = client.clone();
            move || passes(&client).scope().clone()
        });
        assert_ne!(inner.wait().unwrap(), outer.scope());
        assert_eq!(table_of(queue, table), 1, "the child's release stops its own timer only");
        let region = forebear::time::timeout(SECOND, || passes(&client).scope().clone()).unwrap();
        assert_eq!(region, *outer.scope(), "a region is part of the request that calls it");
        calls_itself(&client, 3, &mut || assert_eq!(table_of(queue, table), 1));
    });
}

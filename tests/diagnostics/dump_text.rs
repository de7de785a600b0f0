//! A dump as text, letter for letter. In a program of its own: numbers of requests count up in a process.

use std::sync::Arc;
use std::time::Duration;

use forebear::channel::unbounded_named;
use forebear::sync::{Event, Mutex, RwLock, Semaphore};
use forebear::{Priority, Request, Runtime, join, scope, yield_now};

/// The same program, the same seed, the same text: twice in one process but for the numbers.
#[test]
fn in_the_seeded_mode_a_dump_is_the_same_text_each_time() {
    let text = story();
    assert_eq!(text, include_str!("dump_text.txt").trim_end(), "\n{text}");
}

fn story() -> String {
    let runtime = Runtime::builder().seeded(7).name("app").build().unwrap();
    let rt = runtime.clone();
    let dump = runtime.run(move || {
        let named = |name: &'static str| Request::builder().name(name).on(&rt);
        let end = Arc::new(Event::new());
        let until_the_end = || {
            let end = end.clone();
            move || end.wait().unwrap()
        };
        let lock = Arc::new(Mutex::named("cache", 0));
        let table = Arc::new(RwLock::new(0));
        let slots = Arc::new(Semaphore::named("slots", 0));
        let ((to_left, left), (to_right, right)) =
            (unbounded_named::<u32>("left's"), unbounded_named("right's"));

        named("left").try_spawn(move || Ok(_ = to_right.send(left.recv()?)));
        named("right").try_spawn(move || Ok(_ = to_left.send(right.recv()?)));
        let (held, read, wait) = (lock.clone(), table.clone(), until_the_end());
        named("holder").priority(Priority::URGENT).spawn(move || {
            let (_guard, _share) = (held.lock(), read.read());
            wait();
        });
        settle();
        named("wants lock").spawn(move || *lock.lock() += 1);
        named("wants table").spawn(move || *table.write() += 1);
        named("wants slot").spawn(move || drop(slots.acquire()));
        // It ends: the clock moves when nobody else can go on.
        named("sleeper").spawn(|| forebear::time::sleep(Duration::from_secs(3_600)));
        let (a, b) = (until_the_end(), until_the_end());
        named("outer").spawn(move || {
            scope(|s| {
                Request::builder().name("job").own_stack().spawn_in(s, a);
                Request::builder().name("another\njob").own_stack().spawn_in(s, b);
            });
        });
        let (a, b) = (until_the_end(), until_the_end());
        named("joins").priority(Priority::BACKGROUND).spawn(move || _ = join(a, b));
        let wait = until_the_end();
        named("lender").spawn(move || Request::builder().name("guest").build(wait).wait().copied());
        settle();
        rt.spawn(|| ());
        let cancelled = named("cancelled").spawn(|| forebear::shield(|| yield_now().map(|()| settle())));
        settle();
        cancelled.cancel();
        let text = rt.dump().to_string();
        end.set();
        text
    });
    runtime.shutdown(Duration::from_secs(60)).unwrap();
    dump
}

fn settle() {
    for _ in 0..100 {
        yield_now().unwrap();
    }
}

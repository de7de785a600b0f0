//! What must work where a panic ends the process: compiled and run by ci/panic-abort. With the argument `panic` a
//! request panics, with `cancel` one is cancelled inside a scope, and the process must not get past that.

use forebear::sync::Event;
use forebear::{Request, Runtime, WaitError, join, scope, spawn};
use std::rc::Rc;

fn main() {
    let runtime = Runtime::builder().workers(2).build().expect("two workers");

    if std::env::args().nth(1).as_deref() == Some("panic") {
        runtime.run(|| spawn(|| -> u32 { panic!("on purpose") }).take().is_err());
        println!("still here after a panic");
        return;
    }

    if std::env::args().nth(1).as_deref() == Some("cancel") {
        let (inside, is_inside) = std::sync::mpsc::channel();
        let cancelled = Request::builder().name("cancelled").on(&runtime).spawn(move || {
            scope(|s| {
                s.spawn(move || {
                    inside.send(()).expect("the main thread waits");
                    _ = Event::new().wait();
                });
            });
        });
        is_inside.recv().expect("the job runs");
        cancelled.cancel();
        _ = cancelled.wait();
        println!("still here after a cancel inside a scope");
        return;
    }

    // By value, by reference, shared by two.
    assert!(matches!(runtime.run(|| spawn(|| 6 * 7).take()), Ok(42)));
    let sum = runtime.run(|| {
        let shared = Request::new(|| vec![1, 2, 3]);
        let halves = [0, 1].map(|_| {
            let shared = shared.clone();
            Request::try_new(move || Ok(shared.wait()?.iter().sum::<i32>()))
        });
        halves[1].submit();
        halves.map(|half| half.take().expect("no failure"))
    });
    assert_eq!(sum, [6, 6]);

    // An error travels as a value, so it needs no unwinding.
    let failed =
        runtime.run(|| Request::<()>::try_new(|| Err(std::io::Error::other("no such layer").into())).take());
    match failed {
        Err(WaitError::Failed(failure)) => assert!(format!("{failure:#}").contains("no such layer")),
        other => panic!("a failure was expected, not {other:?}"),
    }

    // Both arms, and something that is not Send across the join.
    let arms = runtime.run(|| {
        let local = Rc::new(1);
        join(|| *local, || 2)
    });
    assert_eq!(arms, (1, 2));

    drop(runtime);
    println!("smoke: ok");
}

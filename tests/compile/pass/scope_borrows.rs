//! Jobs of a scope borrow from the surroundings, also mutably, and a handle or a value may leave.
use forebear::{Request, Scope, WaitError, join, scope, spawn, try_scope};
use std::sync::atomic::{AtomicU32, Ordering};

fn recursive<'scope>(s: &'scope Scope<'scope, '_>, count: &'scope AtomicU32, depth: u32) {
    count.fetch_add(1, Ordering::Relaxed);
    if depth > 0 {
        s.spawn(move || recursive(s, count, depth - 1));
    }
}

fn main() -> Result<(), WaitError> {
    let text = String::from("a b");
    let mut halves = [1, 2];

    // Values that borrow from the surroundings leave, by handle and directly.
    let handle = scope(|s| s.spawn(|| text.split(' ').next()));
    let words = scope(|s| s.spawn(|| text.split(' ').collect::<Vec<_>>()).take())?;
    assert_eq!(handle.take()?, words.first().copied());

    let (left, right) = halves.split_at_mut(1);
    scope(|s| {
        s.spawn(|| left[0] += 1);
        Request::builder().name("named").spawn_in(s, || right[0] += 1);
        // A job spawns on, and a handle of it may be handed to a job that is `'static`.
        let plain = s.spawn(|| 7);
        spawn(move || plain.wait().copied().ok());
    });
    assert_eq!(halves, [2, 3]);

    let count = AtomicU32::new(0);
    scope(|s| recursive(s, &count, 10));
    scope(|outer| {
        scope(|inner| {
            inner.spawn(|| outer.spawn(|| count.fetch_add(1, Ordering::Relaxed)));
        });
        join(|| (), || drop(outer.spawn(|| count.fetch_add(1, Ordering::Relaxed))));
    });

    let sum = try_scope(|s| {
        let parsed = s.try_spawn(|| Ok(words[0].len() as u32 + "1".parse::<u32>()?));
        Ok(parsed.take()? + count.load(Ordering::Relaxed))
    })?;
    println!("{sum}");
    Ok(())
}

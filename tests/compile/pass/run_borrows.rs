//! `run` returns when all is done, so its closure may borrow, also mutably.
use forebear::{Runtime, WaitError};
use std::cell::Cell;

fn main() -> Result<(), WaitError> {
    let runtime = Runtime::new().unwrap();
    let text = String::from("borrowed");
    let mut seen = Vec::new();
    let first: &str = runtime.run(|| {
        seen.push(1);
        &text[..1]
    });
    let length = runtime.try_run(|| Ok(text.len() + "1".parse::<usize>()?))?;
    // `enter` stays here.
    let here = Cell::new(1);
    runtime.enter(|| here.set(2));
    println!("{first} {length} {seen:?}");
    Ok(())
}

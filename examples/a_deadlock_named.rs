//! Three steps of an import that wait for each other, found when the cycle closes, and named.
//!
//! Each step reads what another one makes, and somebody has drawn the arrows in a cycle. With threads and locks such a program
//! hangs, and says nothing. Here the wait that closes the cycle answers `CircularWait` with the names in order; its request
//! fails with that, and so everybody who waits hears of it.
//!
//! ```text
//! cargo run --example a_deadlock_named
//! ```

use std::sync::{Arc, OnceLock};

use forebear::prelude::*;
use forebear::{Error, WaitError};

/// The steps, which know each other by name.
type Steps = Arc<OnceLock<Vec<Request<String>>>>;

/// A step that puts something before what another one makes.
fn step(name: &'static str, needs: &'static str, steps: &Steps) -> Request<String> {
    let steps = steps.clone();
    Request::builder().name(name).try_build(move || {
        let mut all = steps.get().into_iter().flatten();
        match all.find(|step| step.name() == needs) {
            Some(needed) => Ok(format!("{name} of {}", needed.wait()?)),
            None => Ok(name.to_owned()),
        }
    })
}

fn main() -> Result<(), Error> {
    let steps = Steps::default();
    let made = vec![
        step("parse", "resolve", &steps),
        step("resolve", "load", &steps),
        step("load", "parse", &steps), // here
    ];
    let parse = made[0].clone();
    let _ = steps.set(made);

    let Err(WaitError::Failed(failure)) = parse.wait() else { unreachable!("nothing can come of a cycle") };
    println!("{failure}");

    // Somewhere down the line of causes stands the cycle itself.
    let mut error: Option<&WaitError> = failure.downcast_ref();
    while let Some(WaitError::Failed(inner)) = error {
        error = inner.downcast_ref();
    }
    let Some(WaitError::CircularWait(cycle)) = error else { panic!("{error:?}") };
    println!("{cycle}");
    assert_eq!(cycle.names().collect::<Vec<_>>(), ["load", "parse", "resolve", "load"]);
    Ok(())
}

//! A job is cancelled half done; the work that it shares with another continues.
//!
//! Two maps of one valley are drawn at the same time. Each has a frame and lettering of its own, and both need the same
//! survey, which is measured once. In the first act somebody presses *cancel* on one of the maps: what it alone wanted
//! stops, and the survey does not, for the other map still waits for it. In the second act the other map is cancelled
//! too: now nobody wants the survey any more, and it stops as well. Nobody counts who needs what; the waits say it.
//!
//! Everything runs on one worker, so the program prints the same every time.
//!
//! ```text
//! cargo run --example cancel_spares_shared_work
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebear::prelude::*;
use forebear::{CancelReason, Cancellation, State, shield, yield_now};

const STRIPS: usize = 1000;

/// Measures the valley strip by strip, and counts them in `measured`.
fn survey(measured: &Arc<AtomicUsize>) -> Request<Vec<usize>> {
    let measured = measured.clone();
    let measure = move || {
        let mut heights = Vec::new();
        for strip in 1..=STRIPS {
            yield_now()?; // here it would learn that nobody wants it any more
            heights.push(strip);
            measured.store(strip, Relaxed);
        }
        println!("  survey: all {STRIPS} strips measured");
        Ok(heights)
    };
    // On a stack of its own. Otherwise the first map would lend it one, by waiting, and then, cancelled, could not return
    // before the survey on top of it has.
    Request::builder().name("survey").own_stack().try_build(measure)
}

/// Draws one map: a frame, then the heights. The lettering is made meanwhile.
fn map(name: &'static str, survey: &Request<Vec<usize>>) -> Request<String> {
    let survey = survey.clone();
    let draw = move || {
        println!("  {name}: frame drawn");
        let lettering = Request::builder().name("lettering").try_spawn(move || letter(name));
        match survey.wait() {
            Ok(heights) => {
                println!("  {name}: heights drawn");
                Ok(format!("{}, {} strips", lettering.wait()?, heights.len()))
            }
            Err(error) => {
                // Told at once, in the middle of the wait; and so is the lettering, which this request has made. That
                // it has stopped one may wait for, shielded: a cancelled request is not let into any other wait.
                assert!(shield(|| lettering.watch()).is_err());
                println!("  {name}: lettering stopped, half a map thrown away");
                Err(error.into())
            }
        }
    };
    Request::builder().name(name).try_build(draw)
}

/// The lettering of one map, which takes as long as the survey.
fn letter(name: &'static str) -> forebear::Result<String> {
    for _ in 0..STRIPS {
        yield_now()?;
    }
    Ok(format!("the {name} of the valley"))
}

/// Orders both maps, and lets them come half-way. The survey comes along as an untyped handle.
fn half_way() -> Result<([Request<String>; 2], AnyRequest), Cancelled> {
    let measured = Arc::new(AtomicUsize::new(0));
    let survey = survey(&measured);
    let maps = ["roads", "rivers"].map(|name| map(name, &survey));
    maps.iter().for_each(|map| _ = map.submit());
    let waiting = |map: &Request<String>| map.state() == State::Suspended;
    while measured.load(Relaxed) < 2 || !maps.iter().all(waiting) {
        yield_now()?;
    }
    println!("both wait for the survey, which has begun");
    Ok((maps, survey.to_untyped()))
}

/// Presses *cancel* on one of the maps.
fn cancel(name: &str, map: &Request<String>) {
    println!("cancel the {name}");
    assert_eq!(map.cancel(), Cancellation::Marked);
}

/// What a user gets to see of a map that was ordered.
fn show(name: &str, map: &Request<String>) {
    match map.wait() {
        Ok(text) => println!("{name}: {text:?}"),
        Err(WaitError::TargetCancelled(CancelReason::Asked)) => println!("{name}: cancelled"),
        Err(error) => panic!("{name}: {error}"),
    }
}

fn one_is_cancelled() -> forebear::Result<()> {
    println!("First act: the roads are cancelled.");
    let ([roads, rivers], survey) = half_way()?;
    cancel("roads", &roads);
    show("roads", &roads);
    // Even who asks for the survey itself to be cancelled is told that somebody wants it.
    assert_eq!(survey.cancel(), Cancellation::Vetoed);
    show("rivers", &rivers);
    assert_eq!(survey.state(), State::Finished);
    Ok(())
}

fn both_are_cancelled() -> forebear::Result<()> {
    println!("Second act: the rivers, too.");
    let ([roads, rivers], survey) = half_way()?;
    cancel("roads", &roads);
    show("roads", &roads);
    assert!(!survey.is_cancelled(), "the rivers still want it");
    cancel("rivers", &rivers);
    show("rivers", &rivers);
    // To watch is to wait for the end without wanting the value: it would not have kept the survey going.
    assert!(matches!(survey.watch(), Err(WaitError::TargetCancelled(_))));
    println!("survey: stopped, nobody wants it any more");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = Runtime::builder().workers(1).build()?;
    rt.try_run(one_is_cancelled)?;
    rt.try_run(both_are_cancelled)?;
    Ok(())
}

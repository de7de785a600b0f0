//! `?` turns every error into `Error` in a `try_` form; outcomes are matched without a rest.
use forebear::{Cancelled, Error, Outcome, Request, WaitError, try_join, try_scope, try_spawn, yield_now};

fn waits() -> Result<u32, WaitError> {
    yield_now()?;
    Ok(*Request::ready(1_u32).wait()?)
}

fn boxed() -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
    Ok(waits()?)
}

fn tells(outcome: Outcome<'_, u32>) -> &'static str {
    match outcome {
        Outcome::Finished(_) => "finished",
        Outcome::Failed(_) => "failed",
        Outcome::Cancelled(_) => "cancelled",
    }
}

fn converts(cancelled: Cancelled) -> WaitError {
    cancelled.into()
}

fn main() -> forebear::Result<()> {
    let request = try_spawn(|| {
        let number: u32 = "1".parse()?;
        let read = std::fs::read("no such file").map(|bytes| bytes.len()).or_else(|_| Ok::<_, Error>(0))?;
        let text: u32 = boxed().map_err(Error::other)?;
        let (a, b) = try_join(|| Ok(waits()?), || Ok("2".parse::<u32>()?))?;
        let c = try_scope(|s| Ok(s.try_spawn(|| Ok(waits()?)).take()?))?;
        yield_now()?;
        Ok(number + read as u32 + text + a + b + c)
    });
    request.wait()?;
    println!("{:?}", request.outcome().map(tells));
    let _ = converts;
    Ok(())
}

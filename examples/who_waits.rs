//! A program that hangs, and what a dump says of it: one request holds a lock and waits for an event; the one that would set the
//! event waits for the lock. No cycle of waits is found, since nobody knows who will set an event. The dump shows it at a look.
//!
//! `cargo run --example who_waits`

use std::sync::Arc;
use std::time::Duration;

use forebear::dump::Party;
use forebear::prelude::*;
use forebear::sync::{Event, Mutex};
use forebear::time::sleep;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::builder().name("app").workers(2).build()?;
    let (cache, filled) = (Arc::new(Mutex::named("cache", 0)), Arc::new(Event::new()));

    let fill = Request::builder().name("fill").on(&runtime).spawn({
        let (cache, filled) = (cache.clone(), filled.clone());
        move || {
            let _held = cache.lock();
            filled.wait() // with the lock in its hand
        }
    });
    let load = Request::builder().name("load").on(&runtime).try_spawn({
        let (cache, filled) = (cache.clone(), filled.clone());
        move || {
            sleep(Duration::from_millis(20))?;
            *cache.lock() += 1; // for ever
            filled.set();
            Ok(())
        }
    });

    // A second would be usual; here somebody is impatient.
    if load.wait_timeout(Duration::from_millis(200)).is_err() {
        let dump = runtime.dump();
        println!("{dump}\n");
        // The same as data: from who hangs to who is to blame.
        let mut at = dump.find("load");
        while let Some(request) = at {
            let Some(wait) = &request.waits_for else { break };
            println!("{} waits for {}", request.name, wait.what);
            at = wait.owners.iter().find_map(|owner| match owner {
                Party::Request { id, .. } => dump.request(*id),
                _ => None,
            });
        }
        assert_eq!(dump.find("fill").map(|fill| fill.waits_for.is_some()), Some(true));
    }
    fill.cancel();
    load.wait()?;
    println!("with fill cancelled, load has come to its end");
    Ok(())
}

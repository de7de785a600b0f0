//! Priorities at work: what runs first when there is more to do than workers.
//!
//! One worker, and a morning's work that arrives in the wrong order. What has a more urgent priority goes first; what has
//! the same goes in order of arrival; and what a request orders for itself goes with *its* place in the order, not to the
//! end of the queue. That last rule is why old work gets finished before new work is begun.
//!
//! With one worker the order is fixed, so the program can check it.
//!
//! ```text
//! cargo run --example priorities
//! ```

use std::sync::mpsc::{self, Sender};

use forebear::prelude::*;
use forebear::{Priority, RequestBuilder};

/// Orders one piece of work, and in it two more.
fn order(name: &'static str, priority: Priority, log: &Sender<String>) -> Request<()> {
    let log = log.clone();
    described(name, priority).spawn(move || {
        report(&log, name.into());
        for part in 1..=2 {
            let log = log.clone();
            // No priority of its own: a child stands where its parent stands.
            spawn(move || report(&log, format!("{name}, part {part}")));
        }
    })
}

/// The name is what a dump would show.
fn described(name: &'static str, priority: Priority) -> RequestBuilder {
    Request::builder().name(name).priority(priority)
}

fn report(log: &Sender<String>, line: String) {
    // The main thread listens until it has heard from everybody.
    let _ = log.send(line);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = Runtime::builder().workers(1).build()?;
    let (log, lines) = mpsc::channel();

    // All of it is ordered inside one request, which keeps the only worker busy until the last piece has been ordered.
    // Its handle is not waited for: `main` would then run it on its own thread, and the worker would be free.
    let (hand_out, handles) = mpsc::channel();
    rt.spawn(move || {
        let morning = [
            order("tidy up", Priority::BACKGROUND, &log),
            order("answer letters", Priority::NORMAL, &log),
            order("write report", Priority::NORMAL, &log),
            order("put out fire", Priority::URGENT, &log),
        ];
        let _ = hand_out.send(morning);
    });
    let morning = handles.recv()?;

    let expected = [
        "put out fire",
        "put out fire, part 1",
        "put out fire, part 2",
        "answer letters",
        "answer letters, part 1",
        "answer letters, part 2",
        "write report",
        "write report, part 1",
        "write report, part 2",
        "tidy up",
        "tidy up, part 1",
        "tidy up, part 2",
    ];
    // The channel ends when the last request has dropped its end of it: by then all have run.
    let lines: Vec<String> = lines.iter().inspect(|line| println!("{line}")).collect();
    assert_eq!(lines, expected);
    for piece in &morning {
        piece.wait()?;
    }
    Ok(())
}

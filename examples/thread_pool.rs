//! A plain thread pool, without requests: threads, a queue with priorities, and a stop that loses nothing.
//!
//! A print shop with one press. Jobs are printed in order of their class, within a class in order of arrival; what lies
//! in the tray when the shop closes is handed back, and is printed elsewhere.
//!
//! ```text
//! cargo run --example thread_pool
//! ```

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use forebear::pool::{PriorityQueue, ThreadPool};

/// Smaller goes first. Only the class is compared, never the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Proof,
    Order,
    Closing,
    Stock,
}

/// Closures of many types in one queue.
type Job = Box<dyn FnOnce() + Send>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shop = Arc::new(ThreadPool::new(1, PriorityQueue::<Class, Job>::new())?);
    let printed = Arc::new(Mutex::new(Vec::new()));
    let print = |what: &'static str| -> Job {
        let printed = printed.clone();
        Box::new(move || {
            println!("printed {what}");
            if let Ok(mut list) = printed.lock() {
                list.push(what);
            }
        })
    };

    // The press is busy while the orders come in; so they lie in the tray together, and the order can be seen.
    let (running, is_running) = mpsc::channel();
    let (let_go, may_go) = mpsc::channel::<()>();
    let warm_up: Job = Box::new(move || {
        let _ = running.send(());
        let _ = may_go.recv();
    });
    shop.submit((Class::Proof, warm_up)).map_err(|_| "closed")?;
    is_running.recv()?;

    // Closing is a job like the others, so that it is clear what was before it. Stopping from within, the shop cannot
    // wait for the very thread that asks: that one ends when the job has.
    let (hand_back, handed_back) = mpsc::channel();
    let closing: Job = Box::new({
        let shop = shop.clone();
        move || {
            let _ = hand_back.send(shop.stop());
        }
    });
    let jobs = [
        (Class::Stock, print("calendars")),
        (Class::Order, print("invitations")),
        (Class::Stock, print("envelopes")),
        (Class::Closing, closing),
        (Class::Order, print("posters")),
        (Class::Proof, print("a proof of the book")),
    ];
    for job in jobs {
        shop.submit(job).map_err(|_| "closed")?;
    }
    let_go.send(())?;

    let mut left = handed_back.recv()?;
    left.sort_by_key(|(class, _)| *class);
    assert_eq!(left.iter().map(|(class, _)| *class).collect::<Vec<_>>(), [Class::Stock, Class::Stock]);
    assert_eq!(
        *printed.lock().map_err(|_| "a job panicked")?,
        ["a proof of the book", "invitations", "posters"]
    );
    println!("closed; handed back: {} jobs", left.len());

    // A closed shop takes nothing more: the job comes back in the error.
    if let Err(refused) = shop.submit((Class::Proof, print("a late proof"))) {
        left.push(refused.into_inner());
    }
    for (_, job) in left {
        job(); // printed elsewhere: here
    }
    let printed = printed.lock().map_err(|_| "a job panicked")?;
    assert_eq!(printed[3..], ["calendars", "envelopes", "a late proof"], "not one lost");
    Ok(())
}

//! Producers and consumers over a bounded channel, until somebody cancels.
//!
//! Three producers read a number of records each and send them; the channel has room for four, so they wait for the consumers. Two
//! consumers take whatever comes first: a record, or the word to stop. Nobody counts who is left: when the last producer goes, or the
//! last consumer, the other side is told. In the second act one producer is cancelled in the middle of a send: it gets its record
//! back and puts it aside, and everything that was sent is still received.
//!
//! ```text
//! cargo run --example producers_and_consumers
//! ```

use std::sync::Arc;

use forebear::channel::{Receiver, SendError, Sender, bounded};
use forebear::prelude::*;
use forebear::select::cancelled;
use forebear::sync::{Event, Mutex};

const RECORDS: u32 = 20;

/// What has become of the records.
#[derive(Default)]
struct Books {
    received: Mutex<Vec<u32>>,
    put_aside: Mutex<Vec<u32>>,
}

fn producer(first: u32, records: Sender<u32>, books: Arc<Books>) -> Request<u32> {
    spawn(move || {
        let mut sent = 0;
        for record in first..first + RECORDS {
            match records.send(record) {
                Ok(()) => sent += 1,
                // The record comes back; a cancelled request may still lock, and is done.
                Err(SendError::Cancelled(record) | SendError::Disconnected(record)) => {
                    books.put_aside.lock().push(record);
                    break;
                }
            }
        }
        sent
    })
}

fn consumer(records: Receiver<u32>, stop: Arc<Event>, books: Arc<Books>) -> Request<()> {
    spawn(move || {
        loop {
            select! {
                biased;
                record = &records => match record {
                    Ok(record) => books.received.lock().push(record),
                    Err(_) => return, // no producer is left
                },
                _ = &*stop => return,
                _ = cancelled() => return,
            }
        }
    })
}

/// Begins three producers and two consumers.
fn begin(books: &Arc<Books>, stop: &Arc<Event>) -> (Vec<Request<u32>>, Vec<Request<()>>) {
    let (sender, receiver) = bounded(4);
    let producers = (0..3).map(|n| producer(n * RECORDS, sender.clone(), books.clone())).collect();
    let consumers = (0..2).map(|_| consumer(receiver.clone(), stop.clone(), books.clone())).collect();
    (producers, consumers)
}

fn to_the_end() -> Result<(), WaitError> {
    let (books, stop) = (Arc::<Books>::default(), Arc::new(Event::new()));
    let (producers, consumers) = begin(&books, &stop);
    let sent: u32 = producers.iter().map(|producer| producer.wait().copied()).sum::<Result<_, _>>()?;
    consumers.iter().try_for_each(|consumer| consumer.wait().copied())?;
    println!("to the end: {sent} sent, {} received", books.received.lock().len());
    Ok(())
}

fn one_is_cancelled() -> Result<(), WaitError> {
    let (books, stop) = (Arc::<Books>::default(), Arc::new(Event::new()));
    let (producers, consumers) = begin(&books, &stop);
    producers[1].cancel();
    for producer in &producers {
        let _ = producer.wait();
    }
    consumers.iter().try_for_each(|consumer| consumer.wait().copied())?;
    let (received, put_aside) = (books.received.lock(), books.put_aside.lock());
    let others = received.iter().filter(|&&record| record / RECORDS != 1).count();
    println!("one is cancelled: all {others} records of the others received");
    // None is lost, none comes twice.
    let mut all: Vec<_> = received.iter().chain(put_aside.iter()).collect();
    all.sort_unstable();
    assert!(all.windows(2).all(|two| two[0] != two[1]));
    Ok(())
}

fn they_are_stopped() -> Result<(), WaitError> {
    let (books, stop) = (Arc::<Books>::default(), Arc::new(Event::new()));
    let (producers, consumers) = begin(&books, &stop);
    stop.set();
    consumers.iter().try_for_each(|consumer| consumer.wait().copied())?;
    // With the last consumer gone, whoever sends gets its record back.
    for producer in &producers {
        producer.wait()?;
    }
    println!("they are stopped: nobody is left waiting");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    to_the_end()?;
    one_is_cancelled()?;
    they_are_stopped()?;
    Ok(())
}

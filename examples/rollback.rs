//! Rollback: what a cancelled job has done to the world outside is undone, in two styles.
//!
//! A journey is booked: train, hotel, museum, each by a request of its own, with an office that remembers. Either all
//! three are booked in the end or none is, whatever comes in between: a place is sold out, or the traveller changes their
//! mind. Giving a ticket back is a request too, so the clean-up has to *wait*, and in a cancelled request every wait answers
//! `Cancelled`. [`shield`] opens a region in which none does.
//!
//! - [`book`] is written with `Result` and `?`. The clean-up stands where the error comes by.
//! - [`book_unwinding`] is for code that has no `Result` to return, because a callback or a trait of somebody else stands in
//!   between. [`OrUnwind::or_unwind`] carries the error past it as an unwind, and [`catch`] turns it into an error again.
//!   The clean-up stands behind `catch`, *outside* the unwind: a destructor that runs during it must not wait.
//!
//! Both hand the error on when they are done, and so the request ends as cancelled, or failed.
//!
//! ```text
//! cargo run --example rollback
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use forebear::prelude::*;
use forebear::{CancelReason, Error, catch, shield, yield_now};

const JOURNEY: [&str; 3] = ["train", "hotel", "museum"];

/// The world outside: what is booked there stays booked, whatever becomes of who booked it.
#[derive(Clone, Debug)]
struct Office(Arc<Mutex<Books>>);

#[derive(Debug)]
struct Books {
    booked: Vec<&'static str>,
    museum: Museum,
}

/// What the museum does with an order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Museum {
    Sells,
    IsSoldOut,
    /// Nobody answers the telephone there.
    Keeps,
}

impl Office {
    fn new(museum: Museum) -> Office {
        Office(Arc::new(Mutex::new(Books { booked: Vec::new(), museum })))
    }

    /// A lock of std's blocks the thread: it is let go before anything waits.
    fn with<R>(&self, f: impl FnOnce(&mut Books) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn reserve(&self, place: &'static str) -> Request<Ticket> {
        let office = self.clone();
        Request::builder().name(format!("reserve {place}")).try_build(move || {
            yield_now()?; // the post is slow
            while place == "museum" && office.with(|books| books.museum) == Museum::Keeps {
                yield_now()?;
            }
            if place == "museum" && office.with(|books| books.museum) == Museum::IsSoldOut {
                return Err(Error::other("sold out"));
            }
            office.with(|books| books.booked.push(place));
            println!("    booked {place}");
            Ok(Ticket { place, office: office.clone() })
        })
    }
}

/// A reservation that was made.
#[derive(Debug)]
struct Ticket {
    place: &'static str,
    office: Office,
}

impl Ticket {
    /// Gives it back, by a request that has to wait for the post, too.
    fn give_back(self) -> Request<()> {
        Request::builder().name(format!("give back {}", self.place)).try_build(move || {
            yield_now()?;
            self.office.with(|books| books.booked.retain(|place| *place != self.place));
            println!("    gave back {}", self.place);
            Ok(())
        })
    }
}

/// Undoes what was done, the latest first. Works in a cancelled request: what waits in here is not told, and what is made
/// in here is not born cancelled.
fn roll_back(mut tickets: Vec<Ticket>) -> Result<(), WaitError> {
    shield(|| {
        while let Some(ticket) = tickets.pop() {
            ticket.give_back().wait()?;
        }
        Ok(())
    })
}

/// All or nothing, with `?`.
fn book(office: &Office) -> forebear::Result<Vec<Ticket>> {
    let mut tickets = Vec::new();
    for place in JOURNEY {
        match office.reserve(place).take() {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => {
                roll_back(tickets)?;
                return Err(error.into());
            }
        }
    }
    Ok(tickets)
}

/// All or nothing, where no `Result` gets through: `for_each_place` is somebody else's, and calls something that returns
/// nothing.
fn book_unwinding(office: &Office) -> forebear::Result<Vec<Ticket>> {
    let mut tickets = Vec::new();
    let booked = catch(|| {
        for_each_place(&mut |place| tickets.push(office.reserve(place).take().or_unwind()));
    });
    // The unwind is over, so this is a place where one may wait again.
    if let Err(error) = booked {
        roll_back(tickets)?;
        return Err(error);
    }
    Ok(tickets)
}

fn for_each_place(visit: &mut dyn FnMut(&'static str)) {
    JOURNEY.iter().for_each(|place| visit(place));
}

type Style = fn(&Office) -> forebear::Result<Vec<Ticket>>;

/// Books as a request of its own, and cancels it if the museum never answers.
fn travel(style: Style, museum: Museum) -> forebear::Result<Vec<&'static str>> {
    let office = Office::new(museum);
    let theirs = office.clone();
    let booking = Request::builder().name("booking").try_spawn(move || Ok(style(&theirs)?.len()));
    if museum == Museum::Keeps {
        while office.with(|books| books.booked.len()) < 2 {
            yield_now()?;
        }
        println!("    changed our mind");
        booking.cancel();
    }
    match booking.wait() {
        Ok(tickets) => println!("    {tickets} tickets"),
        Err(WaitError::TargetCancelled(CancelReason::Asked)) => println!("    cancelled"),
        Err(WaitError::Failed(failure)) => println!("    failed: {}", failure.error()),
        Err(error) => return Err(error.into()),
    }
    Ok(office.with(|books| books.booked.clone()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = Runtime::builder().workers(1).build()?;
    let styles: [(&str, Style); 2] = [("with Result", book), ("by unwinding", book_unwinding)];
    for (name, style) in styles {
        println!("{name}");
        for museum in [Museum::Sells, Museum::IsSoldOut, Museum::Keeps] {
            println!("  the museum: {museum:?}");
            let booked = rt.try_run(|| travel(style, museum))?;
            println!("    left with {booked:?}");
            assert_eq!(booked, if museum == Museum::Sells { &JOURNEY[..] } else { &[] });
        }
    }
    Ok(())
}

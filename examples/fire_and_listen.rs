//! Fire and listen: a window orders work, goes on drawing itself, and is told what became of it.
//!
//! A thread with an event loop must never wait. So it hangs callbacks on what it orders, and each of them does one thing:
//! it posts an event, here through a channel, in a program with a window through whatever its toolkit has
//! (`EventLoopProxy::send_event`, `glib::MainContext::invoke`, …). The handles may be dropped, the work continues; the
//! window keeps untyped ones for its *Cancel* button.
//!
//! The callbacks post by `try_send`. A callback runs as the request that has ended, and `send` is a cancellation point: in a callback of a
//! cancelled request it answers `Cancelled` and sends nothing, and so the window would never hear that its button worked.
//!
//! The user of this window orders four pictures, sees the first of them, and presses *Cancel*.
//!
//! ```text
//! cargo run --example fire_and_listen
//! ```

use std::sync::Arc;

use forebear::channel::{Receiver, Sender, unbounded};
use forebear::prelude::*;
use forebear::{Error, yield_now};

/// Shared, so that a callback, which is only lent the value, can post it without a copy.
type Pixels = Arc<[u8]>;

/// What the event loop hears of.
#[derive(Debug)]
enum Event {
    Ready {
        name: &'static str,
        pixels: Pixels,
    },
    Broken {
        name: &'static str,
        why: String,
    },
    Stopped {
        name: &'static str,
    },
    /// One of them is over, however it ended: for the counter in the status line.
    Over,
}

/// The window: it runs on the main thread and never waits for a request.
struct Window {
    rt: Runtime,
    post: Sender<Event>,
    /// What the button cancels.
    ordered: Vec<AnyRequest>,
}

impl Window {
    fn new() -> Result<(Window, Receiver<Event>), Box<dyn std::error::Error>> {
        // One worker, so that the orders are begun in the order in which they are given.
        let rt = Runtime::builder().workers(1).build()?;
        let (post, events) = unbounded();
        Ok((Window { rt, post, ordered: Vec::new() }, events))
    }

    /// Fires: nothing here takes longer than making a closure.
    fn order(&mut self, name: &'static str, paint: fn() -> forebear::Result<Pixels>) {
        println!("ordered: {name}");
        let picture = Request::builder().name(name).on(&self.rt).try_build(paint);
        let [ready, broken, stopped, over] = std::array::from_fn(|_| self.post.clone());
        // If nobody listens any more, nobody needs to be told: hence `let _`. An unbounded channel is never full.
        picture
            .on_finished(move |pixels: &Pixels| {
                let _ = ready.try_send(Event::Ready { name, pixels: pixels.clone() });
            })
            .on_failed(move |failure| {
                let _ = broken.try_send(Event::Broken { name, why: failure.error().to_string() });
            })
            .on_cancelled(move || {
                let told = stopped.try_send(Event::Stopped { name });
                assert!(
                    told.is_ok(),
                    "a cancelled request's callback can post, and the window listens to the end"
                );
            })
            // After the one of the three that was called.
            .on_done(move |_| {
                let _ = over.try_send(Event::Over);
            })
            .submit();
        self.ordered.push(picture.to_untyped());
    }

    /// The button. Does not wait either: that they have stopped will be told by events. The latest order goes first.
    fn cancel_clicked(&mut self) {
        println!("Cancel is pressed");
        while let Some(request) = self.ordered.pop() {
            request.cancel(); // those that are over already do not mind
        }
    }
}

/// Quickly painted.
fn thumbnail() -> forebear::Result<Pixels> {
    Ok((0..100).collect())
}

/// Cannot be painted.
fn scratched() -> forebear::Result<Pixels> {
    Err(Error::other("no pixels at all"))
}

/// Painted row by row, of which there are very many.
fn panorama() -> forebear::Result<Pixels> {
    loop {
        yield_now()?; // lets others on, and ends it here when the button has been pressed
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut window, events) = Window::new()?;
    window.order("scratched", scratched);
    window.order("thumbnail", thumbnail);
    window.order("panorama", panorama);
    window.order("second panorama", panorama);
    let (mut over, mut lines) = (0, Vec::new());
    while over < 4 {
        match events.recv()? {
            Event::Ready { name, pixels } => {
                println!("ready: {name}, {} pixels", pixels.len());
                // The user has seen enough.
                window.cancel_clicked();
            }
            Event::Broken { name, why } => println!("broken: {name}: {why}"),
            // The button is pressed on this thread, and they stop on theirs: who is first is not said.
            Event::Stopped { name } => lines.push(format!("stopped: {name}")),
            Event::Over => over += 1,
        }
    }
    lines.sort();
    lines.iter().for_each(|line| println!("{line}"));
    assert_eq!(lines, ["stopped: panorama", "stopped: second panorama"]);
    println!("{over} of 4 are over");
    Ok(())
}

//! The ends of a channel go from thread to thread only if its items may.

use std::cell::Cell;
use std::rc::Rc;

use forebear::channel::{bounded, watch, oneshot};

fn send<T: Send>(_: T) {}

fn main() {
    let (sender, receiver) = bounded::<Rc<u32>>(1);
    send(sender); //~ E0277 `Rc<u32>` cannot be sent between threads safely
    send(receiver); //~ E0277 `Rc<u32>` cannot be sent between threads safely
    let (sender, receiver) = bounded::<Cell<u32>>(1);
    send(&sender);
    send(&receiver);
    let (sender, receiver) = oneshot::channel::<Rc<u32>>();
    send(sender); //~ E0277 `Rc<u32>` cannot be sent between threads safely
    send(receiver); //~ E0277 `Rc<u32>` cannot be sent between threads safely
    let (sender, receiver) = watch::channel(Cell::new(1_u32));
    send(sender); //~ E0277 `Cell<u32>` cannot be shared between threads safely
    send(receiver); //~ E0277 `Cell<u32>` cannot be shared between threads safely
}

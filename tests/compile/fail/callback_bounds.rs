//! A callback is called on the thread where the request ends, and takes the value while others hold handles: it is `Send`,
//! and the value it takes is `Sync`.
use forebear::Request;
use std::cell::Cell;
use std::rc::Rc;

fn finished(request: &Request<u32>, rc: Rc<u32>) {
    request.on_finished(move |_| drop(rc)); //~ E0277 `Rc<u32>` cannot be sent between threads safely
}

fn failed(request: &Request<u32>, rc: Rc<u32>) {
    request.on_failed(move |_| drop(rc)); //~ E0277 `Rc<u32>` cannot be sent between threads safely
}

fn cancelled(request: &Request<u32>, rc: Rc<u32>) {
    request.on_cancelled(move || drop(rc)); //~ E0277 `Rc<u32>` cannot be sent between threads safely
}

fn done(request: &Request<u32>, rc: Rc<u32>) {
    request.on_done(move |_| drop(rc)); //~ E0277 `Rc<u32>` cannot be sent between threads safely
}

fn any_done(request: &Request<u32>, rc: Rc<u32>) {
    request.to_untyped().on_done(move |_| drop(rc)); //~ E0277 `Rc<u32>` cannot be sent between threads safely
}

fn finished_with(request: &Request<Cell<u32>>) {
    request.on_finished(|_| ()); //~ E0277 `Cell<u32>` cannot be shared between threads safely
}

fn done_with(request: &Request<Cell<u32>>) {
    request.on_done(|_| ()); //~ E0277 `Cell<u32>` cannot be shared between threads safely
}

/// These do not take it.
fn others(request: &Request<Cell<u32>>) {
    request.on_failed(|_| ()).on_cancelled(|| ());
    request.to_untyped().on_done(|_| ());
}

fn main() {}

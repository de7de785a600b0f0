//! What a dependent gets by reference is `Sync`, since others may read it at the same time. What it captures and returns goes to another thread.
use forebear::{Outcome, Request, scope, then_all};
use std::cell::Cell;
use std::rc::Rc;

/// A type for each line, since the compiler complains once about each.
type Local<const N: usize> = Cell<[u8; N]>;

fn rc<const N: usize>() -> Rc<[u8; N]> {
    Rc::new([0; N])
}

fn value_is_not_sync(request: &Request<Cell<u8>>) {
    drop(request.then(|_| ())); //~ E0599 the method `then` exists for
}

fn value_is_not_sync_and_may_fail(request: &Request<Cell<u8>>) {
    drop(request.try_then(|_| Ok(()))); //~ E0599 the method `try_then` exists for
}

fn value_is_not_sync_and_outcome(request: &Request<Cell<u8>>) {
    drop(request.then_with(|_| ())); //~ E0599 the method `then_with` exists for
}

fn builders(one: &Request<Local<1>>, two: &Request<Local<2>>, three: &Request<Local<3>>) {
    drop(Request::builder().then(one, |_| ())); //~ E0277 `Cell<[u8; 1]>` cannot be shared between threads safely
    drop(Request::builder().try_then(two, |_| Ok(()))); //~ E0277 `Cell<[u8; 2]>` cannot be shared between threads safely
    drop(Request::builder().then_with(three, |_| ())); //~ E0277 `Cell<[u8; 3]>` cannot be shared between threads safely
}

fn tuple(one: &Request<u8>, other: &Request<Local<4>>) {
    drop(then_all((one, other), |_| ())); //~ E0277 `Cell<[u8; 4]>` cannot be shared between threads safely
}

fn slice(all: &[Request<Local<5>>]) {
    drop(then_all(all, |_| ())); //~ E0277 `Cell<[u8; 5]>` cannot be shared between threads safely
}

fn in_scope(request: &Request<Local<6>>) {
    scope(|s| {
        s.then(request, |_| ()); //~ E0277 `Cell<[u8; 6]>` cannot be shared between threads safely
    });
}

fn captures(request: &Request<u8>, all: &[Request<u8>], last: Request<u8>) {
    let rc = (rc::<1>(), rc::<2>(), rc::<3>(), rc::<4>(), rc::<5>());
    let (one, two, three, four, five) = rc;
    drop(request.then(move |_| drop(one))); //~ E0277 `Rc<[u8; 1]>` cannot be sent between threads safely
    drop(request.then_with(move |_: Outcome<'_, u8>| drop(two))); //~ E0277 `Rc<[u8; 2]>` cannot be sent between threads safely
    drop(then_all(all, move |_| drop(three))); //~ E0277 `Rc<[u8; 3]>` cannot be sent between threads safely
    drop(last.into_then(move |_| drop(four))); //~ E0277 `Rc<[u8; 4]>` cannot be sent between threads safely
    drop(request.try_then(move |_| Ok(drop(five)))); //~ E0277 `Rc<[u8; 5]>` cannot be sent between threads safely
}

fn returns(request: &Request<u8>, all: &[Request<u8>], last: Request<u8>) {
    drop(request.then(|_| rc::<6>())); //~ E0277 `Rc<[u8; 6]>` cannot be sent between threads safely
    drop(request.then_with(|_| rc::<7>())); //~ E0277 `Rc<[u8; 7]>` cannot be sent between threads safely
    drop(then_all(all, |_| rc::<8>())); //~ E0277 `Rc<[u8; 8]>` cannot be sent between threads safely
    drop(last.into_then(|_| rc::<9>())); //~ E0277 `Rc<[u8; 9]>` cannot be sent between threads safely
}

fn main() {}

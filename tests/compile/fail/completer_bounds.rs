//! A completer takes a value to other threads: it is `Send` for a value that is, and completing takes it.
use forebear::{Completer, Request};
use std::rc::Rc;

fn send<T: Send>() {}
fn sync<T: Sync>() {}
fn clone<T: Clone>() {}

fn bounds() {
    send::<Completer<Rc<[u8; 1]>>>(); //~ E0277 `Rc<[u8; 1]>` cannot be sent between threads safely
    sync::<Completer<Rc<[u8; 2]>>>(); //~ E0277 `Rc<[u8; 2]>` cannot be sent between threads safely
    clone::<Completer<u8>>(); //~ E0277 the trait bound `Completer<u8>: Clone` is not satisfied
    let _made = Request::<Rc<[u8; 3]>>::completer("an Rc"); //~ E0599 the function or associated item `completer` exists for
}

fn twice(completer: Completer<u8>) {
    completer.complete(1).ok();
    completer.complete(2).ok(); //~ E0382 use of moved value: `completer`
}

fn fails_then(completer: Completer<u8>) {
    completer.fail(std::io::Error::other("no"));
    completer.complete(2).ok(); //~ E0382 use of moved value: `completer`
}

fn by_reference(completer: &Completer<u8>) {
    completer.complete(1).ok(); //~ E0507 cannot move out of `*completer` which is behind a shared reference
}

fn error(completer: Completer<u8>, rc: Rc<u8>) {
    completer.fail(NotSend(rc)); //~ E0277 `Rc<u8>` cannot be
}

fn callback(completer: &Completer<u8>, rc: Rc<[u8; 4]>) {
    completer.on_cancelled(move || drop(rc)); //~ E0277 `Rc<[u8; 4]>` cannot be sent between threads safely
}

fn callback_borrows(completer: &Completer<u8>) {
    let local = 1;
    completer.on_cancelled(|| drop(local + 1)); //~ E0373 closure may outlive the current function, but it borrows `local`
}

#[derive(Debug)]
struct NotSend(#[allow(dead_code)] Rc<u8>);

impl std::fmt::Display for NotSend {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

impl std::error::Error for NotSend {}

fn main() {}

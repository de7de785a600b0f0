//! A dependent outside a scope may run after everything that could be borrowed has gone; and what it gets by reference stays where it is.
use forebear::{Request, then_all};

fn captured(request: &Request<u8>) {
    let local = 1;
    drop(request.then(|n| n + local)); //~ E0373 closure may outlive the current function, but it borrows `local`
}

fn captured_of_all(all: &[Request<u8>]) {
    let local = 1;
    drop(then_all(all, |_| local + 1)); //~ E0373 closure may outlive the current function, but it borrows `local`
}

fn captured_of_the_last(last: Request<u8>) {
    let local = 1;
    drop(last.into_then(|n| n + local)); //~ E0373 closure may outlive the current function, but it borrows `local`
}

fn returned(request: &Request<String>) {
    drop(request.then(|text| text.as_str())); //~ error lifetime may not live long enough
}

fn handle_after(last: Request<u8>) {
    drop(last.into_then(|n| n));
    last.submit(); //~ E0382 borrow of moved value: `last`
}

fn main() {}

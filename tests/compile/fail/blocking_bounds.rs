//! A blocking call runs on another thread, and may run on when its caller has gone: it is `Send`, owns what it uses, and so does what it returns.
use forebear::blocking;
use std::rc::Rc;

fn captures(rc: Rc<[u8; 1]>) {
    let _ = blocking(move || drop(rc)); //~ E0277 `Rc<[u8; 1]>` cannot be sent between threads safely
}

fn returns() {
    let _ = blocking(|| Rc::new([0_u8; 2])); //~ E0277 `Rc<[u8; 2]>` cannot be sent between threads safely
}

fn borrows() {
    let local = 1;
    let _ = blocking(|| local + 1); //~ E0373 closure may outlive the current function, but it borrows `local`
}

fn returns_a_borrow<'a>(text: &'a str) {
    let _ = blocking(move || text.trim()); //~ E0521 borrowed data escapes outside of function
}

fn main() {}

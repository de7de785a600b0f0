//! A panic's payload is lent to all who ask at once: `Sync`; and came from another thread: `Send`.
use forebear::{Failure, Request};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::MutexGuard;

fn look(failure: &Failure) {
    failure.panic_payload::<String>();
    failure.panic_payload::<Cell<u32>>(); //~ E0277 `Cell<u32>` cannot be shared between threads safely
    failure.panic_payload::<MutexGuard<'static, u32>>(); //~ E0277 MutexGuard<'static, u32>` cannot be sent between threads safely
    let rc = failure.panic_payload::<Rc<u32>>(); //~ E0277 `Rc<u32>` cannot be
    drop(rc);
}

fn main() {
    let failure = Request::<()>::new(|| panic!()).wait().unwrap_err().failure().unwrap().clone();
    look(&failure);
}

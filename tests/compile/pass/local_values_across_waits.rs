//! A started request stays on its thread, so what is not `Send` may live across a wait.
use forebear::{Request, Runtime, WaitError, join, scope, spawn, yield_now};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;

fn main() -> Result<(), WaitError> {
    let job = || {
        let rc = Rc::new(RefCell::new(1));
        let guard = rc.borrow_mut();
        let lock = Mutex::new(2);
        let locked = lock.lock().unwrap();
        let request = Request::new(|| 3);
        let value = *request.wait()?;
        let taken = spawn(|| 4).take()?;
        yield_now()?;
        scope(|s| drop(s.spawn(|| 5)));
        join(|| 6, || 7);
        Ok(*guard + *locked + value + taken)
    };
    assert_eq!(Request::try_new(job).take()?, 10);
    Runtime::new().unwrap().try_run(job).map(|_| ())
}

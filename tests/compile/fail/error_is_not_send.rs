//! The error of a request is told to every waiter: it is `Send`, `Sync` and `'static`.
use forebear::Request;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

#[derive(Debug)]
struct Shown<T>(T);
impl<T> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shown")
    }
}
impl<T: fmt::Debug> std::error::Error for Shown<T> {}

fn fails<E>(error: E) -> Result<u32, E> {
    Err(error)
}

fn main() {
    drop(Request::try_new(|| Ok(fails(Shown(1))?)));
    drop(Request::try_new(|| Ok(fails(Shown(Rc::new(1)))?))); //~ E0277 couldn't convert the error
    drop(Request::try_new(|| Ok(fails(Shown(Cell::new(1)))?))); //~ E0277 couldn't convert the error
}

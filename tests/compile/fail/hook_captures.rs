//! The hook for failures that nobody looked at is called on any thread, also on two at once.
use forebear::Runtime;
use std::cell::Cell;
use std::sync::Mutex;

static LOCK: Mutex<u32> = Mutex::new(0);

fn main() {
    let guard = LOCK.lock().unwrap();
    drop(Runtime::builder().on_unhandled_failure(move |_| println!("{guard}"))); //~ E0277 cannot be sent between threads safely
    let count = Cell::new(0);
    drop(Runtime::builder().on_unhandled_failure(move |_| count.set(1))); //~ E0277 `Cell<i32>` cannot be shared between threads safely
}

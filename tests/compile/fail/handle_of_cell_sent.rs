//! A value that is only `Send` is waited for where it was ordered: its handle goes nowhere.
use forebear::{Request, join, scope, spawn};
use std::cell::Cell;

fn main() {
    let moved = Request::new(|| Cell::new(1_u8));
    spawn(move || moved.wait().unwrap().set(2)); //~ E0277 `Cell<u8>` cannot be shared between threads safely
    let in_an_arm = Request::new(|| Cell::new(1_u16));
    join(|| (), || in_an_arm.wait().unwrap().set(2)); //~ E0277 `Cell<u16>` cannot be shared between threads safely
    let in_a_job = Request::new(|| Cell::new(1_u32));
    scope(|s| {
        s.spawn(|| in_a_job.wait().unwrap().set(2)); //~ E0277 `Cell<u32>` cannot be shared between threads safely
    });
    let here = Request::new(|| Cell::new(1_u64));
    here.wait().unwrap().set(2);
}

//! A handle is `Send` only for a value that is `Send` and `Sync`, and so is it `Sync`.
use forebear::Request;
use std::cell::Cell;
use std::sync::MutexGuard;

fn send<T: Send>() {}
fn sync<T: Sync>() {}

/// `Sync`, not `Send`.
type Guard = MutexGuard<'static, u32>;

fn main() {
    send::<Request<Cell<u32>>>(); //~ E0277 `Cell<u32>` cannot be shared between threads safely
    send::<Request<Guard>>(); //~ E0277 MutexGuard<'static, u32>` cannot be sent between threads safely
    sync::<Request<Cell<u32>>>(); //~ E0277 `Cell<u32>` cannot be shared between threads safely
    sync::<Request<Guard>>(); //~ E0277 MutexGuard<'static, u32>` cannot be sent between threads safely
}

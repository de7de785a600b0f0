//! A future of a request goes to other threads only as its handle does, and one of a reference no longer than the handle stays.
use forebear::{Request, TakeFuture, WaitFuture, block_on};
use std::cell::Cell;
use std::future::{Future, IntoFuture};

fn send<T: Send>() {}
fn sync<T: Sync>() {}
fn task(_: impl Future + Send + 'static) {}

fn bounds() {
    send::<TakeFuture<Cell<[u8; 1]>>>(); //~ E0277 `Cell<[u8; 1]>` cannot be shared between threads safely
    send::<WaitFuture<'static, Cell<[u8; 2]>>>(); //~ E0277 `Cell<[u8; 2]>` cannot be shared between threads safely
    sync::<TakeFuture<Cell<[u8; 3]>>>(); //~ E0277 `Cell<[u8; 3]>` cannot be shared between threads safely
    sync::<WaitFuture<'static, Cell<[u8; 4]>>>(); //~ E0277 `Cell<[u8; 4]>` cannot be shared between threads safely
}

fn borrowed(request: Request<u8>) {
    task((&request).into_future()); //~ E0597 `request` does not live long enough
}

fn taken_while_awaited(request: Request<String>) {
    let future = (&request).into_future();
    drop(request); //~ E0505 cannot move out of `request` because it is borrowed
    drop(future);
}

fn value_outlives_handle(request: Request<String>) {
    let value = block_on(&request).unwrap().unwrap();
    drop(request); //~ E0505 cannot move out of `request` because it is borrowed
    println!("{value}");
}

fn awaited_twice(request: Request<String>) {
    drop(request.into_future());
    drop(request.into_future()); //~ E0382 use of moved value: `request`
}

fn main() {}

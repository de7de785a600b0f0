//! A callable goes to another thread: it is `Send`, whoever takes it.
use forebear::{Request, Runtime, join, scope, spawn, try_join, try_spawn};
use std::rc::Rc;

/// A type for each line, since the compiler complains once about each.
fn rc<const N: usize>() -> Rc<[u8; N]> {
    Rc::new([0; N])
}

fn requests() {
    let r = rc::<1>();
    drop(Request::new(move || drop(r))); //~ E0277 `Rc<[u8; 1]>` cannot be sent between threads safely
    let r = rc::<2>();
    drop(Request::try_new(move || Ok(drop(r)))); //~ E0277 `Rc<[u8; 2]>` cannot be sent between threads safely
    let r = rc::<3>();
    spawn(move || drop(r)); //~ E0277 `Rc<[u8; 3]>` cannot be sent between threads safely
    let r = rc::<4>();
    try_spawn(move || Ok(drop(r))); //~ E0277 `Rc<[u8; 4]>` cannot be sent between threads safely
    let r = rc::<5>();
    drop(Request::builder().build(move || drop(r))); //~ E0277 `Rc<[u8; 5]>` cannot be sent between threads safely
    let r = rc::<6>();
    drop(Request::builder().try_build(move || Ok(drop(r)))); //~ E0277 `Rc<[u8; 6]>` cannot be sent between threads safely
    let r = rc::<7>();
    Request::builder().spawn(move || drop(r)); //~ E0277 `Rc<[u8; 7]>` cannot be sent between threads safely
    let r = rc::<8>();
    Request::builder().try_spawn(move || Ok(drop(r))); //~ E0277 `Rc<[u8; 8]>` cannot be sent between threads safely
}

fn runtimes(runtime: &Runtime) {
    let r = rc::<9>();
    runtime.spawn(move || drop(r)); //~ E0277 `Rc<[u8; 9]>` cannot be sent between threads safely
    let r = rc::<10>();
    runtime.try_spawn(move || Ok(drop(r))); //~ E0277 `Rc<[u8; 10]>` cannot be sent between threads safely
    let r = rc::<11>();
    runtime.run(move || drop(r)); //~ E0277 `Rc<[u8; 11]>` cannot be sent between threads safely
    let r = rc::<12>();
    let _ = runtime.try_run(move || Ok(drop(r))); //~ E0277 `Rc<[u8; 12]>` cannot be sent between threads safely
}

fn structures() {
    scope(|s| {
        let r = rc::<13>();
        s.spawn(move || drop(r)); //~ E0277 `Rc<[u8; 13]>` cannot be sent between threads safely
        let r = rc::<14>();
        s.try_spawn(move || Ok(drop(r))); //~ E0277 `Rc<[u8; 14]>` cannot be sent between threads safely
        let r = rc::<15>();
        Request::builder().spawn_in(s, move || drop(r)); //~ E0277 `Rc<[u8; 15]>` cannot be sent between threads safely
        let r = rc::<16>();
        Request::builder().try_spawn_in(s, move || Ok(drop(r))); //~ E0277 `Rc<[u8; 16]>` cannot be sent between threads safely
    });
    let r = rc::<17>();
    join(|| (), move || drop(r)); //~ E0277 `Rc<[u8; 17]>` cannot be sent between threads safely
    let r = rc::<18>();
    let _ = try_join(|| Ok(()), move || Ok(drop(r))); //~ E0277 `Rc<[u8; 18]>` cannot be sent between threads safely
}

fn main() {
    requests();
    runtimes(&Runtime::new().unwrap());
    structures();
}

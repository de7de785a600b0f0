//! A value comes from another thread: it is `Send`, whoever makes it.
use forebear::{Request, Runtime, join, scope, spawn, try_join, try_spawn};
use std::rc::Rc;

/// A type for each line, since the compiler complains once about each.
fn rc<const N: usize>() -> Rc<[u8; N]> {
    Rc::new([0; N])
}

fn requests() {
    drop(Request::new(rc::<1>)); //~ E0277 `Rc<[u8; 1]>` cannot be sent between threads safely
    drop(Request::try_new(|| Ok(rc::<2>()))); //~ E0277 `Rc<[u8; 2]>` cannot be sent between threads safely
    spawn(rc::<3>); //~ E0277 `Rc<[u8; 3]>` cannot be sent between threads safely
    try_spawn(|| Ok(rc::<4>())); //~ E0277 `Rc<[u8; 4]>` cannot be sent between threads safely
    drop(Request::builder().build(rc::<5>)); //~ E0277 `Rc<[u8; 5]>` cannot be sent between threads safely
    drop(Request::builder().try_build(|| Ok(rc::<6>()))); //~ E0277 `Rc<[u8; 6]>` cannot be sent between threads safely
    Request::builder().spawn(rc::<7>); //~ E0277 `Rc<[u8; 7]>` cannot be sent between threads safely
    Request::builder().try_spawn(|| Ok(rc::<8>())); //~ E0277 `Rc<[u8; 8]>` cannot be sent between threads safely
}

fn runtimes(runtime: &Runtime) {
    runtime.spawn(rc::<9>); //~ E0277 `Rc<[u8; 9]>` cannot be sent between threads safely
    runtime.try_spawn(|| Ok(rc::<10>())); //~ E0277 `Rc<[u8; 10]>` cannot be sent between threads safely
    runtime.run(rc::<11>); //~ E0277 `Rc<[u8; 11]>` cannot be sent between threads safely
    let _ = runtime.try_run(|| Ok(rc::<12>())); //~ E0277 `Rc<[u8; 12]>` cannot be sent between threads safely
}

fn structures() {
    scope(|s| {
        s.spawn(rc::<13>); //~ E0277 `Rc<[u8; 13]>` cannot be sent between threads safely
        s.try_spawn(|| Ok(rc::<14>())); //~ E0277 `Rc<[u8; 14]>` cannot be sent between threads safely
        Request::builder().spawn_in(s, rc::<15>); //~ E0277 `Rc<[u8; 15]>` cannot be sent between threads safely
        Request::builder().try_spawn_in(s, || Ok(rc::<16>())); //~ E0277 `Rc<[u8; 16]>` cannot be sent between threads safely
    });
    join(|| (), rc::<17>); //~ E0277 `Rc<[u8; 17]>` cannot be sent between threads safely
    let _ = try_join(|| Ok(()), || Ok(rc::<18>())); //~ E0277 `Rc<[u8; 18]>` cannot be sent between threads safely
}

fn main() {
    requests();
    runtimes(&Runtime::new().unwrap());
    structures();
}

//! A request may outlive whoever made it: outside a scope its callable is `'static`.
use forebear::{Request, Runtime, spawn, try_spawn};

fn requests() {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    drop(Request::new(move || l.len()));
}

fn fallible() {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    drop(Request::try_new(move || Ok(l.len())));
}

fn spawned() {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    spawn(move || l.len());
}

fn fallible_spawned() {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    try_spawn(move || Ok(l.len()));
}

fn built() {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    drop(Request::builder().build(move || l.len()));
}

fn fallible_built() {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    drop(Request::builder().try_build(move || Ok(l.len())));
}

fn built_and_spawned() {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    Request::builder().spawn(move || l.len());
}

fn fallible_built_and_spawned() {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    Request::builder().try_spawn(move || Ok(l.len()));
}

fn spawned_in_a_runtime(runtime: &Runtime) {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    runtime.spawn(move || l.len());
}

fn fallible_spawned_in_a_runtime(runtime: &Runtime) {
    let local = String::new();
    let l = &local; //~ E0597 `local` does not live long enough
    runtime.try_spawn(move || Ok(l.len()));
}

fn main() {
    requests();
    fallible();
    spawned();
    fallible_spawned();
    built();
    fallible_built();
    built_and_spawned();
    fallible_built_and_spawned();
    let runtime = Runtime::new().unwrap();
    spawned_in_a_runtime(&runtime);
    fallible_spawned_in_a_runtime(&runtime);
}

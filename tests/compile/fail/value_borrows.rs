//! Outside a scope the value is `'static`, as the callable is: a value that may borrow needs a bound to be made.
use forebear::{Request, spawn};

fn make<T: Send>(value: fn() -> T) {
    drop(Request::new(value)); //~ E0310 the parameter type `T` may not live long enough
}

fn spawn_it<T: Send>(value: fn() -> T) {
    spawn(value); //~ E0310 the parameter type `T` may not live long enough
}

fn main() {
    make(|| 1);
    spawn_it(|| 1);
}

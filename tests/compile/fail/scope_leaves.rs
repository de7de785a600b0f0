//! The scope itself may not leave, nor a handle whose value borrows from inside.
use forebear::{Scope, scope};
use std::cell::Cell;

fn returned() {
    scope(|s| s); //~ error lifetime may not live long enough
}

fn stored<'env>(kept: &Cell<Option<&'env Scope<'env, 'env>>>) {
    scope(|s| kept.set(Some(s))); //~ E0521 borrowed data escapes outside of closure
}

fn by_a_handle() {
    scope(|s| s.spawn(move || s)); //~ error lifetime may not live long enough
}

fn main() {
    returned();
    stored(&Cell::new(None));
    by_a_handle();
}

//! A job may run until the scope has returned: what it borrows must outlive that.
use forebear::{Request, scope, try_scope};

fn body() {
    scope(|s| {
        let local = String::new();
        let l = &local; //~ E0597 `local` does not live long enough
        s.spawn(move || l.len());
    });
}

fn fallible_body() {
    let _ = try_scope(|s| {
        let local = String::new();
        let l = &local; //~ E0597 `local` does not live long enough
        s.try_spawn(move || Ok(l.len()));
        Ok(())
    });
}

fn built() {
    scope(|s| {
        let local = String::new();
        let l = &local; //~ E0597 `local` does not live long enough
        Request::builder().spawn_in(s, move || l.len());
    });
}

fn of_an_inner_scope() {
    scope(|outer| {
        scope(|_inner| {
            let local = String::new();
            let l = &local; //~ E0597 `local` does not live long enough
            outer.spawn(move || l.len());
        });
    });
}

fn of_a_job() {
    scope(|s| {
        s.spawn(move || {
            let local = String::new();
            let l = &local; //~ E0597 `local` does not live long enough
            s.spawn(move || l.len());
        });
    });
}

fn main() {
    body();
    fallible_body();
    built();
    of_an_inner_scope();
    of_a_job();
}

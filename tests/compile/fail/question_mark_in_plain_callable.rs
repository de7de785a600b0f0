//! `?` is for the `try_` forms, whose closures return a `Result`.
use forebear::{Request, spawn};

fn main() {
    drop(Request::new(|| {
        let number: u32 = "1".parse()?; //~ E0277 the `?` operator can only be used in a closure that returns `Result`
        number
    }));
    let input = Request::ready(1_u32);
    spawn(move || {
        let number: u32 = *input.wait()?; //~ E0277 the `?` operator can only be used in a closure that returns `Result`
        number
    });
}

//! A handle may be used where one of a shorter-lived value is wanted, as an `Arc`.
use forebear::Request;

fn shorter<'a>(long: Request<&'static str>, _: &'a str) -> Request<&'a str> {
    long
}

fn main() {
    let local = String::new();
    println!("{:?}", shorter(Request::ready("static"), &local));
}

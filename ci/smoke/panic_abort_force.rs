//! Must not compile under `panic = "abort"`: `force` unwinds when it is cancelled. See ci/panic-abort.

fn main() {
    let request = forebear::Request::new(|| 1);
    println!("{}", request.force());
}

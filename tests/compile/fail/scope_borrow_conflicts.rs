//! Jobs share by the rules of any closures, for as long as the scope lasts.
use forebear::{scope, spawn};

fn two_writers() {
    let mut sum = 0;
    scope(|s| {
        s.spawn(|| sum += 1);
        s.spawn(|| sum += 2); //~ E0499 cannot borrow `sum` as mutable more than once at a time
    });
}

fn reader_beside_a_writer() {
    let mut sum = 0;
    scope(|s| {
        let writer = s.spawn(|| sum += 1);
        writer.wait().unwrap();
        println!("{sum}"); //~ E0502 cannot borrow `sum` as immutable because it is also borrowed as mutable
    });
}

fn plain_handle_is_not_static() {
    let text = String::new();
    let t = &text; //~ E0597 `text` does not live long enough
    let handle = scope(|s| s.spawn(move || &t[..]));
    spawn(move || handle.wait().map(|text| text.len()).ok());
}

fn main() {
    two_writers();
    reader_beside_a_writer();
    plain_handle_is_not_static();
}

//! The hook for failures that nobody looked at may be called as long as the process lasts.
use forebear::Runtime;

fn main() {
    let text = String::new();
    let t = &text; //~ E0597 `text` does not live long enough
    drop(Runtime::builder().on_unhandled_failure(move |_| println!("{t}")));
}

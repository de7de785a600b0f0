//! A handle that has left its scope may hold a value that borrows from the surroundings: it ends before they do.
use forebear::scope;

fn main() {
    let handle;
    {
        let text = String::from("borrowed");
        handle = scope(|s| s.spawn(|| &text[..])); //~ E0597 `text` does not live long enough
    }
    println!("{:?}", handle.take());
}

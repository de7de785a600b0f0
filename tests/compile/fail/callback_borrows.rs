//! A callback outlives whoever subscribes, so it borrows nothing; and what it is lent it cannot keep.
use forebear::{Outcome, Request};
use std::sync::Mutex;

static VALUE: Mutex<Option<&'static String>> = Mutex::new(None);
static OUTCOME: Mutex<Option<Outcome<'static, String>>> = Mutex::new(None);

fn main() {
    let request = Request::new(|| String::from("value"));
    let text = String::from("lent");
    request.on_failed(|_| println!("{text}")); //~ E0373 closure may outlive the current function
    let lent = text.as_str(); //~ E0597 `text` does not live long enough
    request.on_done(move |_| println!("{lent}"));
    request.on_finished(|value| *VALUE.lock().unwrap() = Some(value)); //~ E0521 borrowed data escapes
    request.on_done(|how| *OUTCOME.lock().unwrap() = Some(how)); //~ E0521 borrowed data escapes
}

//! A handle lends its value to read, since others may read it too.
use forebear::Request;

fn main() {
    let request = Request::ready(String::new());
    request.wait().unwrap().push('x'); //~ E0596 cannot borrow data in a `&` reference as mutable
}

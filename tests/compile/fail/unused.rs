//! What does nothing by itself says so when it is thrown away.
#![deny(unused_must_use)]
use forebear::{Request, Runtime};

fn main() {
    Request::new(|| 1); //~ error Request::<T>::new` that must be used
    Request::try_new(|| Ok(1)); //~ error Request::<T>::try_new` that must be used
    Request::builder(); //~ error unused `RequestBuilder` that must be used
    Request::builder().build(|| 1); //~ error RequestBuilder::build` that must be used
    Request::builder().try_build(|| Ok(1)); //~ error RequestBuilder::try_build` that must be used
    Request::ready(1).wait(); //~ error unused `Result` that must be used
    Runtime::builder(); //~ error unused `RuntimeBuilder` that must be used
}

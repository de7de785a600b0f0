//! A runtime of two workers, its first result, and its memory when it is idle.
include!("said.rs");

fn main() {
    let start = std::time::Instant::now();
    let runtime = forebear::Runtime::builder().workers(2).build().expect("a runtime");
    let value = runtime.spawn(|| 42).take().expect("it does not fail");
    said(start, value);
}

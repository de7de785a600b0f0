//! A runtime of two workers, its first result, and its memory when it is idle.
include!("said.rs");

fn main() {
    let start = std::time::Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let value = runtime.block_on(async { tokio::spawn(async { 42 }).await.expect("it does not fail") });
    said(start, value);
}

//! A pool of two threads, its first result, and its memory when it is idle.
include!("said.rs");

fn main() {
    let start = std::time::Instant::now();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("a pool");
    let value = pool.install(|| 42);
    said(start, value);
}

//! Smoke.
use forebear_runtime::*;
fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let a = spawn(move || fib(n - 1));
    let b = fib(n - 2);
    a.take().unwrap() + b
}
fn jfib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = join(|| jfib(n - 1), || jfib(n - 2));
    a + b
}
fn rfib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let a = Request::new(move || rfib(n - 1));
    a.submit();
    let b = rfib(n - 2);
    *a.wait().unwrap() + b
}
#[test]
fn works() {
    for workers in [1, 2, 4] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        assert_eq!(rt.run(|| fib(20)), 6765);
        assert_eq!(rt.run(|| jfib(20)), 6765);
        assert_eq!(rt.run(|| rfib(20)), 6765);
        rt.run(|| {
            let a = spawn(|| {
                for _ in 0..100 {
                    yield_now().unwrap();
                }
            });
            let b = spawn(|| {
                for _ in 0..100 {
                    yield_now().unwrap();
                }
            });
            a.wait().unwrap();
            b.wait().unwrap();
        });
        let mut v = vec![0u64; 100];
        rt.run(|| {
            scope(|s| {
                for (i, x) in v.iter_mut().enumerate() {
                    s.spawn(move || *x = i as u64);
                }
            })
        });
        assert_eq!(v.iter().sum::<u64>(), 4950);
        drop(rt);
        eprintln!("ok {workers}");
    }
}

//! A panic in a request is shown by the program's own hook, on the thread's own stack, and never kills a worker.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicUsize, Ordering};

use forebear::{Request, Runtime, WaitError, join, scope, spawn, yield_now};

use crate::child;

fn small_stacks() -> Runtime {
    Runtime::builder().workers(1).stack_size(48 << 10).run_on_caller(false).build().unwrap()
}

#[inline(never)]
fn a_frame_to_be_found(message: &str) {
    panic!("{}", black_box(message));
}

/// Calls `f` with most of a small stack used up: what is left is less than a backtrace takes.
#[inline(never)]
fn deep_down<R>(f: impl FnOnce() -> R) -> R {
    let mut used = MaybeUninit::<[u8; 34 << 10]>::uninit();
    black_box(&mut used);
    let result = f();
    black_box(&used);
    result
}

#[test]
fn a_full_backtrace_of_a_panic_on_the_smallest_stack_is_printed() {
    for how in ["started", "resumed", "direct", "arm"] {
        let end = child::run(how, &[("RUST_BACKTRACE", "full")], |how| {
            let panics = || deep_down(|| a_frame_to_be_found("on purpose"));
            let how = how.to_owned();
            let result = small_stacks().spawn(move || match &*how {
                "started" => panics(),
                "resumed" => {
                    Request::builder().own_stack().spawn(|| ()).wait().unwrap();
                    panics();
                }
                "direct" => *Request::new(panics).force(),
                _ => drop(join(|| (), panics)),
            });
            assert!(matches!(result.take(), Err(WaitError::Failed(failure)) if failure.is_panic()));
        });
        end.assert_survived();
        for part in ["on purpose", "stack backtrace:", "a_frame_to_be_found", "forebear_runtime"] {
            assert!(end.stderr.contains(part), "{how}: no `{part}` in {end:#?}");
        }
    }
}

/// Lowest and highest address of the calling thread's own stack.
#[cfg(target_os = "linux")]
fn own_stack() -> std::ops::Range<usize> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the calls fill the records that they are given, the first one those that the others read.
    unsafe {
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()), 0);
        assert_eq!(libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut size), 0);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    low as usize..low as usize + size
}

#[test]
#[cfg(target_os = "linux")]
fn the_hook_set_before_the_runtime_is_called_once_on_the_threads_own_stack() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static ON_OWN_STACK: AtomicUsize = AtomicUsize::new(0);
    fn hook(info: &PanicHookInfo<'_>) {
        let local = 0_u8;
        let on_own_stack = own_stack().contains(&(black_box(&raw const local) as usize));
        CALLS.fetch_add(1, Ordering::Relaxed);
        ON_OWN_STACK.fetch_add(usize::from(on_own_stack), Ordering::Relaxed);
        eprintln!("{:?}: {info}", std::thread::current().name());
    }
    let end = child::run("", &[], |_| {
        panic::set_hook(Box::new(hook));
        let runtime = small_stacks();
        runtime.run(|| {
            let local = 0_u8;
            assert!(!own_stack().contains(&(black_box(&raw const local) as usize)), "requests are elsewhere");
        });
        let result = runtime.spawn(|| a_frame_to_be_found("on purpose")).take();
        assert!(result.is_err());
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        assert_eq!(ON_OWN_STACK.load(Ordering::Relaxed), 1);
        // Another runtime does not wrap it once more; and it is still the hook of plain threads.
        drop(small_stacks());
        std::thread::spawn(|| panic!("in a thread")).join().unwrap_err();
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    });
    end.assert_survived();
    assert!(end.stderr.contains(r#"Some("forebear #0"): panicked at "#), "{end:#?}");
    assert!(end.stderr.contains("on purpose"), "{end:#?}");
}

#[test]
fn an_unwinding_error_calls_no_panic_hook_in_a_request() {
    let end = child::run("", &[], |_| {
        panic::set_hook(Box::new(|_| eprintln!("the hook")));
        let runtime = small_stacks();
        let inner = runtime.try_spawn(|| Err::<(), _>("x".parse::<u8>().unwrap_err().into()));
        let outer = runtime.spawn(move || *inner.force());
        assert!(matches!(outer.take(), Err(WaitError::Failed(failure)) if !failure.is_panic()));
    });
    end.assert_survived();
    assert_eq!(end.stderr, "");
}

/// Panics when dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a destructor");
    }
}

/// Something that goes wrong, and is looked at or not.
type Fails = fn(&Runtime);

/// What can go wrong in a request, each in its own way.
const WAYS: &[(&str, Fails)] = &[
    ("str", |rt| drop(rt.spawn(|| panic!("text")).take().unwrap_err())),
    ("String", |rt| drop(rt.spawn(|| a_frame_to_be_found("text")).take().unwrap_err())),
    ("any payload", |rt| drop(rt.spawn(|| panic::panic_any(7_u32)).take().unwrap_err())),
    ("a payload that panics when dropped", |rt| {
        drop(rt.spawn(|| panic::panic_any(Bomb)).take().unwrap_err());
    }),
    ("nobody looks", |rt| drop(rt.spawn(|| a_frame_to_be_found("unseen")))),
    ("a resumed request", |rt| {
        let resumed = || {
            yield_now().unwrap();
            Request::builder().own_stack().spawn(|| ()).wait().unwrap();
            a_frame_to_be_found("text");
        };
        drop(rt.spawn(resumed).take().unwrap_err());
    }),
    ("a directly run request", |rt| {
        rt.run(|| drop(Request::new(|| a_frame_to_be_found("text")).wait().unwrap_err()));
    }),
    ("a request taken by value", |rt| {
        rt.run(|| drop(spawn(|| a_frame_to_be_found("text")).take().unwrap_err()));
    }),
    ("the first arm", |rt| {
        drop(rt.spawn(|| join(|| a_frame_to_be_found("text"), || ())).take().unwrap_err());
    }),
    ("the second arm", |rt| {
        drop(rt.spawn(|| join(|| (), || a_frame_to_be_found("text"))).take().unwrap_err());
    }),
    ("both arms", |rt| {
        let arm = || a_frame_to_be_found("text");
        drop(rt.spawn(move || join(arm, arm)).take().unwrap_err());
    }),
    ("both arms, with payloads that panic when dropped", |rt| {
        let arm = || panic::panic_any(Bomb);
        drop(rt.spawn(move || join(|| -> () { arm() }, || -> () { arm() })).take().unwrap_err());
    }),
    ("a scope and its job", |rt| {
        let body = || {
            scope(|s| {
                s.spawn(|| a_frame_to_be_found("text"));
                a_frame_to_be_found("text");
            });
        };
        drop(rt.spawn(body).take().unwrap_err());
    }),
    ("a job that nobody looks at", |rt| {
        drop(rt.spawn(|| scope(|s| drop(s.spawn(|| a_frame_to_be_found("text"))))).take().unwrap_err());
    }),
    ("the destructor of a value that nobody has", |rt| drop(rt.spawn(|| Bomb))),
    ("the destructor of a value that a request drops", |rt| {
        drop(rt.spawn(|| drop(spawn(|| Bomb).take())).take().unwrap_err());
    }),
    ("the destructor of what a request captured", |rt| {
        let bomb = Bomb;
        drop(rt.spawn(move || drop(bomb)).take().unwrap_err());
    }),
];

#[test]
fn a_panic_in_a_request_never_kills_a_worker() {
    let end = child::run("", &[], |_| {
        panic::set_hook(Box::new(|_| ()));
        let runtime = Runtime::builder()
            .workers(1)
            .run_on_caller(false)
            .on_unhandled_failure(|_| panic!("the hook for failures that nobody looked at"))
            .build()
            .unwrap();
        let thread = || runtime.run(|| std::thread::current().id());
        let before = thread();
        for (way, fail) in WAYS {
            for _ in 0..3 {
                fail(&runtime);
                assert_eq!(thread(), before, "{way}");
            }
            println!("{way}");
        }
    });
    end.assert_survived();
    for (way, _) in WAYS {
        assert!(end.stdout.contains(way), "not tried: {way}");
    }
}

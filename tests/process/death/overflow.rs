//! A stack overflow names the request, its stack size and the remedy, then aborts.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use forebear::{Request, RequestBuilder, Runtime, join, scope, spawn, yield_now};

use crate::child::{self, End};

/// What a request can use of the default stack, in KiB: a slot of 1 MiB or of 256 KiB, less 16 KiB.
const DEFAULT: usize = if cfg!(debug_assertions) { 1008 } else { 240 };

/// The largest stack, in KiB: the largest slot, less the same.
const MOST: usize = (16 << 10) - 16;

/// The one line of the report, all of standard error.
#[track_caller]
fn assert_reported(end: &End, name: &str, size: usize) {
    let remedy = if size < MOST {
        format!(
            ": give it more, up to {MOST} KiB, by Request::builder().stack_size(bytes), or all by \
             RuntimeBuilder::stack_size"
        )
    } else {
        ", and no request can have a larger one: recurse less deeply, put large values into boxes, or call it \
         on a thread with a larger stack"
            .into()
    };
    assert_eq!(end.stderr, format!("forebear: request '{name}' overflowed its {size} KiB stack{remedy}\n"));
    end.assert_killed_by(libc::SIGABRT);
}

#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 16]);
    if depth == u64::MAX {
        return 0;
    }
    let below = recurse(black_box(depth + 1));
    below + black_box(&frame)[3]
}

/// One frame larger than any stack, of which only the lowest byte is touched by the program.
#[inline(never)]
fn one_huge_frame() -> u8 {
    let mut frame = MaybeUninit::<[u8; 32 << 20]>::uninit();
    let lowest = black_box(&mut frame).as_mut_ptr().cast::<u8>();
    // SAFETY: the first byte of the array.
    unsafe { lowest.write(1) };
    black_box(&frame);
    1
}

/// An address in the caller's frame, about.
#[inline(never)]
fn here() -> usize {
    let local = 0_u8;
    black_box(&raw const local) as usize
}

/// A runtime whose requests all run on its workers, whoever waits for them.
fn workers(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).run_on_caller(false).build().unwrap()
}

/// The same, one worker, with stacks of another size.
fn stacks_of(bytes: usize) -> Runtime {
    Runtime::builder().workers(1).stack_size(bytes).run_on_caller(false).build().unwrap()
}

fn named(name: &'static str) -> RequestBuilder {
    Request::builder().name(name)
}

#[test]
fn an_overflow_of_a_default_stack_names_request_size_and_remedy() {
    let end = child::run("", &[], |_| {
        named("deep one").on(&workers(1)).spawn(|| recurse(0)).take().unwrap();
    });
    assert_reported(&end, "deep one", DEFAULT);
}

#[test]
fn an_overflow_of_the_smallest_stack_says_48_kib() {
    let end = child::run("", &[], |_| {
        let runtime = stacks_of(48 << 10);
        named("small").on(&runtime).spawn(|| recurse(0)).take().unwrap();
    });
    assert_reported(&end, "small", 48);
}

#[test]
fn an_overflow_of_a_larger_stack_asked_for_says_its_size() {
    let end = child::run("", &[], |_| {
        let runtime = stacks_of(48 << 10);
        named("large").stack_size(600 << 10).on(&runtime).spawn(|| recurse(0)).take().unwrap();
    });
    assert_reported(&end, "large", 1008);
}

#[test]
fn an_overflow_by_one_huge_frame_is_seen_on_every_class() {
    for (asked, size) in
        [("49152", 48), ("65536", 240), ("600000", 1008), ("2000000", 4080), ("9000000", 16368)]
    {
        let end = child::run(asked, &[], |asked| {
            let runtime = stacks_of(asked.parse().unwrap());
            named("huge").on(&runtime).spawn(one_huge_frame).take().unwrap();
        });
        assert_reported(&end, "huge", size);
    }
}

#[test]
fn an_overflow_of_a_stack_that_was_suspended_is_seen() {
    let end = child::run("", &[], |_| {
        let resumed = || {
            yield_now().unwrap();
            // Started elsewhere, so that this one must suspend.
            let other = Request::builder().own_stack().spawn(|| 1);
            recurse(*other.wait().unwrap())
        };
        named("resumed").on(&workers(1)).spawn(resumed).take().unwrap();
    });
    assert_reported(&end, "resumed", DEFAULT);
}

#[test]
fn an_overflow_in_a_directly_run_request_names_that_one() {
    let end = child::run("", &[], |_| {
        let outer = || {
            let above = here();
            let inner = named("inner").build(move || {
                assert!(above.abs_diff(here()) < 256 << 10, "not run on the waiter's stack");
                recurse(0)
            });
            *inner.wait().unwrap()
        };
        named("outer").on(&workers(1)).spawn(outer).take().unwrap();
    });
    assert_reported(&end, "inner", DEFAULT);
}

#[test]
fn an_overflow_in_a_request_taken_by_value_names_that_one() {
    let end = child::run("", &[], |_| {
        let outer = || named("taken").spawn(|| recurse(0)).take().unwrap();
        named("outer").on(&workers(1)).spawn(outer).take().unwrap();
    });
    assert_reported(&end, "taken", DEFAULT);
}

#[test]
fn an_overflow_after_a_directly_run_request_names_the_waiter_again() {
    let end = child::run("", &[], |_| {
        let outer = || {
            let one = named("inner").build(|| 1).take().unwrap();
            recurse(one)
        };
        named("outer").on(&workers(1)).spawn(outer).take().unwrap();
    });
    assert_reported(&end, "outer", DEFAULT);
}

#[test]
fn an_overflow_in_either_arm_of_a_join_names_the_request_that_joins() {
    for arm in ["first", "second"] {
        let end = child::run(arm, &[], |arm| {
            let first = arm == "first";
            let joiner = move || join(|| first.then(|| recurse(0)), || (!first).then(|| recurse(0)));
            named("joiner").on(&workers(1)).spawn(joiner).take().unwrap();
        });
        assert_reported(&end, "joiner", DEFAULT);
    }
}

#[test]
fn an_overflow_in_a_stolen_arm_names_the_request_that_joins() {
    let end = child::run("", &[], |_| {
        let joiner = || {
            let stolen = AtomicBool::new(false);
            let first = || {
                while !stolen.load(Ordering::Acquire) {
                    // A fork: here an arm is given away when somebody is hungry.
                    join(|| (), || ());
                }
                loop {
                    std::thread::park();
                }
            };
            let second = || {
                stolen.store(true, Ordering::Release);
                recurse(0)
            };
            join(first, second)
        };
        named("joiner").on(&workers(2)).spawn(joiner).take().unwrap();
    });
    assert_reported(&end, "joiner", DEFAULT);
}

#[test]
fn an_overflow_in_a_job_of_a_scope_names_the_job() {
    let end = child::run("", &[], |_| {
        let start = 0;
        workers(1).run(|| {
            scope(|s| {
                named("job").spawn_in(s, || recurse(start));
            });
        });
    });
    assert_reported(&end, "job", DEFAULT);
}

#[test]
fn an_overflow_of_a_request_without_a_name_shows_the_type_of_its_callable() {
    let end = child::run("", &[], |_| {
        workers(1).spawn(|| recurse(0)).take().unwrap();
    });
    let test =
        "an_overflow_of_a_request_without_a_name_shows_the_type_of_its_callable::{{closure}}::{{closure}}";
    assert!(end.stderr.starts_with("forebear: request '"), "{end:#?}");
    assert!(end.stderr.contains(test), "{end:#?}");
    end.assert_killed_by(libc::SIGABRT);
}

#[test]
fn an_overflow_shows_a_hostile_name_in_one_line_and_cut() {
    let end = child::run("", &[], |_| {
        let name = format!("new\nline \x1b[31m {}", "x".repeat(1000));
        Request::builder().name(name).on(&workers(1)).spawn(|| recurse(0)).take().unwrap();
    });
    let shown = "new?line ?[31m ";
    assert_reported(&end, &format!("{shown}{}", "x".repeat(200 - shown.len())), DEFAULT);
}

#[test]
fn overflows_on_two_workers_at_once_abort_with_a_whole_line() {
    let end = child::run("", &[], |_| {
        let runtime = workers(2);
        let barrier = std::sync::Arc::new(std::sync::Barrier::new(2));
        let [a, b] = ["twin", "twin"].map(|name| {
            let barrier = barrier.clone();
            named(name).on(&runtime).spawn(move || {
                barrier.wait();
                recurse(0)
            })
        });
        a.wait().unwrap();
        b.wait().unwrap();
    });
    end.assert_killed_by(libc::SIGABRT);
    let lines: Vec<_> = end.stderr.lines().collect();
    assert!(matches!(lines.len(), 1 | 2), "{end:#?}");
    let whole = |line: &&str| {
        line.starts_with("forebear: request 'twin' overflowed")
            && line.ends_with("RuntimeBuilder::stack_size")
    };
    assert!(lines.iter().all(whole), "{end:#?}");
}

/// std's own words, none of ours.
#[track_caller]
fn assert_reported_by_std(end: &End, thread: &str) {
    assert!(end.stderr.contains(&format!("thread '{thread}'")), "{end:#?}");
    assert!(end.stderr.contains("has overflowed its stack"), "{end:#?}");
    assert!(!end.stderr.contains("forebear"), "{end:#?}");
    end.assert_killed_by(libc::SIGABRT);
}

#[test]
fn an_overflow_of_a_plain_thread_is_left_to_std() {
    let end = child::run("", &[], |_| {
        let runtime = workers(1);
        assert_eq!(spawn(|| 1).take().ok(), Some(1));
        runtime.run(|| ());
        let plain = std::thread::Builder::new().name("plain".into());
        plain.spawn(|| recurse(0)).unwrap().join().unwrap();
    });
    assert_reported_by_std(&end, "plain");
}

/// One line of ours, then std's own words, which end the process.
#[track_caller]
fn assert_reported_by_both(end: &End, name: &str, thread: &str) {
    let ours = format!(
        "forebear: request '{name}' overflowed the stack of the thread that runs it itself while it waits: say how much \
         it needs by Request::builder().stack_size(bytes), up to {MOST} KiB, and it runs elsewhere if the thread has less\n"
    );
    assert!(end.stderr.starts_with(&ours), "{end:#?}");
    assert_eq!(end.stderr.matches("forebear").count(), 1, "{end:#?}");
    assert!(end.stderr.contains(&format!("thread '{thread}'")), "{end:#?}");
    assert!(end.stderr.contains("has overflowed its stack"), "{end:#?}");
    end.assert_killed_by(libc::SIGABRT);
}

#[test]
fn an_overflow_of_a_thread_that_runs_a_request_itself_names_that_and_is_left_to_std() {
    for (workers, request) in [("1", "direct"), ("0", "direct"), ("1", "inner")] {
        let end = child::run(&format!("{workers} {request}"), &[], |what| {
            let (workers, name) = what.split_once(' ').unwrap();
            let runtime = Runtime::builder().workers(workers.parse().unwrap()).build().unwrap();
            let foreign = std::thread::Builder::new().name("foreign".into());
            let deep = match name {
                "direct" => named("direct").on(&runtime).build(|| recurse(0)),
                _ => {
                    named("outer").on(&runtime).build(|| *named("inner").build(|| recurse(0)).wait().unwrap())
                }
            };
            foreign.spawn(move || *deep.wait().unwrap()).unwrap().join().unwrap();
        });
        assert_reported_by_both(&end, request, "foreign");
    }
}

#[test]
fn an_overflow_by_one_huge_frame_on_a_thread_that_runs_a_request_itself_names_that() {
    let end = child::run("", &[], |_| {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let foreign = std::thread::Builder::new().name("foreign".into());
        let huge = named("huge").on(&runtime).build(one_huge_frame);
        foreign.spawn(move || *huge.wait().unwrap()).unwrap().join().unwrap();
    });
    assert_reported_by_both(&end, "huge", "foreign");
}

/// Another fault, though a request is on top of the thread's stack.
#[test]
fn a_bad_address_on_a_thread_that_runs_a_request_itself_is_no_overflow() {
    for place in ["null", "far", "below"] {
        let end = child::run(place, &[], |place| {
            let place = place.to_owned();
            let runtime = Runtime::builder().workers(1).build().unwrap();
            let faults = named("faults").on(&runtime).build(move || {
                let address = match &*place {
                    "null" => 0,
                    "far" => usize::MAX / 4,
                    // In the guard, or below it, and the stack pointer is not there.
                    _ => lowest_of_this_stack() - 8,
                };
                // SAFETY: none: it is to fault.
                unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(1) };
            });
            std::thread::spawn(move || *faults.wait().unwrap()).join().unwrap();
        });
        assert!(!end.stderr.contains("forebear"), "{end:#?}");
    }
}

/// Where the mapping of the calling thread's stack begins.
fn lowest_of_this_stack() -> usize {
    let (maps, here) = (std::fs::read_to_string("/proc/self/maps").unwrap(), here());
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
    };
    maps.lines().filter_map(range).find(|range| range.contains(&here)).expect("it is mapped").start
}

//! When values, captures and errors of a scope's jobs are dropped.

use super::*;

/// The value and the captures are dropped before the count goes down, so a destructor may use what they borrow.
#[test]
fn destructors_of_values_and_captures_run_before_the_scope_returns() {
    struct Uses<'a>(&'a AtomicBool, &'a AtomicUsize);
    impl Drop for Uses<'_> {
        fn drop(&mut self) {
            assert!(self.0.load(Ordering::Relaxed), "what it borrows is still there");
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    in_both_worlds(|| {
        for _ in 0..50 {
            let (there, drops) = (AtomicBool::new(true), AtomicUsize::new(0));
            scope(|s| {
                for _ in 0..4 {
                    let (captured, value) = (Uses(&there, &drops), Uses(&there, &drops));
                    s.spawn(move || {
                        let _captured = captured;
                        value
                    });
                }
            });
            there.store(false, Ordering::Relaxed);
            assert_eq!(drops.into_inner(), 8);
        }
    });
}

#[test]
fn a_destructor_that_panics_does_not_keep_the_scope_from_ending() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                resume_unwind(Box::new("destructor"));
            }
        }
    }
    for kind in support::kinds() {
        let _dog = support::Watchdog::new(format_args!("{kind:?}"));
        let (runtime, told) = counts_unhandled(&kind);
        let value = || scope(|s| drop(s.spawn(|| Bad)));
        runtime.run(value);
        runtime.enter(value);
        assert_eq!(told.get(), 2, "each is reported once");
        // A capture's panic is the closure's own.
        let captured = || {
            let bad = Bad;
            try_scope(|s| {
                s.spawn(move || drop(bad));
                Ok(())
            })
        };
        assert!(runtime.run(captured).is_err());
        assert!(runtime.enter(captured).is_err());
    }
}

#[test]
fn forgetting_handles_leaks_and_does_no_more() {
    in_both_worlds(|| {
        let (mut a, mut b) = (0, 0);
        scope(|s| {
            std::mem::forget(s.spawn(|| a = 1));
            let handle = s.spawn(|| b = 2);
            std::mem::forget(handle.clone());
            std::mem::forget(handle.to_untyped());
            std::mem::forget(handle);
        });
        assert_eq!((a, b), (1, 2));
        std::mem::forget(Request::new(|| ()));
        std::mem::forget(spawn(|| ()));
    });
}

// ---- nesting ----------------------------------------------------------------------------------------------------------------

/// Its destructor waits, and panics.
struct Falls;

impl Drop for Falls {
    fn drop(&mut self) {
        assert!(!std::thread::panicking(), "it is not dropped by an unwind");
        yields(3);
        std::panic::panic_any("falls on purpose");
    }
}

#[test]
fn the_value_of_a_body_whose_job_fails_is_dropped_before_the_scope_unwinds() {
    in_both_worlds(|| {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            scope(|s| {
                drop(s.try_spawn(|| -> Result<(), forebear::Error> { Err(std::fmt::Error.into()) }));
                Falls
            })
        }));
        assert_eq!(unwound.map(drop).unwrap_err().downcast_ref(), Some(&"falls on purpose"));
    });
}

#[test]
fn the_value_of_a_run_that_is_cancelled_is_dropped_before_the_run_unwinds() {
    in_both_worlds(|| {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            Runtime::current().run(|| {
                assert_eq!(
                    Request::current().unwrap().abort(CancelReason::Aborted),
                    forebear::Cancellation::Marked
                );
                Falls
            })
        }));
        assert_eq!(unwound.map(drop).unwrap_err().downcast_ref(), Some(&"falls on purpose"));
    });
}

/// Waits for the end of a job without looking at it, and unwinds.
fn unwinds_after(job: Request<()>) -> ! {
    until(|| job.is_done());
    drop(job);
    resume_unwind(Box::new("body"))
}

#[test]
fn the_error_of_a_job_is_dropped_when_the_panic_of_the_body_goes_on() {
    in_both_worlds(|| {
        for tries in [false, true] {
            let dropped = Count::new();
            let error = WaitsInDrop(dropped.clone());
            let fails = || -> Result<(), Error> { Err(error.into()) };
            let unwound = catch_unwind(AssertUnwindSafe(|| match tries {
                true => drop(try_scope(|s| -> Result<(), Error> { unwinds_after(s.try_spawn(fails)) })),
                false => scope(|s| unwinds_after(s.try_spawn(fails))),
            }));
            assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"body"));
            // Not at once in each run. The scope's cancel was passed on to the worker that ran the job, for its children, and that message has a link of the job.
            until(|| dropped.get() == 1);
        }
    });
}

//! `scope`: requests that borrow, because it never returns before they are over.

#[path = "scope/drops.rs"]
mod drops;
#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use forebear::sync::Event;
use forebear::{
    AnyRequest, CancelReason, Error, Request, Runtime, WaitError, catch, join, scope, spawn, try_scope,
    try_spawn, yield_now,
};
use support::{
    Count, Flag, Kind, WaitsInDrop, Watchdog, hold_thread_until, in_both_worlds, inside_each, on_each, until,
};

fn yields(n: usize) {
    for _ in 0..n {
        yield_now().unwrap();
    }
}

#[test]
fn jobs_borrow_and_the_body_gives_the_value() {
    in_both_worlds(|| {
        let words = [String::from("a"), String::from("bb")];
        let mut lengths = [0; 2];
        let value = scope(|s| {
            for (word, length) in words.iter().zip(&mut lengths) {
                s.spawn(|| *length = word.len());
            }
            "value"
        });
        assert_eq!((value, lengths), ("value", [1, 2]));
    });
}

#[test]
fn scope_does_not_return_before_its_jobs_are_over() {
    in_both_worlds(|| {
        for jobs in [1, 2, 30] {
            let over = AtomicUsize::new(0);
            scope(|s| {
                for n in 0..jobs {
                    let over = &over;
                    s.spawn(move || {
                        yields(n);
                        over.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
            assert_eq!(over.into_inner(), jobs);
        }
    });
}

#[test]
fn an_unwinding_body_aborts_the_jobs_and_waits_for_them_first() {
    in_both_worlds(|| {
        let (begun, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
        struct Count<'a>(&'a AtomicUsize);
        impl Drop for Count<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            scope(|s| {
                for _ in 0..10 {
                    let (begun, count) = (&begun, Count(&over));
                    // Each would go on for ever.
                    s.spawn(move || {
                        let _count = count;
                        begun.fetch_add(1, Ordering::Relaxed);
                        while yield_now().is_ok() {}
                    });
                }
                until(|| begun.load(Ordering::Relaxed) > 0);
                resume_unwind(Box::new("body"))
            })
        }));
        assert_eq!(*unwound.unwrap_err().downcast::<&str>().unwrap(), "body");
        assert_eq!(over.into_inner(), 10);
    });
}

/// Jobs that end while the scope's count goes down from both sides at once.
#[test]
fn an_empty_scope_and_one_whose_jobs_are_taken_return_at_once() {
    in_both_worlds(|| {
        assert_eq!(scope(|_| 1), 1);
        for _ in 0..50 {
            assert_eq!(scope(|s| s.spawn(|| 2).take().unwrap()), 2);
            assert_eq!(scope(|s| *s.spawn(|| 3).wait().unwrap()), 3);
            let (a, b) = scope(|s| {
                let (a, b) = (s.spawn(|| 4), s.spawn(|| 5));
                (b.take().unwrap(), a.take().unwrap())
            });
            assert_eq!((a, b), (5, 4));
        }
    });
}

#[test]
fn jobs_may_be_taken_by_others_than_the_scopes_owner() {
    in_both_worlds(|| {
        let sum = scope(|s| {
            let numbers: Vec<_> = (0..10).map(|n| s.spawn(move || n)).collect();
            let takers: Vec<_> =
                numbers.into_iter().map(|number| s.spawn(move || number.take().unwrap())).collect();
            takers.into_iter().map(|taker| taker.take().unwrap()).sum::<u32>()
        });
        assert_eq!(sum, 45);
    });
}

// ---- failures -------------------------------------------------------------------------------------------------------------

#[test]
fn an_unseen_failure_comes_out_of_try_scope_as_an_error() {
    in_both_worlds(|| {
        let result = try_scope(|s| {
            s.try_spawn(|| Ok("x".parse::<u32>()?));
            Ok("never returned over work that failed")
        });
        let error = result.unwrap_err();
        assert!(error.downcast_ref::<std::num::ParseIntError>().is_some(), "{error:?}");
    });
}

#[test]
fn an_unseen_failure_comes_out_of_scope_as_an_unwind() {
    inside_each(|| {
        let error =
            catch(|| scope(|s| drop(s.spawn(|| -> u32 { resume_unwind(Box::new("job")) })))).unwrap_err();
        let Some(WaitError::Failed(failure)) = error.downcast_ref::<WaitError>() else { panic!("{error:?}") };
        assert_eq!(failure.panic_message(), Some("job"));
    });
    on_each(|runtime| {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            runtime.enter(|| scope(|s| drop(s.spawn(|| -> u32 { resume_unwind(Box::new("job")) }))));
        }));
        assert!(unwound.is_err(), "in a foreign thread it is a panic");
    });
}

#[test]
fn a_failure_that_was_seen_does_not_come_out() {
    in_both_worlds(|| {
        let value = try_scope(|s| {
            let by_reference = s.spawn(|| -> u32 { resume_unwind(Box::new("no")) });
            assert!(by_reference.wait().is_err());
            let by_value = s.spawn(|| -> u32 { resume_unwind(Box::new("no")) });
            assert!(by_value.take().is_err());
            let by_outcome = s.spawn(|| -> u32 { resume_unwind(Box::new("no")) });
            support::until(|| by_outcome.is_done());
            assert!(matches!(by_outcome.outcome(), Some(forebear::Outcome::Failed(_))));
            let untyped = s.spawn(|| -> u32 { resume_unwind(Box::new("no")) }).to_untyped();
            assert!(untyped.wait().is_err());
            Ok(1)
        });
        assert_eq!(value.unwrap(), 1);
    });
}

#[test]
fn the_bodys_error_goes_before_a_jobs_and_a_panic_before_both() {
    in_both_worlds(|| {
        let bad = || -> Result<(), Error> { Err(Error::other("job")) };
        let error = try_scope(|s| -> Result<(), Error> {
            s.try_spawn(bad);
            Err(Error::other("body"))
        })
        .unwrap_err();
        assert_eq!(error.failure().unwrap().error().to_string(), "body");
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            try_scope(|s| -> Result<(), Error> {
                s.try_spawn(bad);
                resume_unwind(Box::new("panic"))
            })
        }));
        assert_eq!(*unwound.unwrap_err().downcast::<&str>().unwrap(), "panic");
    });
}

#[test]
fn a_failing_job_does_not_touch_the_others_while_the_body_goes_on() {
    in_both_worlds(|| {
        let over = AtomicUsize::new(0);
        let result = try_scope(|s| {
            let jobs: Vec<_> = (0..20)
                .map(|n| {
                    let over = &over;
                    s.try_spawn(move || {
                        yields(n % 3);
                        over.fetch_add(1, Ordering::Relaxed);
                        if n % 4 == 0 { Err(Error::other("no")) } else { Ok(()) }
                    })
                })
                .collect();
            // Without looking at any.
            until(|| jobs.iter().all(Request::is_done));
            Ok(())
        });
        assert!(result.is_err());
        assert_eq!(over.into_inner(), 20);
    });
}

#[test]
fn when_the_body_is_over_an_unseen_failure_aborts_the_rest() {
    in_both_worlds(|| {
        let result = try_scope(|s| {
            s.try_spawn(|| Err::<(), _>(Error::other("no")));
            for _ in 0..10 {
                s.spawn(|| while yield_now().is_ok() {});
            }
            Ok(())
        });
        assert!(matches!(result, Err(WaitError::Failed(_))), "{result:?}");
    });
}

#[test]
fn a_cancelled_request_gets_no_value_over_jobs_that_were_skipped() {
    inside_each(|| {
        let job = try_spawn(|| {
            let me = Request::current().unwrap();
            let told = try_scope(|s| {
                s.spawn(|| while yield_now().is_ok() {});
                me.abort(CancelReason::Asked);
                s.spawn(|| unreachable!("born cancelled"));
                Ok(7)
            });
            assert!(matches!(told, Err(WaitError::Cancelled)), "{told:?}");
            told.map_err(Error::from)
        });
        assert!(matches!(job.wait(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
    });
}

#[test]
fn a_scope_may_be_cancelled_from_anywhere_and_returns_when_its_jobs_are_over() {
    in_both_worlds(|| {
        for from_a_job in [false, true] {
            let seven = scope(|s| {
                for n in 0..10 {
                    s.spawn(move || {
                        if n == 5 && from_a_job {
                            s.cancel();
                        }
                        while yield_now().is_ok() {}
                    });
                }
                if !from_a_job {
                    s.cancel();
                }
                7
            });
            assert_eq!(seven, 7, "it was asked for, so nothing was skipped");
        }
    });
}

/// A runtime, and how often its hook for unhandled failures was called.
fn counts_unhandled(kind: &Kind) -> (Runtime, Count) {
    let told = Count::new();
    let hook = told.clone();
    let builder = kind.builder().on_unhandled_failure(move |_| {
        hook.up();
    });
    (builder.build().unwrap(), told)
}

/// The hook is for failures that nobody will ever be told of.
#[test]
fn a_jobs_failure_is_the_scopes_affair_and_not_the_hooks() {
    for kind in support::kinds() {
        let _dog = support::Watchdog::new(format_args!("{kind:?}"));
        let (runtime, told) = counts_unhandled(&kind);
        let inside = || {
            let result = try_scope(|s| {
                s.try_spawn(|| Err::<(), _>(Error::other("no")));
                drop(s.spawn(|| -> u32 { resume_unwind(Box::new("no")) }));
                Ok(())
            });
            assert!(result.is_err());
        };
        runtime.run(inside);
        runtime.enter(inside);
        drop(runtime);
        assert_eq!(told.get(), 0);
    }
}

// ---- handles --------------------------------------------------------------------------------------------------------------

#[test]
fn a_handle_whose_value_borrows_from_outside_may_leave() {
    in_both_worlds(|| {
        let words = ["a", "bb", "ccc"];
        let longest = scope(|s| s.spawn(|| words.iter().max_by_key(|word| word.len())));
        assert_eq!(longest.state(), forebear::State::Finished);
        assert_eq!(longest.take().unwrap(), Some(&"ccc"));
    });
}

#[test]
fn an_untyped_handle_may_leave_and_holds_neither_value_nor_closure() {
    in_both_worlds(|| {
        let drops = Count::new();
        let mut kept: Vec<AnyRequest> = Vec::new();
        {
            let local = drops.probe();
            scope(|s| {
                let local = &local;
                kept.push(s.spawn(move || local).to_untyped());
                let (value, captured) = (drops.probe(), drops.probe());
                kept.push(
                    s.spawn(move || {
                        let _captured = &captured;
                        value
                    })
                    .to_untyped(),
                );
            });
            assert_eq!(drops.get(), 2, "value and closure are gone when the scope returns");
        }
        assert_eq!(drops.get(), 3);
        for any in &kept {
            assert!(any.is_done());
            assert!(any.wait().is_ok());
            assert!(!format!("{any:?}").is_empty());
        }
    });
}

#[test]
fn scopes_nest() {
    in_both_worlds(|| {
        let seen = Mutex::new(Vec::new());
        scope(|outer| {
            outer.spawn(|| {
                scope(|inner| {
                    for n in 0..3 {
                        let seen = &seen;
                        inner.spawn(move || {
                            yields(n);
                            seen.lock().unwrap().push(n);
                        });
                    }
                });
                assert_eq!(seen.lock().unwrap().len(), 3, "the inner one is over");
                seen.lock().unwrap().push(10);
            });
            scope(|inner| drop(inner.spawn(|| yields(2))));
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 10]);
    });
}

#[test]
fn a_job_spawns_further_jobs_in_the_same_scope() {
    struct Tree(Vec<Tree>);
    fn tree(depth: usize) -> Tree {
        Tree((0..if depth == 0 { 0 } else { 4 }).map(|_| tree(depth - 1)).collect())
    }
    fn visit<'s>(s: &'s forebear::Scope<'s, '_>, tree: &'s Tree, seen: &'s AtomicUsize) {
        for kid in &tree.0 {
            s.spawn(move || visit(s, kid, seen));
        }
        seen.fetch_add(1, Ordering::Relaxed);
    }
    let whole = tree(5);
    in_both_worlds(|| {
        let seen = AtomicUsize::new(0);
        scope(|s| visit(s, &whole, &seen));
        assert_eq!(seen.into_inner(), (4_usize.pow(6) - 1) / 3);
    });
}

/// Work that the scope's own stack spawns in another thread's job, while the scope's owner already waits.
#[test]
fn a_job_spawns_while_the_body_is_over_already() {
    in_both_worlds(|| {
        let body_over = Flag::new();
        let mut late = false;
        let seen = &mut late;
        scope(|s| {
            let flag = body_over.clone();
            s.spawn(move || {
                flag.wait();
                s.spawn(move || {
                    yields(3);
                    *seen = true;
                });
            });
            // Raised by the destructor of a value that goes when the body returns.
            struct Raise(Flag);
            impl Drop for Raise {
                fn drop(&mut self) {
                    self.0.raise();
                }
            }
            drop(Raise(body_over));
        });
        assert!(late);
    });
}

#[test]
fn a_scope_in_an_arm_and_a_join_in_a_job() {
    in_both_worlds(|| {
        let mut parts = [0; 4];
        let (left, right) = parts.split_at_mut(2);
        join(
            || {
                scope(|s| {
                    for (n, part) in left.iter_mut().enumerate() {
                        s.spawn(move || *part = n + 1);
                    }
                })
            },
            || {
                scope(|s| {
                    s.spawn(|| {
                        let (a, b) = right.split_at_mut(1);
                        join(|| a[0] = 3, || b[0] = 4);
                    });
                })
            },
        );
        assert_eq!(parts, [1, 2, 3, 4]);
    });
}

#[test]
fn jobs_are_children_of_whoever_spawns_them() {
    inside_each(|| {
        let me = Request::current().unwrap();
        scope(|s| {
            let child = s.spawn(|| Request::current().unwrap().parent().unwrap());
            assert_eq!(child.take().unwrap(), me);
            let named = Request::builder().name("spawner").spawn_in(s, || {
                s.spawn(|| Request::current().unwrap().parent().unwrap().name().to_owned()).take().unwrap()
            });
            assert_eq!(named.take().unwrap(), "spawner");
        });
    });
}

#[test]
fn the_builder_spawns_in_a_scope() {
    in_both_worlds(|| {
        let text = String::from("borrowed");
        scope(|s| {
            let described = Request::builder().name("described").stack_size(100 << 10);
            let job = described.spawn_in(s, || text.len());
            assert_eq!((job.name(), *job.wait().unwrap()), ("described", 8));
            let bad = described.try_spawn_in(s, || text.parse::<u32>().map_err(Error::from));
            let Err(WaitError::Failed(failure)) = bad.wait() else { panic!("{bad:?}") };
            assert_eq!(failure.request(), "described");
        });
    });
}

/// Runs a scope with one job of this name on a plain thread of the same name.
fn scope_of_one<'t>(
    threads: &'t thread::Scope<'t, '_>,
    runtime: &'t Runtime,
    name: &'static str,
    job: impl FnOnce() + Send + 't,
) -> thread::ScopedJoinHandle<'t, u32> {
    let body = move || {
        runtime.enter(|| {
            scope(|s| {
                let one = Request::builder().name(name).own_stack();
                drop(one.spawn_in(s, job));
                7
            })
        })
    };
    thread::Builder::new().name(name.to_owned()).spawn_scoped(threads, body).unwrap()
}

#[test]
fn a_scope_of_a_plain_thread_says_once_by_name_for_which_jobs_it_waits_if_none_can_go_on() {
    for kind in [Kind::Workers(2), Kind::Synchronous] {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let (tell, told) = mpsc::channel();
        let builder = kind.builder().on_warning(move |text| _ = tell.send(text.to_owned()));
        let runtime = builder.build().unwrap();
        let go = Event::new();
        let wait = || go.wait().unwrap();
        thread::scope(|threads| {
            let mut stuck = Vec::new();
            // The second waits as long as the first. By then the first would have said it again.
            for name in ["first", "second"] {
                stuck.push(scope_of_one(threads, &runtime, name, wait));
                let said = told.recv().unwrap();
                let expected = format!(
                    "a scope in thread '{name}' waits, and none of its jobs can go on: request '{name}' (suspended"
                );
                assert!(said.starts_with(&expected) && said.contains("waits for an event"), "{said}");
            }
            assert_eq!(told.try_iter().count(), 0, "once");
            go.set();
            for scope in stuck {
                assert_eq!(scope.join().unwrap(), 7);
            }
        });
    }
}

#[test]
fn a_scope_whose_jobs_compute_or_end_soon_gives_no_warning() {
    let _dog = Watchdog::new("");
    let (tell, told) = mpsc::channel();
    let builder = Runtime::builder().workers(2).on_warning(move |text| _ = tell.send(text.to_owned()));
    let runtime = builder.build().unwrap();
    let (go, computed) = (Event::new(), Flag::new());
    thread::scope(|threads| {
        let computes = {
            let computed = computed.clone();
            // It waits for a child that computes, on whichever stack.
            scope_of_one(threads, &runtime, "computes", move || {
                spawn(move || hold_thread_until(|| computed.is_up())).wait().unwrap();
            })
        };
        let soon = scope_of_one(threads, &runtime, "soon", || yields(3));
        assert_eq!(soon.join().unwrap(), 7);
        // This one began later. When it says that it waits, the others have waited for longer.
        let stuck = scope_of_one(threads, &runtime, "stuck", || go.wait().unwrap());
        assert!(told.recv().unwrap().starts_with("a scope in thread 'stuck' waits"));
        go.set();
        computed.raise();
        assert_eq!([computes.join().unwrap(), stuck.join().unwrap()], [7, 7]);
    });
    drop(runtime);
    assert_eq!(told.try_iter().count(), 0);
}

//! What can be seen of requests and runtimes: names, numbers, states, and `Debug` of everything.

#[path = "../support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::thread;

use forebear::{AnyRequest, Request, RequestId, Runtime, State, scope, spawn};
use support::{Come, Count, Flag, hold_workers, in_both_worlds, join_all, on_each, until};

#[test]
fn the_states_of_a_request_that_suspends_and_finishes() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    on_each(|runtime| {
        let (suspend, open, end) = (Flag::new(), Flag::new(), Flag::new());
        let gate = {
            let open = open.clone();
            Request::builder().on(runtime).own_stack().build(move || open.wait())
        };
        let held = hold_workers(runtime);
        let request = {
            let (suspend, end) = (suspend.clone(), end.clone());
            Request::builder().on(runtime).own_stack().build(move || {
                let me = Request::current().unwrap();
                assert_eq!(me.state(), State::Running);
                support::hold_thread_until(|| suspend.is_up());
                gate.wait().unwrap();
                assert_eq!(me.state(), State::Running);
                support::hold_thread_until(|| end.is_up());
            })
        };
        let any = request.to_untyped();
        let both = || {
            let state = request.state();
            assert_eq!(any.is_done(), request.is_done());
            state
        };
        assert_eq!(both(), State::New);
        request.submit();
        assert_eq!(both(), State::Queued);
        held.release();
        until(|| both() != State::Queued);
        assert_eq!(both(), State::Running);
        suspend.raise();
        until(|| both() == State::Suspended);
        open.raise();
        until(|| both() != State::Suspended);
        assert_eq!(both(), State::Running);
        end.raise();
        request.wait().unwrap();
        assert_eq!((request.state(), any.state()), (State::Finished, State::Finished));
    });
}

#[test]
fn how_many_have_begun_and_not_ended_can_be_asked() {
    on_each(|runtime| {
        assert_eq!(runtime.active(), 0);
        let (free, begun) = (Flag::new(), Count::new());
        let waits = |nested: bool| {
            let (free, begun) = (free.clone(), begun.clone());
            let body = move || {
                begun.up();
                free.wait();
            };
            Request::builder().on(runtime).own_stack().spawn(move || match nested {
                false => body(),
                // Perhaps on one stack, perhaps on two.
                true => Request::new(body).take().unwrap(),
            })
        };
        let requests: Vec<_> = (0..10).map(|n| waits(n < 3)).collect();
        let _unsubmitted = runtime.enter(|| Request::new(|| ()));
        begun.wait_for(10);
        assert_eq!(runtime.active(), 13);
        // As a request, and as one that a foreign thread runs.
        let asks = runtime.clone();
        assert_eq!(runtime.run(move || asks.active()), 14);
        let asks = runtime.clone();
        let direct = runtime.enter(|| Request::new(move || asks.active()));
        assert_eq!(direct.take().unwrap(), 14);
        free.raise();
        for request in requests {
            request.wait().unwrap();
        }
        assert_eq!(runtime.active(), 0);
        runtime.shutdown(std::time::Duration::MAX).unwrap();
        assert_eq!(runtime.active(), 0);
    });
}

/// Whoever asks while others run at full speed gets a number, and disturbs nobody.
#[test]
fn to_ask_how_many_have_begun_disturbs_nobody() {
    on_each(|runtime| {
        let (over, asks) = (Flag::new(), runtime.clone());
        let enough = over.clone();
        let asker = thread::spawn(move || {
            let mut most = 0;
            while !enough.is_up() {
                most = most.max(asks.active());
            }
            most
        });
        for _ in 0..20 {
            let value = runtime.run(|| {
                let all: Vec<_> = (0..200)
                    .map(|n| {
                        spawn(move || {
                            let _ = forebear::yield_now();
                            Request::new(move || n).take().unwrap()
                        })
                    })
                    .collect();
                all.into_iter().map(|one| one.take().unwrap()).sum::<u32>()
            });
            assert_eq!(value, 199 * 100);
        }
        over.raise();
        assert!(asker.join().unwrap() < 1_000);
    });
}

#[test]
fn the_other_two_ends_are_states_too() {
    in_both_worlds(|| {
        let failed = spawn(|| -> u32 { std::panic::resume_unwind(Box::new("no")) });
        assert!(failed.wait().is_err());
        assert_eq!((failed.state(), failed.is_done()), (State::Failed, true));
        let cancelled = Request::new(|| ()).into_untyped();
        assert_eq!((cancelled.state(), cancelled.is_done()), (State::Cancelled, true));
    });
}

#[test]
fn debug_of_a_request_tells_name_state_and_worker() {
    on_each(|runtime| {
        let free = Flag::new();
        let request = {
            let free = free.clone();
            Request::builder().name("tile 3").on(runtime).own_stack().build(move || free.wait())
        };
        let text = format!("{request:?}");
        assert!(text.starts_with("Request") && text.contains("\"tile 3\"") && text.contains("New"), "{text}");
        assert!(!text.contains("worker"), "{text}");
        request.submit();
        until(|| request.assigned_worker().is_some());
        let worker = request.assigned_worker().unwrap();
        let text = format!("{:?}", request.to_untyped());
        assert!(text.starts_with("AnyRequest") && text.contains(&format!("worker: {worker}")), "{text}");
        free.raise();
        request.wait().unwrap();
        assert!(format!("{request:#?}").contains("Finished"));
    });
}

#[test]
fn debug_of_a_failed_request_tells_why() {
    in_both_worlds(|| {
        let failed = Request::builder().name("bad").try_build(|| Ok("x".parse::<u32>()?));
        assert!(failed.wait().is_err());
        let text = format!("{failed:?}");
        assert!(text.contains("Failed") && text.contains("ParseIntError"), "{text}");
    });
}

/// Formatting needs nothing of the value's type.
#[test]
fn everything_implements_debug() {
    struct Opaque;
    in_both_worlds(|| {
        let request = Request::new(|| Opaque);
        assert!(format!("{request:?}").contains("New"));
        request.wait().unwrap();
        assert!(format!("{request:?} {:?}", request.to_untyped()).contains("Finished"));
        assert!(!format!("{:?} {:?}", Request::builder().name("x"), Runtime::builder()).is_empty());
        scope(|s| assert!(format!("{s:?}").contains("Scope")));
        let number = Request::ready(3);
        assert!(format!("{:?}", number.outcome()).contains("Finished(3)"));
    });
    on_each(|runtime| {
        let text = format!("{runtime:?}");
        assert!(text.contains("test") && text.contains(&format!("workers: {}", runtime.workers())), "{text}");
        assert!(!format!("{:?}", runtime.metrics()).is_empty());
        assert_eq!(runtime.states().len(), runtime.workers());
    });
}

#[test]
fn a_name_is_the_one_given_else_the_callables_type() {
    in_both_worlds(|| {
        assert_eq!(Request::builder().name("literal").build(|| ()).name(), "literal");
        let owned = Request::builder().name(format!("tile {}", 3)).build(|| ());
        assert_eq!((owned.name(), owned.to_untyped().name()), ("tile 3", "tile 3"));
        let unnamed = Request::new(|| ());
        assert!(unnamed.name().contains("a_name_is_the_one_given"), "{}", unnamed.name());
        let current = Request::builder().name("me").build(|| Request::current().unwrap().name().to_owned());
        assert_eq!(current.take().unwrap(), "me");
        // One description makes many.
        let described = Request::builder().name("many");
        let (a, b) = (described.build(|| 1), described.build(|| 2));
        assert_eq!((a.name(), b.name()), ("many", "many"));
    });
}

#[test]
fn numbers_are_unique_and_stay() {
    on_each(|runtime| {
        let requests: Vec<_> =
            runtime.enter(|| (0..100).map(|_| Request::new(|| Request::current().unwrap().id())).collect());
        let ids: HashSet<RequestId> = requests.iter().map(Request::id).collect();
        assert_eq!(ids.len(), 100);
        for request in &requests {
            let id = request.id();
            assert_eq!(*request.wait().unwrap(), id);
            assert_eq!((request.id(), request.to_untyped().id()), (id, id));
            assert!(id.to_string().starts_with('#'));
        }
        // Asked by many at once.
        let one = runtime.enter(|| Request::new(|| ()));
        let seen = std::sync::Mutex::new(HashSet::new());
        thread::scope(|threads| {
            join_all([(); 4].map(|()| {
                threads.spawn(|| {
                    seen.lock().unwrap().insert(one.id());
                })
            }));
        });
        assert_eq!(seen.into_inner().unwrap().len(), 1);
    });
}

#[test]
fn untyped_handles_are_equal_by_identity_and_hash_so() {
    in_both_worlds(|| {
        let (a, b) = (Request::new(|| 1), Request::new(|| 1));
        assert_eq!(a.to_untyped(), a.clone().to_untyped());
        assert_eq!(AnyRequest::from(&a), a.to_untyped());
        assert_ne!(a.to_untyped(), b.to_untyped());
        let set: HashSet<AnyRequest> = [a.to_untyped(), a.to_untyped(), b.to_untyped()].into_iter().collect();
        assert_eq!(set.len(), 2);
    });
}

#[test]
fn a_parent_is_told_while_it_is_there() {
    in_both_worlds(|| {
        let parent = Request::builder().name("parent").build(|| {
            let child = Request::new(|| ());
            assert_eq!(child.to_untyped().parent(), Request::current());
            let detached = Request::builder().detached().build(|| ());
            assert_eq!(detached.to_untyped().parent(), None);
            child.to_untyped()
        });
        let child = parent.wait().unwrap();
        assert_eq!(child.parent(), Some(parent.to_untyped()), "it is over, but held");
    });
}

/// Whoever made a request may be over and forgotten, its record kept by its children only: then there is no handle to be
/// had, or one that keeps the record as any other does.
/// Making it makes a child of it; waiting for it, submitting or running it does not.
#[test]
fn a_parent_is_who_made_it_and_not_who_waits_for_it() {
    in_both_worlds(|| {
        let maker = Request::current();
        let made = Request::builder().name("made").build(|| Request::current().unwrap().parent());
        let runs = made.clone();
        let other = Request::builder().name("other").build(move || {
            assert!(runs.to_untyped().parent() != Request::current());
            runs.submit().wait().unwrap().clone()
        });
        assert_eq!(other.wait().unwrap(), &maker);
        assert_eq!(made.to_untyped().parent(), maker);
    });
}

#[test]
fn a_handle_to_a_forgotten_parent_is_none_or_stays_good_after_the_children() {
    on_each(|runtime| {
        for held in [false, true] {
            let (go, told) = (Flag::new(), std::sync::mpsc::channel());
            let make = |go: Flag, tell: std::sync::mpsc::Sender<Option<AnyRequest>>| {
                let parent = Request::builder().name("parent").build(move || {
                    Request::builder().own_stack().spawn(move || {
                        go.wait();
                        tell.send(Request::current().unwrap().parent()).unwrap();
                    });
                });
                parent.wait().unwrap();
                held.then_some(parent)
            };
            let kept = if runtime.workers() % 2 == 0 {
                runtime.enter(|| make(go.clone(), told.0.clone()))
            } else {
                let (go, tell) = (go.clone(), told.0.clone());
                runtime.run(move || make(go, tell))
            };
            go.raise();
            let parent = told.1.come().unwrap();
            assert!(parent.is_some() || !held, "who holds it can be told of it");
            drop(kept);
            // Records that have been given back would be used again by these.
            let churn =
                || (0..2_000).map(|n| Request::builder().name("other").spawn(move || n)).collect::<Vec<_>>();
            for requests in [runtime.run(churn), runtime.enter(churn)] {
                for request in &requests {
                    request.wait().unwrap();
                }
            }
            if let Some(parent) = parent {
                // One that nobody holds may have given its place to its child, which then tells of the nearest ancestor.
                assert!(parent.name() == "parent" || !held);
                assert_eq!(parent.state(), State::Finished);
                parent.wait().unwrap();
            }
        }
    });
}

/// Looks from another thread while requests come and go.
#[test]
fn looking_disturbs_nobody() {
    on_each(|runtime| {
        let over = Flag::new();
        let (send, receive) = std::sync::mpsc::sync_channel::<AnyRequest>(16);
        let done = Count::new();
        thread::scope(|threads| {
            let looker = {
                let over = over.clone();
                threads.spawn(move || {
                    while let Ok(any) = receive.come() {
                        while !any.is_done() && !over.is_up() {
                            let _ = (format!("{any:?}"), any.state(), any.assigned_worker(), any.parent());
                        }
                    }
                })
            };
            runtime.run(|| {
                for _ in 0..300 {
                    let done = done.clone();
                    let request = Request::new(move || {
                        spawn(forebear::yield_now).take().unwrap().unwrap();
                        done.up();
                    });
                    let _ = send.try_send(request.to_untyped());
                    request.wait().unwrap();
                }
            });
            over.raise();
            drop(send);
            join_all([looker]);
        });
        assert_eq!(done.get(), 300);
    });
}

//! The promises of `forebear_context::error` about failures, the payloads of panics, and unwinding.

use std::any::Any;
use std::cell::Cell;
use std::error::Error as StdError;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, panic_any, resume_unwind};
use std::sync::{Arc, Barrier, Once};
use std::thread;

use forebear_context::error::internal::{Unwound, payload_into_error, unwind_with};
use forebear_context::error::{Error, Failure, OrUnwind, SourceLocation, TimeoutError, WaitError, catch};

/// A user's error.
#[derive(Debug, thiserror::Error)]
enum RenderError {
    #[error("no layer {0}")]
    NoLayer(usize),
    #[error("while loading")]
    Load(#[source] WaitError),
}

fn not_found() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no such file")
}

/// The failure of a request called `load` that could not open a file.
fn load_failed() -> Failure {
    Failure::from_error(Error::from(not_found()), "load", None)
}

fn panicked(payload: impl Any + Send) -> Failure {
    Failure::from_panic(Box::new(payload), "load", None)
}

fn texts<'a>(chain: impl Iterator<Item = &'a (dyn StdError + 'static)>) -> Vec<String> {
    chain.map(ToString::to_string).collect()
}

thread_local! {
    /// While somebody on this thread counts: how often the panic hook ran, and for which line the last time.
    static HOOK: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

/// How often the panic hook ran on this thread during `f`, and the line it was told last.
fn hook_during(f: impl FnOnce()) -> (u32, u32) {
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match HOOK.get() {
            Some((calls, _)) => HOOK.set(Some((calls + 1, info.location().map_or(0, Location::line)))),
            None => before(info),
        }));
    });
    HOOK.set(Some((0, 0)));
    f();
    HOOK.take().expect("only this thread sets it")
}

mod failures {
    use super::*;

    #[test]
    fn its_source_is_the_original() {
        let failure = load_failed();
        assert!(failure.error().is::<io::Error>());
        assert!(failure.source().unwrap().is::<io::Error>());
        assert_eq!(texts(failure.chain()), ["no such file"]);
        assert!(!failure.is_panic());
        assert_eq!(failure.panic_message(), None);
        assert!(failure.take_panic_payload().is_none());
        assert!(failure.panic_payload::<String>().is_none());
    }

    #[test]
    fn downcast_ref_finds_the_first_of_its_type_in_the_chain() {
        let inner = load_failed();
        let outer = Failure::from_error(Error::from(RenderError::Load(inner.into())), "page", None);
        assert_eq!(texts(outer.chain()), ["while loading", "request `load` failed", "no such file"]);
        assert!(matches!(outer.downcast_ref(), Some(RenderError::Load(_))));
        assert_eq!(outer.downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::NotFound);
        assert_eq!(outer.downcast_ref::<Failure>().unwrap().request(), "load");
        assert!(outer.downcast_ref::<std::fmt::Error>().is_none());
        let wait = WaitError::Failed(outer);
        assert!(wait.downcast_ref::<io::Error>().is_some());
        assert!(wait.downcast_ref::<WaitError>().is_some_and(|e| e.failure().unwrap().request() == "page"));
        assert!(WaitError::TimedOut.downcast_ref::<io::Error>().is_none());

        let nested = Error::from(RenderError::Load(WaitError::from(Failure::from_error(
            Error::from(RenderError::NoLayer(7)),
            "inner",
            None,
        ))));
        assert!(matches!(nested.downcast_ref(), Some(RenderError::Load(_))), "the outermost comes first");
    }

    #[test]
    fn a_failure_handed_on_is_the_same_with_one_name_more() {
        let first = load_failed();
        for handed_on in [Error::from(WaitError::Failed(first.clone())), Error::from(first.clone())] {
            let second = Failure::from_error(handed_on, "layer 0", None);
            assert!(second.same_origin(&first));
            assert_eq!(second.request(), "load");
            assert_eq!(second.path().collect::<Vec<_>>(), ["load", "layer 0"]);
            assert_eq!(second.path().len(), 2);
            assert!(second.error().is::<io::Error>());
            assert_eq!(second.to_string(), "request `load` failed");
        }
        assert_eq!(first.path().collect::<Vec<_>>(), ["load"]);
    }

    #[test]
    fn a_failure_that_was_wrapped_is_the_cause_of_a_new_one() {
        let first = load_failed();
        let second =
            Failure::from_error(Error::from(RenderError::Load(first.clone().into())), "layer 0", None);
        assert!(!second.same_origin(&first));
        assert_eq!(second.path().collect::<Vec<_>>(), ["layer 0"]);
        assert!(second.downcast_ref::<Failure>().unwrap().same_origin(&first));
    }

    #[test]
    fn a_renamed_failure_has_another_last_name_and_is_the_same_otherwise() {
        let first = load_failed();
        let passed_on = first.through("layer 0");
        for (failure, path) in [
            (first.renamed("loader"), &["loader"][..]),
            (first.renamed("loader").renamed("reader"), &["reader"]),
            (first.renamed("loader").through("page"), &["loader", "page"]),
            (passed_on.renamed("first layer"), &["load", "first layer"]),
        ] {
            assert_eq!(failure.path().collect::<Vec<_>>(), path);
            assert_eq!((failure.request(), failure.path().len()), (path[0], path.len()));
            assert!(failure.same_origin(&first) && first.same_origin(&failure));
            assert!(failure.error().is::<io::Error>() && !failure.is_panic());
            assert_eq!(failure.to_string(), format!("request `{}` failed", path[0]));
        }
        assert_eq!(first.request(), "load");
        let panicked = panicked("no licence").renamed("loader");
        assert_eq!((panicked.request(), panicked.panic_message()), ("loader", Some("no licence")));
        assert!(format!("{panicked:?}").contains("no licence"));
        assert_eq!(*panicked.take_panic_payload().unwrap().downcast::<&str>().unwrap(), "no licence");
    }

    #[test]
    fn each_waiter_has_a_path_of_its_own() {
        let load = load_failed();
        let layers = ["layer 0", "layer 1"]
            .map(|name| Failure::from_error(WaitError::from(load.clone()).into(), name, None));
        let page = Failure::from_error(WaitError::from(layers[1].clone()).into(), "page", None);
        assert_eq!(layers[0].path().collect::<Vec<_>>(), ["load", "layer 0"]);
        assert_eq!(layers[1].path().collect::<Vec<_>>(), ["load", "layer 1"]);
        assert_eq!(page.path().collect::<Vec<_>>(), ["load", "layer 1", "page"]);
        drop((load, layers));
        assert_eq!(page.path().collect::<Vec<_>>(), ["load", "layer 1", "page"]);
    }

    #[test]
    fn a_path_of_any_length_is_dropped_on_a_small_stack() {
        const STEPS: usize = 200_000;
        let small = thread::Builder::new().stack_size(64 << 10).spawn(|| {
            let mut failure = load_failed();
            for _ in 1..STEPS {
                failure = failure.through("step");
            }
            assert_eq!(failure.path().len(), STEPS);
            drop(failure);
        });
        small.unwrap().join().unwrap();
    }

    #[test]
    fn two_who_drop_a_shared_path_at_once_free_all_of_it() {
        let alive = Arc::new(());
        #[derive(Debug)]
        struct Counted(#[expect(dead_code, reason = "held for its count")] Arc<()>);
        impl std::fmt::Display for Counted {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("counted")
            }
        }
        impl StdError for Counted {}
        for _ in 0..50 {
            let mut failure = Failure::from_error(Error::from(Counted(alive.clone())), "load", None);
            for _ in 0..1000 {
                failure = failure.through("step");
            }
            let start = Barrier::new(2);
            thread::scope(|s| {
                for mine in [failure.clone(), failure] {
                    let start = &start;
                    s.spawn(move || {
                        start.wait();
                        drop(mine);
                    });
                }
            });
            assert_eq!(Arc::strong_count(&alive), 1);
        }
    }

    #[test]
    fn its_location_is_that_of_the_panic_however_far_it_travels() {
        let there = SourceLocation::from(Location::caller());
        let failure = Failure::from_panic(Box::new("oh"), "load", Some(there.clone()));
        assert_eq!(failure.to_string(), format!("request `load` panicked at {there}"));
        let elsewhere = SourceLocation::copied(Location::caller());
        assert_ne!(there, elsewhere);
        let second = Failure::from_error(WaitError::from(failure).into(), "page", Some(elsewhere));
        assert_eq!(second.location(), Some(&there));
        assert_eq!(there.file(), file!());
        assert_eq!(load_failed().location(), None);
    }
}

mod payloads {
    use super::*;

    #[test]
    fn text_gives_its_message_and_all_else_says_that_it_is_none() {
        let of = |payload: Box<dyn Any + Send>| {
            Failure::from_panic(payload, "load", None).panic_message().expect("a panic").to_owned()
        };
        assert_eq!(of(Box::new("static")), "static");
        assert_eq!(of(Box::new(String::from("owned"))), "owned");
        assert_eq!(of(Box::new(7_u32)), "(non-string payload)");
        let failure = panicked("oh");
        assert!(failure.is_panic());
        assert_eq!(failure.error().to_string(), "oh");
        assert_eq!(format!("{failure:#}"), "request `load` panicked: oh");
    }

    #[test]
    fn it_is_taken_once_whoever_asks_and_the_message_stays() {
        const THREADS: usize = 4;
        for _ in 0..100 {
            let failure = panicked(String::from("oh"));
            let start = Barrier::new(THREADS);
            let taken: usize = thread::scope(|s| {
                let (start, failure) = (&start, &failure);
                let ask = |n: usize| {
                    let mine = failure.through(format!("waiter {n}"));
                    s.spawn(move || {
                        start.wait();
                        let mine_now = mine.take_panic_payload();
                        assert_eq!(mine.panic_message(), Some("oh"));
                        mine_now.map_or(0, |p| usize::from(*p.downcast::<String>().unwrap() == "oh"))
                    })
                };
                let threads: Vec<_> = (0..THREADS).map(ask).collect();
                threads.into_iter().map(|t| t.join().unwrap()).sum()
            });
            assert_eq!(taken, 1);
            assert!(failure.panic_payload::<String>().is_none());
        }
    }

    #[test]
    fn one_that_was_lent_cannot_be_taken_from_under_the_borrower() {
        let failure = panicked(String::from("oh"));
        assert_eq!(failure.panic_payload::<u32>(), None);
        let lent = failure.panic_payload::<String>().expect("there");
        assert!(failure.clone().take_panic_payload().is_none());
        assert!(std::ptr::eq(lent, failure.panic_payload::<String>().expect("lent again")));
        assert_eq!(failure.panic_payload::<u32>(), None);
        assert_eq!(lent, "oh");
    }

    #[test]
    fn asking_for_a_wrong_type_leaves_it_to_be_taken() {
        let failure = panicked(7_u32);
        assert_eq!(failure.panic_payload::<String>(), None);
        assert_eq!(failure.take_panic_payload().unwrap().downcast_ref(), Some(&7_u32));
    }

    #[test]
    fn one_that_is_only_send_can_be_taken() {
        let failure = panicked(Cell::new(7_u32));
        let taken = failure.take_panic_payload().unwrap();
        assert_eq!(taken.downcast_ref::<Cell<u32>>().unwrap().get(), 7);
    }

    struct Grenade;
    impl Drop for Grenade {
        fn drop(&mut self) {
            panic_any(Splinter);
        }
    }
    struct Splinter;
    impl Drop for Splinter {
        fn drop(&mut self) {
            panic!("dropped, too");
        }
    }

    #[test]
    fn a_destructor_that_panics_is_contained_even_if_it_throws_the_like() {
        for lend in [false, true] {
            let failure = panicked(Grenade);
            if lend {
                assert!(failure.panic_payload::<Grenade>().is_some());
            }
            let mut dropped = Ok(());
            let (calls, _) = hook_during(|| dropped = catch_unwind(AssertUnwindSafe(|| drop(failure))));
            assert!(dropped.is_ok());
            assert_eq!(calls, 2, "the destructor ran, and what it threw was dropped in turn");
        }
    }

    #[test]
    fn it_is_dropped_with_the_last_failure() {
        let count = Arc::new(());
        let failure = panicked(count.clone());
        let other = failure.through("page");
        drop(failure);
        assert_eq!(Arc::strong_count(&count), 2);
        drop(other);
        assert_eq!(Arc::strong_count(&count), 1);
    }
}

mod unwinding {
    use super::*;

    #[test]
    fn in_a_request_an_error_unwinds_past_every_hook_and_arrives_typed() {
        let mut caught = None;
        let (calls, _) = hook_during(|| {
            caught = Some(catch(|| unwind_with(WaitError::Cancelled.into(), true)));
        });
        assert_eq!(calls, 0);
        let error: Error = caught.unwrap().map(|never: ()| never).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(WaitError::Cancelled)));
        assert!(error.is_cancelled());
    }

    #[test]
    fn in_a_foreign_thread_an_error_is_an_ordinary_panic() {
        let mut payload = None;
        let (calls, _) = hook_during(|| {
            let failed: Result<(), _> = Err(WaitError::Failed(load_failed()));
            payload = catch_unwind(AssertUnwindSafe(|| catch(|| failed.or_unwind()))).err();
        });
        assert_eq!(calls, 1);
        let text = payload.expect("passes through catch").downcast::<String>().expect("text");
        assert_eq!(*text, "request `load` failed: no such file");
    }

    #[test]
    fn the_panic_is_located_where_or_unwind_was_called() {
        let failed: Result<(), _> = Err(not_found());
        let mut wanted = 0;
        let (_, line) = hook_during(|| {
            _ = catch_unwind(AssertUnwindSafe(|| {
                wanted = line!() + 1;
                failed.or_unwind()
            }));
        });
        assert_eq!(line, wanted);
    }

    #[test]
    fn or_unwind_takes_every_result_whose_error_question_mark_would_take() {
        fn takes<R: OrUnwind<Value = u8>>(result: R) -> u8 {
            result.or_unwind()
        }
        assert_eq!(takes(Ok::<u8, WaitError>(1)), 1);
        assert_eq!(takes(Ok::<u8, TimeoutError>(2)), 2);
        assert_eq!(takes(Ok::<u8, io::Error>(3)), 3);
        assert_eq!(takes(Ok::<u8, Error>(4)), 4);
        assert_eq!(takes(Ok::<u8, RenderError>(5)), 5);
    }

    #[test]
    fn catch_lets_an_ordinary_panic_through_unchanged_and_seen_once() {
        let mut payload = None;
        let (calls, _) = hook_during(|| {
            payload = catch_unwind(AssertUnwindSafe(|| catch(|| panic_any(7_u32)))).map(drop).err();
        });
        assert_eq!(calls, 1);
        assert_eq!(payload.unwrap().downcast_ref(), Some(&7_u32));
        assert_eq!(catch(|| 7).unwrap(), 7);
    }

    #[test]
    fn a_payload_is_an_error_only_if_we_sent_it() {
        let ours = catch_unwind(|| unwind_with(Error::other("x"), true)).map(|never: ()| never).unwrap_err();
        assert_eq!(payload_into_error(ours).unwrap().to_string(), "x");
        let theirs = catch_unwind(|| resume_unwind(Box::new("oh"))).map(|never: ()| never).unwrap_err();
        assert_eq!(payload_into_error(theirs).unwrap_err().downcast_ref(), Some(&"oh"));
    }

    #[test]
    fn an_error_that_unwound_fails_a_request_as_if_returned() {
        let load = load_failed();
        let unwound = Unwound(WaitError::from(load.clone()).into());
        let failure = Failure::from_panic(Box::new(unwound), "page", None);
        assert!(!failure.is_panic());
        assert!(failure.same_origin(&load));
        assert_eq!(failure.path().collect::<Vec<_>>(), ["load", "page"]);
    }
}

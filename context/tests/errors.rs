//! The promises of `forebear_context::error`.

use std::any::Any;
use std::error::Error as StdError;
use std::io;

use forebear_context::error::internal::Unwound;
use forebear_context::error::{
    CancelReason, Cancelled, Cycle, Error, Failure, SourceLocation, StackError, TimeoutError, WaitError,
};

/// A user's error, as most are written.
#[derive(Debug, thiserror::Error)]
enum RenderError {
    #[error("no layer {0}")]
    NoLayer(usize),
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error(transparent)]
    Stopped(#[from] Cancelled),
    #[error("while loading")]
    Load(#[source] WaitError),
    #[error(transparent)]
    Any(#[from] Error),
    #[error(transparent)]
    Outer(Box<RenderError>),
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

mod types {
    use super::*;

    #[test]
    fn every_error_is_send_sync_and_static() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
        check::<WaitError>();
        check::<TimeoutError>();
        check::<Cancelled>();
        check::<CancelReason>();
        check::<Failure>();
        check::<Cycle>();
        check::<StackError>();
        check::<SourceLocation>();
    }

    #[test]
    fn what_is_handed_out_is_a_std_error_that_can_be_kept_across_unwinds() {
        fn check<T: StdError + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
        check::<WaitError>();
        check::<TimeoutError>();
        check::<Cancelled>();
        check::<Failure>();
        check::<StackError>();
    }

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn a_wait_error_has_16_bytes_and_an_error_one_pointer() {
        assert_eq!(size_of::<WaitError>(), 16);
        assert_eq!(size_of::<Result<&u64, WaitError>>(), 16);
        assert_eq!(size_of::<Error>(), 8);
        assert_eq!(size_of::<Result<(), Error>>(), 8);
        assert_eq!(size_of::<Cancelled>(), 0);
    }

    #[test]
    fn everything_implements_debug_without_an_empty_text() {
        let all: [&dyn std::fmt::Debug; 8] = [
            &Error::from(Cancelled::new()),
            &WaitError::Failed(load_failed()),
            &TimeoutError::TimedOut,
            &Cancelled::new(),
            &panicked("oh"),
            &Cycle::new(["a"]),
            &StackError::too_large(2, 1),
            &Unwound(Error::other("x")),
        ];
        for one in all {
            assert!(!format!("{one:?}").is_empty());
        }
        assert!(format!("{:?}", load_failed()).contains("NotFound"));
        assert!(format!("{:?}", panicked("oh")).contains("oh"));
    }
}

mod cancellation {
    use super::*;

    #[test]
    fn an_error_that_means_a_cancellation_has_cancelled_for_its_source() {
        for error in [&WaitError::Cancelled as &dyn StdError, &TimeoutError::Cancelled] {
            assert!(error.source().expect("a source").is::<Cancelled>(), "{error:?}");
        }
        for error in [&WaitError::TimedOut as &dyn StdError, &TimeoutError::TimedOut, &WaitError::Shared] {
            assert!(error.source().is_none(), "{error:?}");
        }
    }

    #[test]
    fn is_cancelled_sees_a_cancellation_itself() {
        assert!(Error::from(Cancelled::new()).is_cancelled());
        assert!(Error::from(WaitError::Cancelled).is_cancelled());
        assert!(Error::from(TimeoutError::Cancelled).is_cancelled());
    }

    #[test]
    fn is_cancelled_is_false_for_all_else() {
        assert!(!Error::from(not_found()).is_cancelled());
        assert!(!Error::other("cancelled").is_cancelled());
        assert!(!Error::from(WaitError::TargetCancelled(CancelReason::Asked)).is_cancelled());
        assert!(!Error::from(WaitError::TimedOut).is_cancelled());
        assert!(!Error::from(WaitError::ShutDown).is_cancelled());
        assert!(!Error::from(RenderError::NoLayer(1)).is_cancelled());
    }

    /// A bare `Cancelled` is the hard case: wrappers that forward to its source skip the thing itself.
    #[test]
    fn is_cancelled_sees_through_every_wrapper() {
        type Boxed = Box<dyn StdError + Send + Sync>;
        fn check(what: &str, make: impl Fn(Boxed) -> Error) {
            for inner in
                [Boxed::from(Cancelled::new()), WaitError::Cancelled.into(), TimeoutError::Cancelled.into()]
            {
                let name = format!("{inner:?} in {what}");
                let error = make(inner);
                assert!(error.is_cancelled(), "{name}");
                assert!(error.downcast_ref::<Cancelled>().is_some(), "{name}");
            }
        }
        check("a box", Error::other);
        check("io::Error::other", |e| Error::from(io::Error::other(e)));
        check("two of these", |e| Error::from(io::Error::other(io::Error::other(e))));
        check("anyhow", |e| Error::other(anyhow::Error::from_boxed(e)));
        check("anyhow with context", |e| Error::other(anyhow::Error::from_boxed(e).context("while drawing")));
        check("our own error in thiserror", |e| Error::from(RenderError::Any(Error::other(e))));
        check("a failure", |e| Error::from(Failure::from_error(Error::other(e), "load", None)));
    }

    #[test]
    fn is_cancelled_sees_through_typed_wrappers() {
        let bare = || RenderError::Stopped(Cancelled::new());
        assert!(Error::from(bare()).is_cancelled());
        assert!(Error::from(RenderError::Outer(Box::new(bare()))).is_cancelled());
        assert!(Error::other(anyhow::Error::new(bare())).is_cancelled());
        assert!(Error::other(anyhow::Error::new(Cancelled::new())).is_cancelled());
        assert!(Error::from(io::Error::other(RenderError::Outer(Box::new(bare())))).is_cancelled());
        assert!(Error::from(RenderError::from(WaitError::Cancelled)).is_cancelled());
        assert!(Error::from(RenderError::Load(WaitError::Cancelled)).is_cancelled());
    }

    #[test]
    fn a_chain_ends_at_cancelled_and_shows_it_once() {
        let chain = texts(Error::from(Cancelled::new()).chain());
        assert_eq!(chain, ["the request was cancelled"]);
        let error = Error::from(WaitError::Cancelled);
        assert_eq!(texts(error.chain()), ["the wait was cancelled", "the request was cancelled"]);
        let hidden = Error::from(RenderError::Stopped(Cancelled::new()));
        assert!(hidden.chain().last().expect("a last link").is::<Cancelled>());
    }

    #[test]
    fn a_wait_error_is_cancelled_only_if_it_was_you() {
        assert!(WaitError::Cancelled.is_cancelled());
        assert!(!WaitError::TargetCancelled(CancelReason::Parent).is_cancelled());
        let of_another = Failure::from_error(Error::from(Cancelled::new()), "load", None);
        assert!(!WaitError::Failed(of_another).is_cancelled());
    }

    #[test]
    fn every_reason_has_a_text_of_its_own() {
        use CancelReason::*;
        let all = [
            Asked,
            Aborted,
            Parent,
            ParentFailed,
            SiblingFailed,
            ScopeUnwound,
            PoolCancelled,
            Deadline,
            Expired,
            Stopped,
            Shutdown,
            ThreadExited,
            Other(1),
            Other(2),
        ];
        let texts: std::collections::HashSet<_> = all.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), all.len());
    }
}

mod conversions {
    use super::*;

    #[test]
    fn question_mark_takes_every_error_in() {
        fn io() -> forebear_context::error::Result<()> {
            Err(not_found())?
        }
        fn wait() -> forebear_context::error::Result<()> {
            Err(WaitError::TimedOut)?
        }
        fn user() -> forebear_context::error::Result<()> {
            Err(RenderError::NoLayer(3))?
        }
        assert_eq!(io().unwrap_err().downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::NotFound);
        assert!(matches!(wait().unwrap_err().downcast_ref(), Some(WaitError::TimedOut)));
        assert!(matches!(user().unwrap_err().downcast_ref(), Some(RenderError::NoLayer(3))));
    }

    #[test]
    fn question_mark_takes_it_out_into_boxes_and_anyhow() {
        fn shared() -> Result<(), Box<dyn StdError + Send + Sync>> {
            Err(Error::from(not_found()))?
        }
        fn plain() -> Result<(), Box<dyn StdError>> {
            Err(Error::from(not_found()))?
        }
        fn waiting() -> anyhow::Result<()> {
            Err(WaitError::Failed(load_failed()))?
        }
        fn through_a_box() -> anyhow::Result<()> {
            Err(anyhow::Error::from_boxed(Error::from(not_found()).into()))
        }
        // The error itself comes out, not a box around it.
        assert!(shared().unwrap_err().is::<io::Error>());
        assert!(plain().unwrap_err().is::<io::Error>());
        assert!(waiting().unwrap_err().downcast_ref::<WaitError>().is_some_and(|e| e.failure().is_some()));
        let boxed = through_a_box().unwrap_err().downcast::<Box<dyn StdError + Send + Sync>>();
        assert!(boxed.unwrap().is::<io::Error>());
    }

    #[test]
    fn question_mark_takes_a_wait_into_a_users_enum() {
        fn layer(n: usize) -> Result<u8, RenderError> {
            Err(WaitError::Failed(load_failed()))?;
            Err(RenderError::NoLayer(n))
        }
        let error = layer(1).unwrap_err();
        assert!(matches!(&error, RenderError::Wait(WaitError::Failed(f)) if f.request() == "load"));
        assert!(Error::from(error).downcast_ref::<io::Error>().is_some());
    }

    #[test]
    fn other_takes_text_boxes_and_anyhow() {
        assert_eq!(Error::other("text").to_string(), "text");
        assert_eq!(Error::other(String::from("owned")).to_string(), "owned");
        let boxed: Box<dyn StdError + Send + Sync> = Box::new(not_found());
        assert!(Error::other(boxed).downcast_ref::<io::Error>().is_some());
        let chained = anyhow::Error::new(not_found()).context("while loading");
        let error = Error::other(chained);
        assert_eq!(error.to_string(), "while loading");
        assert!(error.downcast_ref::<io::Error>().is_some());
    }

    #[test]
    fn smaller_errors_become_wait_errors() {
        assert!(matches!(Cancelled::new().into(), WaitError::Cancelled));
        assert!(matches!(TimeoutError::Cancelled.into(), WaitError::Cancelled));
        assert!(matches!(TimeoutError::TimedOut.into(), WaitError::TimedOut));
        assert!(matches!(TimeoutError::from(Cancelled::new()), TimeoutError::Cancelled));
        assert!(matches!(load_failed().into(), WaitError::Failed(f) if f.request() == "load"));
        assert!(matches!(Cycle::new(["a"]).into(), WaitError::CircularWait(_)));
    }

    #[test]
    fn downcast_gives_the_error_itself_or_the_same_back() {
        let error = Error::from(RenderError::Load(WaitError::Failed(load_failed())));
        let error = error.downcast::<io::Error>().expect_err("a cause further down is only lent");
        assert!(matches!(error.downcast::<RenderError>(), Ok(RenderError::Load(_))));
    }

    #[test]
    fn it_dereferences_to_the_error_inside() {
        let error = Error::from(RenderError::Load(WaitError::TimedOut));
        let inside: &(dyn StdError + Send + Sync) = &*error;
        assert!(inside.is::<RenderError>());
        assert_eq!(error.source().unwrap().to_string(), "the wait timed out");
    }
}

mod texts {
    use super::*;

    #[test]
    fn debug_prints_the_chain_a_cause_a_line() {
        let error = Error::from(RenderError::Load(WaitError::Failed(load_failed())));
        let wanted = "while loading\n  caused by: request `load` failed\n  caused by: no such file";
        assert_eq!(format!("{error:?}"), wanted);
        assert!(format!("{error:#?}").starts_with("Load("));
    }

    #[test]
    fn the_alternate_display_prints_the_chain_in_one_line() {
        let error = Error::from(RenderError::Load(WaitError::Failed(load_failed())));
        assert_eq!(format!("{error}"), "while loading");
        assert_eq!(format!("{error:#}"), "while loading: request `load` failed: no such file");
        let failed = WaitError::Failed(load_failed());
        assert_eq!(format!("{failed:#}"), "request `load` failed: no such file");
        assert_eq!(format!("{:#}", Error::from(failed)), "request `load` failed: no such file");
    }

    #[test]
    fn the_alternate_display_of_a_failure_shows_who_has_passed_it_on() {
        let failure = load_failed().through("layer 0").through("page");
        let wanted = "request `load` failed: no such file (passed on by `layer 0`, `page`)";
        assert_eq!(format!("{failure:#}"), wanted);
        assert_eq!(format!("{failure}"), "request `load` failed");
        let waited = WaitError::Failed(failure);
        assert_eq!(format!("{waited:#}"), wanted);
        let error = Error::from(RenderError::Load(waited));
        assert_eq!(format!("{error:#}"), format!("while loading: {wanted}"));
    }

    #[test]
    fn of_a_long_path_the_beginning_and_the_end_are_shown() {
        let shown = |hops: usize| {
            let failure = (1..=hops).fold(load_failed(), |failure, n| failure.through(format!("hop {n}")));
            let text = format!("{failure:#}");
            text.split_once(" (passed on by ").unwrap().1.strip_suffix(')').unwrap().to_owned()
        };
        assert_eq!(shown(1), "`hop 1`");
        let all: Vec<String> = (1..=16).map(|n| format!("`hop {n}`")).collect();
        assert_eq!(shown(16), all.join(", "));
        let (first, last) = (all[..8].join(", "), |from: usize| {
            (from..from + 8).map(|n| format!("`hop {n}`")).collect::<Vec<_>>().join(", ")
        });
        assert_eq!(shown(17), format!("{first}, 1 more, {}", last(10)));
        assert_eq!(shown(100_000), format!("{first}, 99984 more, {}", last(99_993)));
    }

    #[test]
    fn a_cycle_is_found_through_the_chain() {
        let cycle = WaitError::CircularWait(Cycle::new(["a", "b"]));
        let told = Failure::from_error(Error::from(RenderError::Load(cycle)), "a", None);
        for found in
            [told.cycle(), WaitError::Failed(told.clone()).cycle(), Error::from(told.clone()).cycle()]
        {
            assert_eq!(found.unwrap().names().collect::<Vec<_>>(), ["a", "b", "a"]);
        }
        assert!(load_failed().cycle().is_none() && WaitError::TimedOut.cycle().is_none());
        let failed = WaitError::Failed(told.clone());
        let found = [told.downcast_ref::<Cycle>(), failed.downcast_ref()];
        assert!(found.iter().all(|found| found.is_some_and(|cycle| cycle.names().count() == 3)));
        assert!(Error::from(Cycle::new(["a"])).downcast_ref::<Cycle>().is_some());
        // The link that has the cycle says it; no link says it again.
        assert_eq!(told.chain().count(), 2);
    }

    #[test]
    fn a_path_is_cut_on_the_left_and_any_other_name_on_the_right() {
        let shown = |name: &str| {
            let text = Failure::from_error(Error::other("x"), name.to_owned(), None).to_string();
            text.strip_prefix("request `").unwrap().strip_suffix("` failed").unwrap().to_owned()
        };
        let path = format!("a_crate::{}function::{{{{closure}}}}", "one::".repeat(20));
        assert_eq!(shown(&path), format!("…{}function::{{{{closure}}}}", "one::".repeat(8)));
        let generic = format!("a::f<{}>::{{{{closure}}}}", "T".repeat(100));
        assert_eq!(shown(&generic), format!("…{}>::{{{{closure}}}}", "T".repeat(64 - 14)));
        assert_eq!(shown("a::b::{{closure}}"), "a::b::{{closure}}");
        assert_eq!(shown(&"x".repeat(70)), format!("{}…", "x".repeat(64)));
        let other = shown(&"é::".repeat(30));
        assert!(other.starts_with("…é::") && other.chars().count() <= 65, "not only ASCII: {other}");
    }

    #[test]
    fn failed_is_transparent_so_no_chain_shows_a_thing_twice() {
        let failed = WaitError::Failed(load_failed());
        assert_eq!(failed.to_string(), load_failed().to_string());
        assert_eq!(format!("{:#}", anyhow::Error::new(failed)), "request `load` failed: no such file");
    }

    #[test]
    fn a_name_is_shown_escaped_and_cut_and_given_out_in_full() {
        let name = format!("a\u{1b}[31m\n\u{202e}{}", "é".repeat(100));
        let failure = Failure::from_error(Error::other("x"), name.clone(), None);
        // 64 characters: `a`, escape, `[31m`, line feed, override, 56 of the hundred.
        let shown = format!("a\\u{{1b}}[31m\\n\\u{{202e}}{}…", "é".repeat(56));
        assert_eq!(failure.to_string(), format!("request `{shown}` failed"));
        assert_eq!(failure.request(), name);
        assert_eq!(failure.path().collect::<Vec<_>>(), [&*name]);
        assert_eq!(Cycle::new([name]).to_string(), format!("`{shown}` waits for itself"));
    }

    #[test]
    fn a_name_of_64_characters_is_not_cut() {
        let failure = Failure::from_error(Error::other("x"), "é".repeat(64), None);
        assert_eq!(failure.to_string(), format!("request `{}` failed", "é".repeat(64)));
    }

    #[test]
    fn a_cycle_goes_back_to_the_first() {
        let cycle = Cycle::new(["a", "b", "c"]);
        assert_eq!(cycle.names().collect::<Vec<_>>(), ["a", "b", "c", "a"]);
        assert_eq!(cycle.names().len(), 4);
        assert_eq!(cycle.to_string(), "`a` waits for `b`, which waits for `c`, which waits for `a`");
        let wait = WaitError::from(cycle.clone());
        assert_eq!(wait.to_string(), format!("circular wait: {cycle}"));
        assert_eq!(Cycle::new(["a"]).names().collect::<Vec<_>>(), ["a", "a"]);
        assert_eq!(Cycle::new([""; 0]).names().count(), 0);
        assert!(!Cycle::new([""; 0]).to_string().is_empty());
    }

    #[test]
    fn a_long_cycle_is_cut_where_it_is_shown() {
        let long = Cycle::new((0..100).map(|n| n.to_string()));
        assert_eq!(long.names().len(), 101);
        let text = long.to_string();
        assert!(text.contains("`15`, which waits for 84 more") && !text.contains("`16`"), "{text}");
    }

    #[test]
    fn a_stack_error_names_the_numbers_and_the_remedy() {
        let remedy = "raise vm.max_map_count";
        let full = StackError::exhausted(31_000, 32_000, remedy);
        let text = full.to_string();
        assert!(text.contains("31000") && text.contains("32000") && text.ends_with(remedy), "{text}");
        assert_eq!(full.hint(), remedy);
        let large = StackError::too_large(1 << 40, 1 << 26);
        let text = large.to_string();
        assert!(
            text.contains("1099511627776") && text.contains("67108864") && text.ends_with(large.hint()),
            "{text}"
        );
    }
}

//! Errors: which one decides, and what is no error.

use forebear::{Error, Request};
use forebear_supervise::{Coordinator, EndOfInput, JoinError};

use crate::support::Watchdog;
use crate::{Broken, Unseen, Wrapped, broken};

#[test]
fn r06_the_first_error_is_kept_and_decides() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    for n in 1..=30 {
        coordinator.report(Broken(n)).unwrap();
    }
    let error = coordinator.join().unwrap_err();
    let JoinError::Failed { failure, also, .. } = &error else { panic!("{error}") };
    assert_eq!(failure.downcast_ref::<Broken>(), Some(&Broken(1)));
    assert_eq!(
        also.iter().map(|also| also.downcast_ref::<Broken>().unwrap().0).collect::<Vec<_>>(),
        (2..=17).collect::<Vec<_>>()
    );
}

#[test]
fn r07_an_error_after_a_plain_stop_is_no_failure_of_the_job_but_is_not_lost() {
    let _dog = Watchdog::new("");
    let unseen = Unseen::default();
    let coordinator = unseen.coordinator();
    coordinator.request_stop();
    coordinator.report(Broken(1)).unwrap();
    assert_eq!(unseen.count(), 1);
    coordinator.join().unwrap();
    assert!(coordinator.requested_error().is_none());

    let strict = Coordinator::builder().late_errors_count(true).build().unwrap();
    strict.request_stop();
    strict.report(Broken(2)).unwrap();
    assert_eq!(broken(strict.join()), 2);
}

#[test]
fn r08_a_join_returns_the_very_error_with_who_reported_it() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.spawn("reader", |_| Err(Wrapped(Broken(8)).into()));
    let error = coordinator.join().unwrap_err();
    let failure = error.failure().unwrap();
    assert_eq!((failure.request(), failure.error().is::<Wrapped>()), ("reader", true));
    assert_eq!(failure.downcast_ref::<Broken>(), Some(&Broken(8)), "and its causes");
    assert!(!failure.is_panic());
}

#[test]
fn r09_an_error_counts_the_same_by_whichever_way_it_is_reported() {
    let _dog = Watchdog::new("");
    type Way = fn(&Coordinator);
    let ways: [Way; 6] = [
        |c| c.report(Broken(9)).unwrap(),
        |c| c.report(Error::from(Broken(9))).unwrap(),
        |c| assert!(c.guard(|| Err::<(), _>(Broken(9).into())).is_none()),
        |c| drop(c.spawn("request", |_| Err(Broken(9).into()))),
        |c| c.spawn_thread("thread", |_| Err(Broken(9).into())).unwrap(),
        |c| c.enlist("member").report(Broken(9)).unwrap(),
    ];
    for way in ways {
        let coordinator = Coordinator::new();
        way(&coordinator);
        assert_eq!(broken(coordinator.join()), 9);
    }
}

#[test]
fn r11_an_end_of_input_is_a_plain_stop() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.spawn("reader", |_| Err(EndOfInput.into()));
    coordinator.spawn("waits", |me| Ok(me.wait_for_stop()?));
    coordinator.join().unwrap();
    assert!(coordinator.should_stop() && coordinator.requested_error().is_none());
}

#[test]
fn r12_the_kinds_of_clean_stops_are_replaced_and_may_be_none() {
    let _dog = Watchdog::new("");
    let own = || Coordinator::builder().clean_stop::<Broken>().build().unwrap();
    let coordinator = own();
    coordinator.report(Broken(1)).unwrap();
    coordinator.join().unwrap();
    let coordinator = own();
    coordinator.report(EndOfInput).unwrap();
    assert!(coordinator.join().unwrap_err().failure().unwrap().downcast_ref::<EndOfInput>().is_some());
    let coordinator = Coordinator::builder().no_clean_stops().build().unwrap();
    coordinator.report(EndOfInput).unwrap();
    assert!(coordinator.join().is_err());
    let two = Coordinator::builder().clean_stop::<Broken>().clean_stop_if(|f| f.is_panic()).build().unwrap();
    assert!(two.guard(|| -> Result<(), Error> { panic!("clean here") }).is_none());
    two.join().unwrap();
}

#[test]
fn r13_a_clean_kind_is_found_among_the_causes() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::builder().clean_stop::<Broken>().build().unwrap();
    coordinator.report(Wrapped(Broken(13))).unwrap();
    coordinator.join().unwrap();
}

#[test]
fn r14_a_guard_reports_an_error_answers_none_and_the_code_after_it_goes_on() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    assert_eq!(coordinator.guard(|| Ok(7)), Some(7));
    assert!(!coordinator.should_stop());
    assert_eq!(coordinator.guard(|| Err::<u32, _>(Broken(14).into())), None);
    assert!(coordinator.should_stop());
    assert_eq!(broken(coordinator.join()), 14);
}

#[test]
fn a_members_guard_reports_in_the_workers_name() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let me = coordinator.enlist("parser");
    assert_eq!(me.guard(|| Ok(7)), Some(7));
    assert_eq!(me.guard(|| -> Result<u32, Error> { panic!("twelve") }), None);
    assert!(me.should_stop());
    drop(me);
    assert_eq!(coordinator.join().unwrap_err().failure().unwrap().request(), "parser");
}

#[test]
fn r15_a_guard_reports_a_panic_and_what_unwinds_with_an_error() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    assert!(
        coordinator.guard(|| -> Result<(), Error> { std::panic::resume_unwind(Box::new("gone")) }).is_none()
    );
    let error = coordinator.join().unwrap_err();
    assert_eq!(error.failure().unwrap().panic_message(), Some("gone"));

    let coordinator = Coordinator::new();
    let guarded = coordinator.clone();
    let unwinds = Request::new(move || {
        use forebear::OrUnwind;
        guarded
            .guard(|| -> Result<(), Error> {
                Err::<(), _>(Broken(15)).or_unwind();
                Ok(())
            })
            .is_none()
    });
    assert!(unwinds.take().unwrap());
    assert_eq!(broken(coordinator.join()), 15);
}

#[test]
fn r08_a_registered_request_fails_by_the_name_that_it_was_registered_by() {
    let _dog = Watchdog::new("");
    type Way = fn() -> Request<()>;
    let ways: [Way; 4] = [
        || Request::try_new(|| Err(Wrapped(Broken(8)).into())),
        || Request::builder().name("its own").try_build(|| Err(Wrapped(Broken(8)).into())),
        // What one of its own requests has failed with keeps that one's name, and is passed on by the worker.
        || {
            let part = || Request::builder().name("part").try_spawn(|| Err::<(), _>(Broken(8).into()));
            Request::try_new(move || Ok(part().take()?))
        },
        || Request::new(|| std::panic::resume_unwind(Box::new(Broken(8)))),
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let coordinator = Coordinator::new();
        let request = way();
        coordinator.register("uploader", request.clone()).unwrap();
        let error = coordinator.join().unwrap_err();
        let failure = error.failure().unwrap();
        let path: Vec<_> = failure.path().collect();
        assert_eq!(path, if n == 2 { vec!["part", "uploader"] } else { vec!["uploader"] }, "way {n}");
        assert!(format!("{failure:#}").contains("`uploader`"), "{failure:#}");
        let forebear::WaitError::Failed(its) = request.wait().unwrap_err() else { panic!("way {n}") };
        assert!(failure.same_origin(&its), "way {n}");
        assert_eq!(failure.is_panic(), n == 3);
        let known = failure.downcast_ref::<Broken>().or_else(|| failure.panic_payload::<Broken>());
        assert_eq!(known, Some(&Broken(8)), "way {n}");
    }
}

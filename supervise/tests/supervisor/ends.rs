//! Where a session ends: what comes between two sessions, what outlives one, and what would wait for its own end.

use std::sync::{Arc, Mutex, mpsc};

use forebear::sync::Event;
use forebear::{CancelReason, Cancelled, Error, Failure, Request, Runtime, WaitError, check_cancelled};
use forebear_supervise::{
    Coordinator, JobCancelled, JoinError, SavedSections, Sections, Snapshot, State, SuperviseError,
    Supervisor,
};
use tempfile::TempDir;

use crate::support::{Watchdog, hold_thread_until, until};
use crate::{Broken, MS, Warnings, broken, count, counting, quiet, steps};

#[test]
fn a_stop_between_two_sessions_ends_the_next_one_and_a_stop_that_was_answered_does_not() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let coordinator = supervisor.coordinator();
    supervisor.run(|session| Ok(session.request_stop())).unwrap();
    let sessions = supervisor.run(|session| Ok((session.clone(), session.should_stop()))).unwrap();
    let (over, stopped) = sessions.expect("the stop of the first session is answered");
    assert!(!stopped);
    over.request_stop(); // of a session that is over: it concerns nobody
    assert_eq!(supervisor.run(|_| Ok("ran")).unwrap(), Some("ran"));
    coordinator.request_stop(); // as a signal does while the job waits to try again
    for _ in 0..2 {
        assert_eq!(supervisor.run(|_| -> Result<(), _> { panic!("it runs") }).unwrap(), None);
    }
    coordinator.clear_stop();
    assert_eq!(supervisor.run(|_| Ok("ran")).unwrap(), Some("ran"));
}

#[test]
fn an_error_that_no_join_has_answered_ends_the_next_start() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let coordinator = supervisor.coordinator();
    assert_eq!(supervisor.run(|_| Ok(1)).unwrap(), Some(1));
    assert!(coordinator.report(Broken(3)).is_err(), "nobody would learn of it: it comes back");
    assert_eq!(supervisor.run(|_| Ok(2)).unwrap(), Some(2));
    coordinator.clear_stop();
    coordinator.spawn("disk monitor", |_| Err(Broken(4).into())).wait().unwrap_err();
    let error = supervisor.run(|_| -> Result<(), _> { panic!("it runs") }).unwrap_err();
    assert_eq!((broken(&error), error.failure().unwrap().request()), (4, "disk monitor"));
    coordinator.clear_stop();
    assert_eq!(supervisor.run(|_| Ok(3)).unwrap(), Some(3));
}

#[test]
fn a_stop_ends_a_loop_of_steps_also_in_a_thread() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let (tell, running) = mpsc::channel();
    let ended = supervisor.run(move |session| {
        let own = session.clone();
        session.coordinator().spawn_thread("solver", move |_| {
            loop {
                count(&own)?;
                let _ = tell.send(());
            }
        })?;
        running.recv()?;
        session.request_stop();
        Ok(())
    });
    ended.unwrap();
    assert_eq!(steps(dir.path())[0], supervisor.steps().get(), "all steps are saved");
    // The same on the thread that has started the session.
    let session = supervisor.start().unwrap();
    count(&session).unwrap();
    session.request_stop();
    assert!(count(&session).is_err());
    supervisor.stop().unwrap();
}

#[test]
fn a_handle_that_outlives_its_session_makes_no_step_and_saves_nothing() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let kept = supervisor.start().unwrap();
    count(&kept).unwrap();
    supervisor.stop().unwrap();
    for later in [&counting(dir.path()).build(), &supervisor] {
        later.run(count).unwrap();
        let saved = steps(dir.path());
        assert!(!kept.is_chief() && kept.should_stop() && count(&kept).is_err());
        assert!(matches!(kept.save_now(), Err(SuperviseError::NotChief)));
        assert!(kept.report(Broken(1)).is_err());
        assert_eq!(steps(dir.path()), saved);
    }
}

#[test]
fn a_save_that_a_straggler_has_begun_keeps_the_next_chief_away_until_it_is_over() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (begun, go) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let held = Held { begun: begun.clone(), go: go.clone() };
    let supervisor = quiet(Supervisor::builder(held).dir(dir.path())).services(false);
    let supervisor = supervisor.stop_grace(MS).build();
    let session = supervisor.start().unwrap();
    let saves = session.clone();
    let (saver, saved) = (session.coordinator().clone(), Arc::new(Mutex::new(None)));
    let answer = saved.clone();
    saver.spawn("saver", move |_| {
        *answer.lock().unwrap() = Some(saves.save_now().is_ok());
        drop(saves);
        Ok(())
    });
    begun.wait().unwrap();
    drop(session);
    assert_eq!(supervisor.stop().unwrap_err().stragglers()[0].name, "saver");
    let another = || counting(dir.path()).build().run(|session| Ok(session.steps().get()));
    assert!(matches!(another(), Err(SuperviseError::SecondChief { .. })), "the save may still write");
    go.set();
    until(|| saved.lock().unwrap().is_some());
    assert_eq!(*saved.lock().unwrap(), Some(true), "what was begun is written");
    until(|| !matches!(another(), Err(SuperviseError::SecondChief { .. })));
}

#[test]
fn a_supervisor_that_is_dropped_releases_the_lock_though_a_handle_lives_and_that_saves_nothing() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let failures = Arc::new(Mutex::new(Vec::new()));
    for services in [false, true] {
        let tell = failures.clone();
        let coordinator = Coordinator::builder().on_unhandled_failure(move |failure| {
            tell.lock().unwrap().push(failure.to_string());
        });
        let coordinator = coordinator.build().unwrap();
        let supervisor = counting(dir.path()).coordinator(&coordinator).services(services).build();
        let kept = supervisor.start().unwrap();
        count(&kept).unwrap();
        let saved = kept.save_now().unwrap().step;
        drop(supervisor);
        assert!(!kept.is_chief() && kept.should_stop() && count(&kept).is_err());
        assert!(matches!(kept.save_now(), Err(SuperviseError::NotChief)));
        let next = counting(dir.path()).build();
        let restored = || next.run(|session| Ok(session.restored_from().map(|file| file.step)));
        if services {
            // A turn of theirs may have begun.
            until(|| match restored() {
                Err(SuperviseError::SecondChief { .. }) => false,
                restored => restored.unwrap().unwrap() == Some(saved),
            });
        } else {
            assert_eq!(restored().unwrap().unwrap(), Some(saved));
        }
        assert!(matches!(kept.save_now(), Err(SuperviseError::NotChief)));
        assert!(kept.report(Broken(1)).is_err());
        coordinator.join().unwrap();
    }
    assert_eq!(
        *failures.lock().unwrap(),
        Vec::<String>::new(),
        "that its session is over is no failure of a service"
    );
}

#[test]
fn a_save_that_has_begun_keeps_the_lock_of_a_supervisor_that_is_dropped_until_it_is_over() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (begun, go) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let held = Held { begun: begun.clone(), go: go.clone() };
    let supervisor = quiet(Supervisor::builder(held).dir(dir.path())).services(false).build();
    let session = supervisor.start().unwrap();
    let saves = session.clone();
    let saver = forebear::spawn(move || saves.save_now().is_ok());
    begun.wait().unwrap();
    drop(supervisor); // does not wait
    let another = || counting(dir.path()).build().run(|session| Ok(session.steps().get()));
    assert!(matches!(another(), Err(SuperviseError::SecondChief { .. })), "the save may still write");
    go.set();
    assert!(saver.take().unwrap(), "what was begun is written");
    assert!(!matches!(another(), Err(SuperviseError::SecondChief { .. })), "though a handle lives");
    assert!(matches!(session.save_now(), Err(SuperviseError::NotChief)));
}

/// A state whose save waits.
struct Held {
    begun: Arc<Event>,
    go: Arc<Event>,
}

impl State for Held {
    fn schema(&self) -> u64 {
        1
    }

    fn save(&self, _: &mut Sections<'_>) -> Result<(), Error> {
        self.begun.set();
        Ok(self.go.wait()?)
    }

    fn restore(&self, _: &SavedSections) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn what_would_wait_for_the_job_is_refused_inside_it() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let is_refused =
        |refused: &JoinError| matches!(refused, JoinError::OwnWorker { worker, .. } if worker == "main");
    let value = supervisor.run(|session| {
        let own = session.clone();
        let part = session.coordinator().spawn("part", move |_| count(&own));
        assert!(session.coordinator().join().is_err_and(|refused| is_refused(&refused)));
        assert!(matches!(supervisor.stop(), Err(SuperviseError::Job(refused)) if is_refused(&refused)));
        assert!(matches!(supervisor.run(|_| Ok(())), Err(SuperviseError::AlreadyRunning)));
        part.wait()?;
        count(session)?; // the session goes on
        Ok(session.steps().get())
    });
    assert_eq!(value.unwrap(), Some(2));
}

#[test]
fn a_job_may_change_the_directory_of_its_process() {
    // In a process of its own: the directory is the process's.
    let dir = TempDir::new().unwrap();
    if std::env::var_os("FOREBEAR_CHANGES_DIRECTORY").is_none() {
        let test = "ends::a_job_may_change_the_directory_of_its_process";
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env("FOREBEAR_CHANGES_DIRECTORY", dir.path())
            .current_dir(dir.path())
            .status();
        assert!(ended.unwrap().success());
        return;
    }
    let _dog = Watchdog::new("");
    let start = std::env::current_dir().unwrap();
    counting(std::path::Path::new("job"))
        .build()
        .run(|session| {
            std::fs::create_dir("elsewhere")?;
            std::env::set_current_dir("elsewhere")?;
            count(session)
        })
        .unwrap();
    assert_eq!(steps(&start.join("job"))[0], 1);
}

#[test]
fn the_error_of_a_job_that_was_cancelled_holds_the_reason_and_what_the_block_has_returned() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let error = supervisor.run(|_| -> Result<(), _> {
        Request::current().unwrap().abort(CancelReason::Other(7));
        Ok(check_cancelled()?)
    });
    let error = error.unwrap_err();
    let failure = error.failure().unwrap();
    assert_eq!(failure.downcast_ref::<JobCancelled>().unwrap().reason, CancelReason::Other(7));
    assert!(failure.chain().any(|link| link.is::<Cancelled>()), "what the block has returned");
    assert!(format!("{failure:#}").starts_with("request `main` failed: the job was cancelled: reason 7: "));
    // A failure that the block passes on keeps its name.
    let error = supervisor.run(|_| -> Result<(), _> {
        Request::current().unwrap().abort(CancelReason::Deadline);
        let inner = WaitError::Failed(Failure::from_error(Cancelled::new().into(), "inner", None));
        Err(inner.into())
    });
    let error = error.unwrap_err();
    let text = format!("{:#}", error.failure().unwrap());
    let wanted = "request `main` failed: the job was cancelled: its deadline passed: request `inner` failed: the request was cancelled";
    assert!(text.starts_with(wanted), "{text}");
}

#[test]
fn the_alternate_display_of_the_errors_writes_the_causes_and_who_has_passed_the_failure_on() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let error = supervisor.run(|_| -> Result<(), _> {
        let read = Request::builder().name("read").try_spawn(|| Err::<(), _>(Error::other("no disk")));
        Ok(read.take()?)
    });
    let error = error.unwrap_err();
    let wanted = "request `read` failed: no disk (passed on by `main`)";
    assert_eq!(format!("{error:#}"), format!("the job has not ended well: {wanted}"));
    let SuperviseError::Job(error) = error else { panic!("{error}") };
    assert_eq!(format!("{error:#}"), wanted);
    assert_eq!(error.to_string(), "request `read` failed", "only the alternate form");
    let cancelled = [format!("{:#}", JoinError::Cancelled), format!("{:#}", SuperviseError::Cancelled)];
    assert!(cancelled.iter().all(|text| text.ends_with(": the request was cancelled")), "{cancelled:?}");
}

#[test]
fn a_stop_or_a_failure_during_init_ends_the_job_before_it_begins() {
    let _dog = Watchdog::new("");
    for (fails, local) in [(false, false), (true, false), (false, true), (true, true)] {
        let dir = TempDir::new().unwrap();
        let coordinator = forebear_supervise::Coordinator::new();
        let inside = coordinator.clone();
        let init = move |_: &forebear_supervise::Snapshot<u64>| {
            if fails {
                inside.report(Broken(5))?;
            } else {
                inside.request_stop();
            }
            Ok(())
        };
        let builder = counting(dir.path()).coordinator(&coordinator);
        let supervisor = if local { builder.local_init(init) } else { builder.init(init) }.build();
        for starts in [false, true] {
            coordinator.clear_stop();
            let ended = if starts {
                supervisor.start().map(|_| panic!("a session begins"))
            } else {
                supervisor.run(|_| -> Result<(), _> { panic!("it runs") })
            };
            match ended {
                Ok(ended) => assert!(!fails && !starts && ended.is_none()),
                Err(SuperviseError::Stopped) => assert!(!fails && starts),
                Err(error) => assert_eq!((fails, broken(&error)), (true, 5)),
            }
        }
        assert!(steps(dir.path()).is_empty(), "nothing is saved of a job that has not begun");
        assert!(supervisor.session().is_none());
    }
}

#[test]
fn a_run_whose_closure_cannot_end_in_the_grace_warns_and_names_what_keeps_its_thread() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
    let warnings = Warnings::default();
    let supervisor = quiet(Supervisor::builder(Snapshot::new(1, 0_u64))).coordinator(&coordinator);
    let supervisor = supervisor.on_warning(warnings.hook()).stop_grace(MS * 20).build();
    // What spins ends only for the warning.
    let told = warnings.clone();
    let stop = coordinator.clone();
    let ended = supervisor.run(move |session| {
        session.coordinator().spawn("stuck", move |_| {
            stop.request_stop();
            hold_thread_until(|| told.have("has not returned"));
            Ok(())
        });
        session.wait_for_stop()?;
        Ok(7)
    });
    assert_eq!(ended.unwrap(), Some(7), "it returns once its closure can");
    assert!(warnings.have("`run` has not returned 20ms after the stop"));
    assert!(warnings.have("the request `stuck` computes, or blocks its thread"));
}

#[test]
fn the_error_of_a_second_supervisor_says_if_this_process_is_the_chief() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let _session = supervisor.start().unwrap();
    let error = counting(dir.path()).build().start().map(drop).unwrap_err();
    assert!(error.to_string().contains("this process is the chief there"), "{error}");
    supervisor.stop().unwrap();
}

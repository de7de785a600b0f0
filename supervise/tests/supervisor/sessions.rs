//! A session from its beginning to its end, and what comes out of it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebear::channel::{self, RecvError};
use forebear::sync::Event;
use forebear::{CancelReason, Request, Runtime, spawn};
use forebear_supervise::{
    Chief, Coordinator, EndOfInput, Every, JoinOptions, Snapshot, SuperviseError, Supervisor,
};
use tempfile::TempDir;

use crate::support::{Come, Watchdog, kinds, until};
use crate::{Broken, LONG, MS, broken, count, counting, event_files, steps};

#[test]
fn r01_a_supervisor_is_a_coordinator_with_checkpoints_and_a_session() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    supervisor
        .run(|session| {
            session.coordinator().spawn("worker", |me| Ok(me.wait_for_stop()?));
            assert!(session.coordinator().workers().contains(&"worker".to_owned()));
            assert_eq!(session.checkpoints().unwrap().dir(), dir.path());
            Ok(())
        })
        .unwrap();
    assert!(supervisor.coordinator().joined());
}

#[test]
fn r02_a_session_is_initialised_or_restored_and_ends_with_its_services_and_its_writer() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    for run in 0..2 {
        let supervisor = counting(dir.path()).init(|sum| Ok(sum.set(100))).build();
        let ended = supervisor.run(|session| {
            assert_eq!(session.restored_from().is_some(), run > 0);
            assert_eq!(session.state().get(), 100 + run * 10);
            for _ in 0..10 {
                count(session)?;
            }
            Ok("done")
        });
        assert_eq!(ended.unwrap(), Some("done"));
        assert!(supervisor.coordinator().workers().is_empty() && supervisor.session().is_none());
    }
    assert_eq!(event_files(dir.path()).len(), 2);
    assert_eq!(steps(dir.path())[0], 20);
}

#[test]
fn r03_after_the_block_a_stop_has_been_requested_also_after_success() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let session = supervisor.run(|session| Ok(session.clone())).unwrap().unwrap();
    assert!(session.should_stop() && supervisor.coordinator().should_stop());
    assert!(session.check_stop().is_err() && session.wait_for_stop().is_ok());
}

#[test]
fn r04_an_error_in_the_block_stops_the_services_and_comes_out_of_it() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let error = supervisor.run(|session| -> Result<(), _> {
        session.coordinator().spawn("service", |me| Ok(me.wait_for_stop()?));
        count(session)?;
        Err(Broken(4).into())
    });
    let error = error.unwrap_err();
    assert_eq!((broken(&error), error.failure().unwrap().request()), (4, "main"));
    assert!(supervisor.coordinator().workers().is_empty());
    // Not a clean stop: what is saved is what was saved before.
    assert_eq!(steps(dir.path()), [0]);
    let error = supervisor.run(|_| -> Result<(), _> { panic!("as a panic does") }).unwrap_err();
    assert!(error.failure().unwrap().is_panic());
}

#[test]
fn r05_an_error_of_a_service_stops_the_job_and_comes_out_of_it() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    // The block is woken where it waits.
    let error = supervisor.run(|session| {
        session.every("service", Every::BackToBack, || Err(Broken(5).into()));
        let stopped = Event::new().wait();
        assert!(stopped.is_err() && session.should_stop());
        Ok(stopped?)
    });
    assert_eq!(broken(&error.unwrap_err()), 5);
    // Also if the block ends well.
    let error = supervisor.run(|session| {
        session.every("service", Every::BackToBack, || Err(Broken(6).into()));
        Ok(session.wait_for_stop()?)
    });
    assert_eq!(broken(&error.unwrap_err()), 6);
}

#[test]
fn r06_an_end_of_input_ends_the_block_cleanly() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let ended = supervisor.run(|session| -> Result<(), _> {
        count(session)?;
        Err(EndOfInput.into())
    });
    assert_eq!(ended.unwrap(), None);
    assert_eq!(steps(dir.path())[0], 1, "saved, as at any clean stop");
}

/// One stage, then two.
#[test]
fn r07_an_input_that_ends_in_the_background_ends_the_job_cleanly() {
    let _dog = Watchdog::new("");
    for stages in 1..=2 {
        let dir = TempDir::new().unwrap();
        let supervisor = counting(dir.path()).build();
        let ended = supervisor.run(|session| {
            let (sender, mut receiver) = channel::bounded(2);
            session.coordinator().spawn("reader", move |_| {
                for n in 0..10_u32 {
                    sender.send(n).map_err(|_| forebear::Error::other("nobody reads"))?;
                }
                Ok(())
            });
            for _ in 1..stages {
                let (sender, next) = channel::bounded(2);
                let before = std::mem::replace(&mut receiver, next);
                session.coordinator().spawn("stage", move |_| {
                    while let Ok(n) = before.recv() {
                        sender.send(n).map_err(|_| forebear::Error::other("nobody reads"))?;
                    }
                    Ok(())
                });
            }
            loop {
                match receiver.recv() {
                    Ok(_) => count(session)?,
                    Err(RecvError::Cancelled) => return Err(Broken(7).into()),
                    Err(_) => return Err(EndOfInput.into()),
                }
            }
            #[expect(unreachable_code, reason = "it says what the block returns")]
            Ok(())
        });
        assert_eq!(ended.unwrap(), None);
        assert_eq!(supervisor.steps().get(), 10);
    }
}

#[test]
fn r08_an_error_of_the_block_is_not_hidden_by_what_it_causes() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let error = supervisor.run(|session| -> Result<(), _> {
        for n in 0..2 {
            let (sender, receiver) = channel::bounded(1);
            session.coordinator().spawn(format!("producer {n}"), move |_| {
                loop {
                    sender.send(n)?;
                }
            });
            // Until it is blocked, since nobody reads.
            until(|| receiver.len() == 1);
            std::mem::forget(receiver);
        }
        Err(Broken(8).into())
    });
    assert_eq!(broken(&error.unwrap_err()), 8);
}

/// What is closed here are the event file and the chief's place.
#[test]
fn r09_the_session_is_closed_also_if_the_stop_fails() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).services(false).stop_grace(MS).build();
    let member = Mutex::new(None);
    let error = supervisor.run(|session| {
        *member.lock().unwrap() = Some(session.coordinator().enlist("stays"));
        Ok(())
    });
    assert_eq!(error.unwrap_err().stragglers()[0].name, "stays");
    let file = &event_files(dir.path())[0];
    // The stop.
    assert!(crate::records::records(file).last().unwrap().ends_with(&[0x3a, 2, 8, 2]));
    // The place is free.
    counting(dir.path()).build().run(|_| Ok(())).unwrap();
}

#[test]
fn r10_after_a_stop_a_session_can_be_started_again_in_the_chief_and_in_others() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let chief = counting(dir.path()).build();
    let other = counting(dir.path()).chief(Chief::No).build();
    for run in 1..=3 {
        let session = chief.start().unwrap();
        assert!(!session.should_stop() && session.event_file().is_some());
        count(&session).unwrap();
        assert!(matches!(chief.start(), Err(SuperviseError::AlreadyRunning)));
        let joins = other.start().unwrap();
        assert!(!joins.should_stop() && !joins.is_chief());
        other.stop().unwrap();
        assert!(!session.should_stop(), "the end of another process is not that of the chief");
        chief.stop().unwrap();
        assert_eq!(steps(dir.path())[0], run);
    }
    assert_eq!(event_files(dir.path()).len(), 3);
    chief.stop().unwrap(); // of nothing
}

#[test]
fn r41_services_of_ones_own_are_loopers_that_end_with_the_job() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let turns = Arc::new(AtomicU32::new(0));
    let supervisor = counting(dir.path()).build();
    let counter = turns.clone();
    supervisor
        .run(|session| {
            session.every("mine", Every::CatchUp(MS), move || {
                counter.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            until(|| turns.load(Ordering::Relaxed) >= 3);
            Ok(())
        })
        .unwrap();
    assert!(supervisor.coordinator().workers().is_empty());
}

#[test]
fn r42_a_stop_joins_more_workers_and_can_leave_stragglers_and_the_state_stays_usable() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let session = supervisor.start().unwrap();
    let (go, goes) = mpsc::channel::<()>();
    let ended = Arc::new(AtomicBool::new(false));
    let tells = ended.clone();
    let thread = std::thread::spawn(move || {
        let _ = goes.recv();
        tells.store(true, Ordering::Relaxed);
    });
    let coordinator = session.coordinator().clone();
    coordinator.spawn("lets it go", move |me| {
        me.wait_for_stop()?;
        drop(go);
        Ok(())
    });
    supervisor.stop_with(JoinOptions::new().also("thread", thread)).unwrap();
    assert!(ended.load(Ordering::Relaxed));
    assert_eq!(session.state().get(), 0, "not closed");

    let session = supervisor.start().unwrap();
    let stays = session.coordinator().enlist("stays");
    supervisor.stop_with(JoinOptions::new().grace(MS).ignore_stragglers()).unwrap();
    drop(stays);
}

#[test]
fn r43_the_grace_of_a_stop_is_two_minutes_unless_another_is_given() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    assert_eq!(counting(dir.path()).build().stop_grace(), Duration::from_secs(120));
    let supervisor = counting(dir.path()).services(false).stop_grace(MS).build();
    let session = supervisor.start().unwrap();
    let _stays = session.coordinator().enlist("stays");
    let error = supervisor.stop().unwrap_err();
    assert!(matches!(&error, SuperviseError::Job(_)) && error.stragglers().len() == 1, "{error}");
}

#[test]
fn r48_what_a_supervisor_was_told_can_be_asked() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let coordinator = Coordinator::new();
    let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
        .dir(dir.path())
        .chief(Chief::Elect)
        .coordinator(&coordinator)
        .save_every(MS * 7)
        .summarise_every(None)
        .build();
    assert_eq!((supervisor.dir(), supervisor.chief()), (Some(dir.path()), Chief::Elect));
    assert_eq!((supervisor.save_every(), supervisor.summarise_every()), (Some(MS * 7), None));
    assert_eq!(supervisor.count_steps_every(), Some(Duration::from_secs(120)));
    assert_eq!((supervisor.steps().name(), supervisor.state().get()), ("global_step", 0));
    supervisor
        .run(|session| {
            session.request_stop();
            assert!(coordinator.should_stop() && session.is_chief());
            assert!(session.event_file().unwrap().starts_with(dir.path()));
            Ok(())
        })
        .unwrap();
    assert!(format!("{supervisor:?}").contains("Elect"));
}

#[test]
fn r49_a_job_without_workers_of_its_own_is_no_error() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let bare = counting(dir.path()).no_events().no_checkpoints().build();
    bare.run(|session| {
        assert_eq!(session.coordinator().workers(), ["main"]);
        Ok(())
    })
    .unwrap();
    assert!(bare.coordinator().workers().is_empty());
}

/// What the original passes to its session, the coordinator has here.
#[test]
fn r50_the_options_of_the_coordinator_are_those_of_the_job() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let runtime = Runtime::builder().workers(1).name("mine").build().unwrap();
    let coordinator = Coordinator::builder().clean_stop::<Broken>().runtime(&runtime).build().unwrap();
    let supervisor = counting(dir.path()).coordinator(&coordinator).build();
    let ended = supervisor.run(|_| -> Result<(), _> { Err(Broken(1).into()) });
    assert_eq!(ended.unwrap(), None);
    let ended = supervisor.run(|_| -> Result<(), _> { Err(EndOfInput.into()) });
    assert!(ended.is_err(), "no kind of clean stop any more");
    runtime.shutdown(LONG).unwrap();
}

// ---- beyond the rows ---------------------------------------------------------------------------------------------------------

#[test]
fn a_stop_cuts_the_block_short_wherever_it_waits_and_the_state_is_saved() {
    let _dog = Watchdog::new("");
    for _ in 0..20 {
        let dir = TempDir::new().unwrap();
        let supervisor = counting(dir.path()).build();
        let coordinator = supervisor.coordinator().clone();
        let (begun, begins) = mpsc::channel();
        let stopper = std::thread::spawn(move || {
            begins.come().unwrap();
            coordinator.request_stop();
        });
        let ended = supervisor.run(|session| {
            count(session)?;
            begun.send(())?;
            Ok(Event::new().wait()?)
        });
        assert_eq!(ended.unwrap(), None);
        assert_eq!(steps(dir.path())[0], 1);
        stopper.join().unwrap();
    }
}

#[test]
fn an_error_of_the_block_after_a_plain_stop_comes_out_nevertheless() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let error = supervisor.run(|session| -> Result<(), _> {
        session.request_stop();
        Err(Broken(9).into())
    });
    assert_eq!(broken(&error.unwrap_err()), 9);
}

#[test]
fn of_two_errors_the_first_decides_and_the_second_comes_along() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let error = supervisor.run(|session| -> Result<(), _> {
        session.report(Broken(1)).unwrap();
        Err(Broken(2).into())
    });
    let error = error.unwrap_err();
    assert_eq!(broken(&error), 1);
    let SuperviseError::Job(forebear_supervise::JoinError::Failed { also, .. }) = error else { panic!() };
    assert_eq!(also[0].downcast_ref::<Broken>(), Some(&Broken(2)));
}

#[test]
fn a_stop_before_the_start_is_no_start() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let coordinator = Coordinator::new();
    coordinator.request_stop();
    let supervisor = counting(&dir.path().join("none")).coordinator(&coordinator).build();
    assert!(matches!(supervisor.start(), Err(SuperviseError::Stopped)));
    assert_eq!(supervisor.run(|_| Ok(1)).unwrap(), None);
    assert!(!dir.path().join("none").exists(), "nothing was touched");
}

#[test]
fn a_caller_that_is_cancelled_cancels_the_block_and_the_session_is_stopped_in_order() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = Arc::new(counting(dir.path()).build());
    let (begun, begins) = mpsc::channel();
    let (told, tells) = mpsc::channel();
    let runs = supervisor.clone();
    let caller: Request<()> = spawn(move || {
        let ended = runs.run(|session| {
            count(session)?;
            begun.send(())?;
            Ok(Event::new().wait()?)
        });
        told.send(matches!(ended, Err(SuperviseError::Cancelled))).unwrap();
    });
    begins.come().unwrap();
    caller.abort(CancelReason::Asked);
    assert!(tells.come().unwrap());
    assert_eq!(steps(dir.path())[0], 1);
    assert!(supervisor.session().is_none() && supervisor.coordinator().workers().is_empty());
}

#[test]
fn a_supervisor_that_is_dropped_stops_its_session() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let session = supervisor.start().unwrap();
    drop(supervisor);
    assert!(session.should_stop());
    drop(session);
    // Once nothing writes any more, another chief can come.
    until(|| counting(dir.path()).build().run(|_| Ok(())).is_ok());
}

#[test]
fn no_checkpoint_shows_the_middle_of_a_step() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    supervisor
        .run(|session| {
            for _ in 0..3 {
                let session = session.clone();
                session.clone().coordinator().spawn("worker", move |me| {
                    loop {
                        me.check_stop()?;
                        session.step(|sum| {
                            sum.update(|sum| *sum += 1);
                            // The others come in between.
                            let _ = forebear::yield_now();
                        })?;
                    }
                });
            }
            for _ in 0..20 {
                let saved = session.save_now()?;
                let read = Arc::new(Snapshot::new(1, 0_u64));
                session.checkpoints().unwrap().restore_from(&saved.path, &read)?;
                assert_eq!(read.get(), saved.step);
            }
            Ok(())
        })
        .unwrap();
}

/// The worker is one, and the job never waits.
#[test]
fn services_turn_beside_a_job_that_makes_nothing_but_steps() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let runtime = forebear::Runtime::builder().workers(1).build().unwrap();
    let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
    let supervisor = counting(dir.path()).coordinator(&coordinator).save_every(MS).build();
    supervisor
        .run(|session| {
            while steps(dir.path())[0] == 0 {
                count(session)?;
            }
            Ok(())
        })
        .unwrap();
}

/// Also on one without workers, whose requests run while a thread waits.
#[test]
fn a_job_runs_on_each_kind_of_runtime() {
    let _dog = Watchdog::new("");
    for kind in kinds() {
        let (dir, runtime) = (TempDir::new().unwrap(), kind.build());
        for run in 1..3 {
            let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
            let supervisor = counting(dir.path()).coordinator(&coordinator).build();
            let ran = supervisor.run(|session| {
                let worker = session.clone();
                session.coordinator().spawn("worker", move |_| count(&worker)).wait()?;
                count(session)?;
                session.save_now()?;
                Ok(session.state().get())
            });
            assert_eq!(ran.unwrap(), Some(2 * run), "{kind:?}");
        }
        let other = counting(dir.path()).build();
        other.run(|session| Ok(assert_eq!(session.state().get(), 4, "{kind:?}"))).unwrap();
    }
}

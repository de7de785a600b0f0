//! Checkpoints, summaries, the rate of steps, and the event file.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use forebear_supervise::{
    Checkpoints, Chief, EventWriter, Snapshot, StepCounter, Summary, SuperviseError, Supervisor,
};
use tempfile::TempDir;

use crate::records::{holds, records};
use crate::support::{Watchdog, until};
use crate::{Broken, MS, Warnings, broken, count, counting, event_files, quiet, steps};

/// The session logs of an event file: 1 for START, 2 for STOP, 3 for CHECKPOINT.
fn log(file: &std::path::Path) -> Vec<u8> {
    let is_log = |record: Vec<u8>| {
        // After the time, and the step if there is one: field 7, its length, and in it field 1.
        let rest = if record.get(9) == Some(&0x10) {
            &record[10 + record[10..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1..]
        } else {
            &record[9..]
        };
        (rest.first() == Some(&0x3a)).then(|| rest[3])
    };
    records(file).into_iter().filter_map(is_log).collect()
}

fn tags(file: &std::path::Path, tag: &str) -> usize {
    records(file).iter().filter(|record| holds(record, tag)).count()
}

#[test]
fn r27_the_services_turn_every_so_often_and_none_does_not() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let computed = Arc::new(AtomicU32::new(0));
    let counter = computed.clone();
    let supervisor = counting(dir.path())
        .checkpoints(Checkpoints::open(dir.path()).unwrap().keep(0))
        .save_every(MS)
        .summarise_every(MS)
        .count_steps_every(MS)
        .summary(move |sum| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(Summary::new().scalar("sum", sum.get() as f64))
        })
        .build();
    supervisor
        .run(|session| {
            until(|| {
                let _ = count(session);
                steps(dir.path()).len() >= 3 && computed.load(Ordering::Relaxed) >= 3
            });
            let file = session.event_file().unwrap();
            until(|| tags(&file, "global_step/sec") >= 3 && tags(&file, "sum") >= 3);
            Ok(())
        })
        .unwrap();

    let dir = TempDir::new().unwrap();
    let never = counting(dir.path()).save_every(None).summarise_every(None).count_steps_every(None);
    let never = never.summary(|_| panic!("it is not asked")).save_on_stop(false).build();
    never
        .run(|session| {
            assert_eq!(session.coordinator().workers(), ["main"]);
            Ok(())
        })
        .unwrap();
    assert!(steps(dir.path()).is_empty());
    let usual = Supervisor::builder(Snapshot::new(1, 0)).build();
    let seconds = |period: Option<std::time::Duration>| period.unwrap().as_secs();
    assert_eq!((seconds(usual.save_every()), seconds(usual.summarise_every())), (600, 120));
}

#[test]
fn r28_the_services_begin_at_once() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let builder = counting(dir.path()).summary(|_| Ok(Summary::new().scalar("first", 1.0)));
    let supervisor = builder.build();
    let session = supervisor.start().unwrap();
    assert_eq!(steps(dir.path()), [0], "on disk when the session begins");
    let file = session.event_file().unwrap();
    until(|| tags(&file, "first") == 1 && tags(&file, "global_step/sec") == 1);
    count(&session).unwrap();
    supervisor.stop().unwrap();
    // A state that was restored is saved once more, while the job goes on.
    let before = Checkpoints::open(dir.path()).unwrap().list().unwrap()[0].sequence;
    let supervisor = counting(dir.path()).build();
    supervisor.start().unwrap();
    until(|| Checkpoints::open(dir.path()).unwrap().list().unwrap()[0].sequence > before);
    supervisor.stop().unwrap();
}

#[test]
fn r29_only_the_chief_starts_services_and_writes() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let chief = counting(dir.path()).services(false).build();
    let session = chief.start().unwrap();
    assert!(session.coordinator().workers().is_empty(), "not before one asks for them");
    session.start_services().unwrap();
    session.start_services().unwrap();
    assert_eq!(session.coordinator().workers(), ["checkpoint", "step counter"]);
    let other = counting(dir.path()).chief(Chief::No).build();
    let joins = other.start().unwrap();
    assert!(matches!(joins.start_services(), Err(SuperviseError::NotChief)));
    assert!(matches!(joins.save_now(), Err(SuperviseError::NotChief)));
    assert!(matches!(joins.summary_computed(Summary::new(), 1), Err(SuperviseError::NotChief)));
    assert_eq!(joins.coordinator().workers(), ["chief watch"]);
    other.stop().unwrap();
    chief.stop().unwrap();
    assert_eq!(event_files(dir.path()).len(), 1);
}

#[test]
fn r30_without_a_directory_nothing_is_started_and_that_is_told() {
    let _dog = Watchdog::new("");
    let warnings = Warnings::default();
    let supervisor =
        Supervisor::builder(Snapshot::new(1, 0)).on_warning(warnings.hook()).summary(|_| Ok(Summary::new()));
    let supervisor = supervisor.build();
    let ended = supervisor.run(|session| {
        assert_eq!(session.coordinator().workers(), ["main"]);
        assert!(matches!(session.save_now(), Err(SuperviseError::NoCheckpoints)));
        Ok(7)
    });
    assert_eq!(ended.unwrap(), Some(7));
    assert!(warnings.have("no directory"));
}

#[test]
fn r31_a_summary_needs_a_writer_and_checkpoints_do_not() {
    let _dog = Watchdog::new("");
    let supervisor = quiet(Supervisor::builder(Snapshot::new(1, 0))).on_warning(|_| ()).build();
    supervisor
        .run(|session| {
            let error = session.summary_computed(Summary::new().scalar("x", 1.0), None).unwrap_err();
            assert!(matches!(error, SuperviseError::NoWriter) && error.to_string().contains("writer"));
            Ok(())
        })
        .unwrap();
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).no_events().summary(|_| panic!("it is not asked")).build();
    supervisor
        .run(|session| {
            assert!(matches!(session.summary_computed(Summary::new(), 3), Err(SuperviseError::NoWriter)));
            Ok(())
        })
        .unwrap();
    assert_eq!((event_files(dir.path()).len(), steps(dir.path()).len()), (0, 1));
}

/// Unlike the original, the services that need no directory are started then.
#[test]
fn r32_a_writer_of_ones_own_is_used_also_without_a_directory() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let writer = EventWriter::create(dir.path()).unwrap();
    let file = writer.path().to_owned();
    let supervisor = quiet(Supervisor::builder(Snapshot::new(1, 0))).events(writer);
    let supervisor = supervisor.summary(|_| Ok(Summary::new().scalar("mine", 1.0))).build();
    supervisor
        .run(|session| {
            session.summary_computed(Summary::new().scalar("by hand", 1.0), None)?;
            until(|| tags(&file, "mine") == 1);
            Ok(())
        })
        .unwrap();
    assert_eq!((tags(&file, "by hand"), log(&file)), (1, vec![1, 2]));
    assert_eq!(event_files(dir.path()), [file]);
}

#[test]
fn r33_an_event_file_has_a_start_the_checkpoints_and_a_stop_without_a_step() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    supervisor
        .run(|session| {
            count(session)?;
            session.save_now()?;
            session.summary_computed(Summary::new().scalar("loss", 0.5), None)?;
            Ok(())
        })
        .unwrap();
    let file = &event_files(dir.path())[0];
    assert!(holds(&records(file)[0], "brain.Event:2"));
    assert_eq!(log(file), [1, 3, 3, 3, 2], "the start, the first, that in between, the last, the stop");
    let last = dir.path().join("checkpoint-000000000001");
    assert_eq!(tags(file, last.to_str().unwrap()), 2);
    let all = records(file);
    let stop = all.last().unwrap();
    assert_eq!(stop[9], 0x3a, "no step stands before the log");
}

/// There always is a counter.
#[test]
fn r34_each_file_begins_with_a_start_at_the_step_that_the_job_begins_with() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    for run in 0..3 {
        let supervisor = counting(dir.path()).build();
        let session = supervisor.start().unwrap();
        let file = session.event_file().unwrap();
        count(&session).unwrap();
        supervisor.stop().unwrap();
        let start = &records(&file)[1];
        // A step of zero is left out of a protocol buffer by some writers; not by this one.
        assert_eq!(start[9..], [0x10, run, 0x3a, 2, 8, 1]);
    }
}

#[test]
fn r35_the_rate_of_steps_bears_the_name_of_the_counter_and_begins_with_zero() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path())
        .steps(StepCounter::new("episodes"))
        .count_steps_every(MS)
        .save_every(None)
        .build();
    let session = supervisor.start().unwrap();
    let file = session.event_file().unwrap();
    let rates = || -> Vec<f32> {
        let all = records(&file);
        let rates = all.iter().filter(|record| holds(record, "episodes/sec"));
        rates.map(|record| f32::from_le_bytes(*record.last_chunk().unwrap())).collect()
    };
    until(|| {
        session.steps().add(1);
        rates().iter().any(|rate| *rate > 0.0)
    });
    assert_eq!(rates()[0], 0.0);
    supervisor.stop().unwrap();
}

#[test]
fn r36_a_checkpoint_is_named_by_its_step() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let saved = supervisor.run(|session| {
        session.steps().set(123);
        Ok(session.save_now()?)
    });
    assert_eq!(saved.unwrap().unwrap().path, dir.path().join("checkpoint-000000000123"));
}

/// The original looks for a counter by its name and its type; here the type is fixed, and the job gives the name.
#[test]
fn r37_the_counter_is_one_of_steps_whatever_its_name() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let mine = StepCounter::new("mine");
    let supervisor = counting(dir.path()).steps(mine.clone()).build();
    supervisor.run(count).unwrap();
    assert_eq!((mine.get(), supervisor.steps().name()), (1, "mine"));
    assert_eq!(steps(dir.path())[0], 1);
}

#[test]
fn r38_a_summary_is_written_for_a_step_which_is_the_current_one_if_none_is_given() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    supervisor
        .run(|session| {
            session.steps().set(5);
            session.summary_computed(Summary::new().scalar("now", 1.0), None)?;
            session.summary_computed(Summary::new().scalar("then", 1.0), 99)?;
            Ok(())
        })
        .unwrap();
    let all = records(&event_files(dir.path())[0]);
    let step = |tag| all.iter().find(|record| holds(record, tag)).unwrap()[10];
    assert_eq!((step("now"), step("then")), (5, 99));
}

#[test]
fn r39_each_session_has_a_file_of_its_own_or_all_have_one() {
    let _dog = Watchdog::new("");
    for keep in [false, true] {
        let dir = TempDir::new().unwrap();
        let supervisor =
            counting(dir.path()).keep_event_file(keep).save_every(None).save_on_stop(false).build();
        for run in ["first", "second"] {
            supervisor
                .run(|session| Ok(session.summary_computed(Summary::new().scalar(run, 1.0), None)?))
                .unwrap();
        }
        drop(supervisor);
        let files = event_files(dir.path());
        let found: Vec<_> =
            files.iter().map(|file| (tags(file, "first"), tags(file, "second"), log(file))).collect();
        if keep {
            assert_eq!(found, [(1, 1, vec![1])]);
        } else {
            assert_eq!(found, [(1, 0, vec![1, 2]), (0, 1, vec![1, 2])]);
        }
    }
}

#[test]
fn r45_so_many_checkpoints_are_kept_also_over_restarts() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    for _ in 0..4 {
        let checkpoints = Checkpoints::open(dir.path()).unwrap().keep(3);
        let supervisor = counting(dir.path()).checkpoints(checkpoints).build();
        supervisor
            .run(|session| {
                for _ in 0..2 {
                    count(session)?;
                    session.save_now()?;
                }
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(steps(dir.path()), [8, 7, 6]);
}

#[test]
fn r46_the_index_tells_of_whole_files_at_any_moment() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    let index = dir.path().join("checkpoints");
    supervisor
        .run(|session| {
            let saver = session.clone();
            let done = Arc::new(Mutex::new(false));
            let tells = done.clone();
            session.coordinator().spawn("saver", move |_| {
                for _ in 0..20 {
                    count(&saver)?;
                    saver.save_now()?;
                }
                *tells.lock().unwrap() = true;
                Ok(())
            });
            until(|| {
                // Each line is whole: sequence, step, name.
                let told = std::fs::read_to_string(&index).unwrap();
                assert!(told.ends_with('\n') && told.lines().all(|line| line.split(' ').count() == 3));
                *done.lock().unwrap()
            });
            Ok(())
        })
        .unwrap();
}

#[test]
fn r51_what_the_writer_is_refused_stops_the_job() {
    const TEST: &str = "services::r51_what_the_writer_is_refused_stops_the_job";
    let _dog = Watchdog::new("");
    if !crate::support::is_child(TEST) {
        let dir = TempDir::new().unwrap();
        let mark = ("DIRECTORY", dir.path().to_str().unwrap());
        let (ok, told) = crate::support::again_in_child(TEST, mark, "trap '' XFSZ; ulimit -f 64;");
        assert!(ok, "{told}");
        return;
    }
    let dir = std::env::var_os("DIRECTORY").unwrap();
    let text = "x".repeat(1_000);
    let supervisor = counting(dir.as_ref()).summarise_every(MS);
    let supervisor = supervisor.summary(move |_| Ok(Summary::new().text("much", &text))).build();
    let error = supervisor.run(|session| Ok(session.wait_for_stop()?)).unwrap_err();
    let failure = error.failure().unwrap();
    assert!(failure.request() == "summary" || failure.request() == "step counter", "{error}");
    assert!(matches!(failure.downcast_ref(), Some(SuperviseError::Events(_))), "{failure:?}");
}

// ---- beyond the rows ---------------------------------------------------------------------------------------------------------

/// What the original's users complained of: services that ended, and nobody heard of it.
#[test]
fn a_service_that_fails_stops_the_job() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let turns = AtomicU32::new(0);
    let supervisor = counting(dir.path()).summarise_every(MS).summary(move |_| {
        if turns.fetch_add(1, Ordering::Relaxed) == 3 { Err(Broken(12).into()) } else { Ok(Summary::new()) }
    });
    let error = supervisor.build().run(|session| Ok(session.wait_for_stop()?)).unwrap_err();
    assert_eq!((broken(&error), error.failure().unwrap().request()), (12, "summary"));
}

#[test]
fn saves_of_several_are_one_after_the_other_and_the_newest_is_that_of_the_latest_step() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).save_every(MS).build();
    supervisor
        .run(|session| {
            for _ in 0..4 {
                let saver = session.clone();
                session.coordinator().spawn("saver", move |_| {
                    for _ in 0..10 {
                        count(&saver)?;
                        saver.save_now()?;
                    }
                    Ok(())
                });
            }
            until(|| session.steps().get() == 40 || session.should_stop());
            Ok(())
        })
        .unwrap();
    let files = Checkpoints::open(dir.path()).unwrap().list().unwrap();
    assert!(files.is_sorted_by(|newer, older| newer.step > older.step), "{files:?}");
    assert_eq!(files[0].step, 40);
}

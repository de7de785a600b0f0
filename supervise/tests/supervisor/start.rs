//! What a session begins with.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebear_supervise::{
    CheckpointError, Checkpoints, Chief, Prepared, Preparing, Readiness, Snapshot, SuperviseError,
    Supervisor, SupervisorBuilder,
};
use tempfile::TempDir;

use crate::support::{Come, Watchdog};
use crate::{Broken, LONG, MS, Model, Warnings, counting, quiet};

fn model(dir: &Path, names: &[&str]) -> SupervisorBuilder<Model> {
    quiet(Supervisor::builder(Model::of(names))).dir(dir)
}

/// A directory with a checkpoint of a model.
fn saved(step: u64, values: &[(&str, i64)]) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let state = Arc::new(Model::of(&[]));
    values.iter().for_each(|(name, value)| state.set(name, *value));
    let path = Checkpoints::open(dir.path()).unwrap().save(step, &state).unwrap().path;
    (dir, path)
}

fn not_ready(error: SuperviseError) -> (String, Duration) {
    let SuperviseError::NotReady { reason, waited, .. } = error else { panic!("{error:?}") };
    (reason, waited)
}

/// Records what is called.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<&'static str>>>);

impl Calls {
    fn note(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Has all that prepares a model noted.
    fn noting(&self, builder: SupervisorBuilder<Model>) -> SupervisorBuilder<Model> {
        let notes = [(); 5].map(|()| self.clone());
        let [init, local, when, ready, second] = notes;
        builder
            .init(move |model| {
                init.note("init");
                model.set("w", 1);
                Ok(())
            })
            .init(move |_| {
                second.note("second init");
                Ok(())
            })
            .local_init_when(
                move |_| {
                    when.note("local init?");
                    Readiness::Ready
                },
                move |_| {
                    local.note("local init");
                    Ok(())
                },
            )
            .ready(move |_| {
                ready.note("ready?");
                Readiness::Ready
            })
    }
}

#[test]
fn r11_the_chief_restores_or_initialises_then_prepares_what_is_local_then_checks_and_others_wait() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let calls = Calls::default();
    let chief = calls.noting(model(dir.path(), &["w"])).build();
    // The other one waits, and begins when the chief is ready.
    let others = Calls::default();
    let (told, tells) = mpsc::channel();
    let (place, waits) = (dir.path().to_owned(), others.clone());
    let other = std::thread::spawn(move || {
        let warnings = Warnings::default();
        let hook = warnings.hook();
        let other = waits.noting(model(&place, &["w"])).chief(Chief::No).on_warning(move |text| {
            hook(text);
            let _ = told.send(text.to_owned());
        });
        let other = other.build();
        let session = other.start().unwrap();
        assert_eq!(session.state().get("w"), Some(1));
        assert!(session.restored_from().is_some());
        other.stop().unwrap();
    });
    assert!(tells.come().unwrap().contains("no chief has come"));
    let session = chief.start().unwrap();
    assert_eq!(calls.take(), ["init", "second init", "local init?", "local init", "ready?"]);
    other.join().unwrap();
    assert_eq!(others.take(), ["local init?", "local init", "ready?"]);
    assert!(session.restored_from().is_none());
    drop(session);
    chief.stop().unwrap();
    let session = chief.start().unwrap();
    assert!(session.restored_from().is_some());
    assert_eq!(calls.take(), ["local init?", "local init", "ready?"]);
    chief.stop().unwrap();
}

#[test]
fn r12_a_state_is_initialised_by_closures_with_values_of_theirs_or_by_what_it_is() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let fed = 17;
    let with_values = model(&dir.path().join("a"), &["w"]).init(move |model| {
        model.set("w", fed);
        Ok(())
    });
    let with_values = with_values.build();
    with_values.run(|session| Ok(assert_eq!(session.state().get("w"), Some(17)))).unwrap();
    let without = quiet(Supervisor::builder(Snapshot::new(1, 5))).dir(dir.path().join("b")).build();
    without.run(|session| Ok(assert_eq!(session.state().get(), 5))).unwrap();
    let fails = model(&dir.path().join("c"), &["w"]).init(|_| Err(Broken(3).into())).build();
    let error = fails.start().unwrap_err();
    let SuperviseError::Prepare { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.downcast_ref::<Broken>(), Some(&Broken(3)));
    // The start can be repeated, here and elsewhere.
    assert!(matches!(fails.start(), Err(SuperviseError::Prepare { .. })));
    model(&dir.path().join("c"), &[]).build().run(|_| Ok(())).unwrap();
}

#[test]
fn r13_of_several_inits_one_is_called_after_the_other() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = model(dir.path(), &["w"])
        .init(|model| Ok(model.set("w", 2)))
        .init(|model| Ok(model.set("w", model.get("w").unwrap() * 10)))
        .build();
    supervisor.run(|session| Ok(assert_eq!(session.state().get("w"), Some(20)))).unwrap();
}

#[test]
fn r14_what_is_local_is_prepared_in_every_process_when_the_state_is_ready_for_it() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let looks = Arc::new(AtomicU32::new(0));
    let local = |builder: SupervisorBuilder<Model>, from: u32| {
        let looks = looks.clone();
        let when = move |_: &Model| {
            if looks.fetch_add(1, Ordering::Relaxed) < from {
                return Readiness::NotReady("the table is not there".into());
            }
            Readiness::Ready
        };
        builder.local_init_when(when, |model| Ok(model.set("local", 1))).look_every(MS)
    };
    // The chief cannot wait for what only it could do.
    let chief = local(model(dir.path(), &["local"]).init(|_| Ok(())), u32::MAX).build();
    let error = chief.start().unwrap_err();
    assert!(
        matches!(&error, SuperviseError::InitIncomplete { missing, .. } if missing == &["local"]),
        "{error}"
    );
    let chief = local(model(dir.path(), &["local"]).init(|_| Ok(())), 0).build();
    chief.start().unwrap();
    assert_eq!(chief.state().get("local"), Some(1));
    // Another process waits for it.
    looks.store(0, Ordering::Relaxed);
    let warnings = Warnings::default();
    let other = local(model(dir.path(), &["local"]), 5).chief(Chief::No).on_warning(warnings.hook()).build();
    other.start().unwrap();
    assert_eq!(other.state().get("local"), Some(1));
    assert!(looks.load(Ordering::Relaxed) > 5 && warnings.have("the table is not there"));
    other.stop().unwrap();
    chief.stop().unwrap();
}

#[test]
fn r16_what_is_local_is_prepared_from_the_restored_values() {
    let _dog = Watchdog::new("");
    let (dir, _) = saved(5, &[("v", 10)]);
    let supervisor = model(dir.path(), &["v", "double"])
        .init(|model| Ok(model.set("v", 1)))
        .local_init(|model| Ok(model.set("double", model.get("v").unwrap() * 2)))
        .build();
    let session = supervisor.start().unwrap();
    assert_eq!((session.state().get("double"), session.steps().get()), (Some(20), 5));
    supervisor.stop().unwrap();
}

#[test]
fn r17_an_init_that_leaves_something_out_is_an_error_that_names_it() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = model(dir.path(), &["v", "w", "x"]).init(|model| Ok(model.set("v", 1))).build();
    let error = supervisor.start().unwrap_err();
    assert!(matches!(&error, SuperviseError::InitIncomplete { missing, .. } if missing == &["w", "x"]));
    assert!(error.to_string().contains("w, x"), "{error}");
    // The same of a checkpoint from before the state had that part.
    let (dir, _) = saved(1, &[("v", 1)]);
    let error = model(dir.path(), &["v", "new"]).init(|_| Ok(())).build().start().unwrap_err();
    assert!(matches!(&error, SuperviseError::InitIncomplete { missing, .. } if missing == &["new"]));
}

#[test]
fn r18_not_being_ready_has_a_reason_which_is_told_while_one_waits() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let chief = model(dir.path(), &[]).build();
    chief.start().unwrap();
    let warnings = Warnings::default();
    let other = model(dir.path(), &[])
        .chief(Chief::No)
        .ready(|_| Readiness::NotReady("the shard is not loaded".into()))
        .wait_for_chief(MS * 5)
        .on_warning(warnings.hook())
        .build();
    let (reason, _) = not_ready(other.start().unwrap_err());
    assert_eq!(reason, "the shard is not loaded");
    assert!(warnings.have("the shard is not loaded"));
    chief.stop().unwrap();
    let chief = model(dir.path(), &[]).ready(|_| Readiness::NotReady("no".into())).build();
    assert_eq!(not_ready(chief.start().unwrap_err()).0, "no");
}

#[test]
fn r19_with_nothing_to_restore_and_nothing_that_initialises_the_start_says_so() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let error = model(dir.path(), &["w"]).build().start().unwrap_err();
    assert!(matches!(&error, SuperviseError::NothingToStartFrom { missing, .. } if missing == &["w"]));
    assert!(error.to_string().contains("give the builder an `init`"), "{error}");
}

#[test]
fn r20_a_wait_for_a_checkpoint_takes_it_when_it_comes_and_else_goes_on_to_init() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let waiting =
        || model(dir.path(), &["w"]).init(|model| Ok(model.set("w", 1))).save_on_stop(false).save_every(None);
    let supervisor = waiting().wait_for_checkpoint(MS * 5).build();
    supervisor.run(|session| Ok(assert_eq!(session.state().get("w"), Some(1)))).unwrap();
    // It comes while the start waits. No process polls, so the kernel has reported it.
    let supervisor = waiting().wait_for_checkpoint(LONG).look_every(LONG).build();
    let place = dir.path().to_owned();
    let comes = std::thread::spawn(move || {
        let state = Arc::new(Model::of(&[]));
        state.set("w", 2);
        Checkpoints::open(place).unwrap().save(9, &state).unwrap();
    });
    supervisor.run(|session| Ok(assert_eq!(session.state().get("w"), Some(2)))).unwrap();
    comes.join().unwrap();
    // A stop ends the wait.
    let supervisor = quiet(Supervisor::builder(Model::of(&[]))).dir(dir.path().join("other"));
    let supervisor = supervisor.wait_for_checkpoint(Duration::MAX).look_every(LONG).build();
    let stops = supervisor.coordinator().clone();
    let stopper = std::thread::spawn(move || stops.request_stop());
    assert_eq!(supervisor.run(|_| Ok(())).unwrap(), None);
    stopper.join().unwrap();
}

#[test]
fn r21_a_recovery_restores_what_is_there_and_initialises_nothing_but_what_is_local() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let calls = Calls::default();
    let supervisor = calls.noting(model(dir.path(), &["w"])).build();
    let session = supervisor.recover().unwrap();
    assert!(session.restored_from().is_none() && session.not_ready().unwrap().contains('w'));
    assert_eq!(calls.take(), ["local init?", "local init"]);
    supervisor.stop().unwrap();
    assert!(crate::steps(dir.path()).is_empty(), "nothing is saved of what is not ready");
    let (dir, _) = saved(7, &[("w", 70)]);
    let supervisor = calls.noting(model(dir.path(), &["w"])).build();
    let session = supervisor.recover().unwrap();
    assert_eq!((session.restored_from().unwrap().step, session.state().get("w")), (7, Some(70)));
    assert_eq!(session.not_ready(), None);
    assert_eq!(calls.take(), ["local init?", "local init", "ready?"]);
    supervisor.stop().unwrap();
}

#[test]
fn r22_what_is_restored_but_not_ready_counts_as_not_restored_and_is_no_error() {
    let _dog = Watchdog::new("");
    let not = |_: &Model| Readiness::NotReady("not yet".into());
    let (dir, _) = saved(7, &[("w", 70)]);
    for supervisor in [
        model(dir.path(), &["w"]).ready(not).build(),
        model(dir.path(), &["w"]).local_init_when(not, |_| Ok(())).build(),
    ] {
        let session = supervisor.recover().unwrap();
        assert_eq!((session.restored_from(), session.not_ready()), (None, Some("not yet")));
        supervisor.stop().unwrap();
    }
}

#[test]
fn r23_a_job_begins_with_a_given_file_and_goes_on_with_its_own() {
    let _dog = Watchdog::new("");
    let (_elsewhere, file) = saved(7, &[("w", 70)]);
    let dir = TempDir::new().unwrap();
    let begins = || model(dir.path(), &["w"]).init(|model| Ok(model.set("w", 1))).restore_from(&file).build();
    let supervisor = begins();
    supervisor
        .run(|session| {
            assert_eq!((session.restored_from().unwrap().step, session.state().get("w")), (7, Some(70)));
            session.state().set("w", 71);
            session.steps().add(1);
            Ok(())
        })
        .unwrap();
    let again = begins();
    again
        .run(|session| {
            assert_eq!((session.steps().get(), session.state().get("w")), (8, Some(71)));
            Ok(())
        })
        .unwrap();
    let lost = model(&dir.path().join("other"), &[]).restore_from(dir.path().join("none")).build();
    let error = lost.start().unwrap_err();
    assert!(matches!(error, SuperviseError::Checkpoint(CheckpointError::Io { .. })), "{error:?}");
}

#[test]
fn r24_a_wait_for_the_chief_is_over_in_time_and_says_what_for() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let other = || model(dir.path(), &[]).chief(Chief::No);
    for (wait, look) in [(Duration::ZERO, LONG), (MS * 5, LONG), (MS * 5, MS)] {
        let (reason, waited) =
            not_ready(other().wait_for_chief(wait).look_every(look).build().start().unwrap_err());
        assert_eq!(reason, "no chief has come");
        assert!(waited >= wait);
    }
    // After a chief that has stopped, and for ever, but for a stop.
    model(dir.path(), &[]).build().run(|_| Ok(())).unwrap();
    let (reason, _) = not_ready(other().wait_for_chief(MS).build().start().unwrap_err());
    assert!(reason.contains("has stopped"), "{reason}");
    let for_ever = other().wait_for_chief(Duration::MAX).look_every(LONG).build();
    let stops = for_ever.coordinator().clone();
    let stopper = std::thread::spawn(move || stops.request_stop());
    assert!(matches!(for_ever.start(), Err(SuperviseError::Stopped)));
    stopper.join().unwrap();
}

#[test]
fn r25_each_try_restores_anew_and_an_error_ends_the_wait_at_once() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let chief = model(dir.path(), &["w"]).init(|model| Ok(model.set("w", 1))).build();
    let session = chief.start().unwrap();
    // Ready when the chief has come to 3. Each time its newest checkpoint is read.
    let tries = Arc::new(AtomicU32::new(0));
    let (counts, asked) = mpsc::channel();
    let counter = tries.clone();
    let place = dir.path().to_owned();
    let other = std::thread::spawn(move || {
        let other = model(&place, &["w"]).chief(Chief::No).look_every(LONG).ready(move |model| {
            counter.fetch_add(1, Ordering::Relaxed);
            let _ = counts.send(model.get("w"));
            if model.get("w") < Some(3) { Readiness::NotReady("too early".into()) } else { Readiness::Ready }
        });
        let other = other.build();
        let w = other.start().unwrap().state().get("w");
        other.stop().unwrap();
        w
    });
    assert_eq!(asked.come().unwrap(), Some(1));
    for value in 2..=3 {
        session.state().set("w", value);
        session.save_now().unwrap();
    }
    assert_eq!(other.join().unwrap(), Some(3));
    // A state of another schema cannot be restored, however long one waits.
    let wrong = quiet(Supervisor::builder(Snapshot::new(99, 0))).dir(dir.path()).chief(Chief::No);
    let error = wrong.wait_for_chief(Duration::MAX).build().start().unwrap_err();
    assert!(matches!(error, SuperviseError::Checkpoint(CheckpointError::Schema { .. })), "{error:?}");
    chief.stop().unwrap();
}

#[test]
fn r26_a_session_manager_of_ones_own_does_what_all_the_closures_would() {
    let _dog = Watchdog::new("");
    let (dir, _) = saved(7, &[("w", 70)]);
    let calls = Calls::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let manager = move |state: &Arc<Model>, with: &Preparing| {
        notes.lock().unwrap().push(with.is_chief);
        let restored_from = with.checkpoints.as_ref().unwrap().restore(state)?;
        state.set("w", state.get("w").unwrap() + 1);
        Ok(Prepared { step: 1_000, restored_from })
    };
    let chief = calls.noting(model(dir.path(), &["w"])).session_manager(manager.clone()).build();
    let session = chief.start().unwrap();
    assert_eq!((session.steps().get(), session.state().get("w")), (1_000, Some(71)));
    assert_eq!(session.restored_from().unwrap().step, 7);
    assert!(calls.take().is_empty());
    let other = model(dir.path(), &["w"]).chief(Chief::No).session_manager(manager).build();
    other.run(|_| Ok(())).unwrap();
    assert_eq!(*seen.lock().unwrap(), [true, false]);
    chief.stop().unwrap();
    let fails = model(dir.path(), &[]).session_manager(|_: &Arc<Model>, _: &Preparing| Err(Broken(1).into()));
    assert!(matches!(fails.build().start(), Err(SuperviseError::Prepare { .. })));
}

#[test]
fn r44_a_process_that_is_not_the_chief_needs_a_directory_that_it_shares() {
    let _dog = Watchdog::new("");
    let lonely = quiet(Supervisor::builder(Model::of(&[]))).chief(Chief::No).build();
    let error = lonely.start().unwrap_err();
    assert!(matches!(error, SuperviseError::NoDirectory) && error.to_string().contains("`dir`"), "{error}");
}

#[test]
fn r47_a_job_that_was_restored_from_a_file_goes_on_saving() {
    let _dog = Watchdog::new("");
    let (dir, file) = saved(7, &[("w", 70)]);
    for run in 0..3 {
        let supervisor = model(dir.path(), &["w"]).restore_from(&file).build();
        supervisor
            .run(|session| {
                assert_eq!(session.steps().add(1), 8 + run);
                Ok(drop(session.save_now()?))
            })
            .unwrap();
        assert_eq!(crate::steps(dir.path())[0], 8 + run);
    }
}

// ---- beyond the rows ---------------------------------------------------------------------------------------------------------

#[test]
fn a_damaged_newest_checkpoint_is_passed_over_and_that_is_told() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).build();
    for _ in 0..2 {
        supervisor.run(crate::count).unwrap();
    }
    let newest = Checkpoints::open(dir.path()).unwrap().list().unwrap().remove(0);
    std::fs::File::options().write(true).open(newest.path).unwrap().set_len(50).unwrap();
    let warnings = Warnings::default();
    let supervisor = counting(dir.path()).on_warning(warnings.hook()).build();
    let session = supervisor.start().unwrap();
    assert_eq!((session.state().get(), session.steps().get()), (1, 1));
    assert!(warnings.have("passed over"));
    supervisor.stop().unwrap();
}

//! What is given to a supervisor panics: it comes out, and the supervisor, its directory and its files can be used again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use forebear::Error;
use forebear_supervise::{
    Chief, CopiedState, Prepared, Readiness, SavedSections, Sections, Session, Snapshot, State, Summary,
    SuperviseError, Supervisor,
};
use tempfile::TempDir;

use crate::records::records;
use crate::support::Watchdog;
use crate::{MS, counting, event_files, quiet};

/// Panics, and is no panic of a test.
fn panics<T>() -> T {
    std::panic::resume_unwind(Box::new("hostile"))
}

/// What of a state panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Nothing,
    Schema,
    Save,
    Copy,
    SaveOfCopy,
    Restore,
    Missing,
}

#[derive(Clone)]
struct Hostile(Arc<Mutex<At>>);

impl Hostile {
    fn is(&self, at: At) -> bool {
        *self.0.lock().unwrap() == at
    }

    fn panic_at(&self, at: At) {
        *self.0.lock().unwrap() = at;
    }

    fn meets(&self, at: At) {
        if self.is(at) {
            panics()
        }
    }
}

impl State for Hostile {
    fn schema(&self) -> u64 {
        self.meets(At::Schema);
        1
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        out.put("first", &1_u8)?;
        self.meets(At::Save);
        Ok(())
    }

    fn restore(&self, from: &SavedSections) -> Result<(), Error> {
        self.meets(At::Restore);
        from.get::<u8>("first").map(drop)
    }

    fn missing(&self) -> Vec<String> {
        self.meets(At::Missing);
        Vec::new()
    }

    fn copy(&self) -> Option<Box<dyn CopiedState>> {
        self.meets(At::Copy);
        let panics_later = self.is(At::SaveOfCopy);
        (!self.is(At::Save)).then(|| {
            Box::new(move |out: &mut Sections<'_>| {
                out.put("first", &1_u8)?;
                if panics_later { panics() } else { Ok(()) }
            }) as Box<dyn CopiedState>
        })
    }
}

#[test]
fn a_state_that_panics_at_the_last_save_fails_the_job_and_all_is_closed() {
    let _dog = Watchdog::new("");
    for at in [At::Schema, At::Save, At::Copy, At::SaveOfCopy] {
        let (dir, state) = (TempDir::new().unwrap(), Hostile(Arc::new(Mutex::new(At::Nothing))));
        let supervisor = quiet(Supervisor::builder(state.clone())).dir(dir.path()).build();
        let ends = |session: &Session<Hostile>| {
            session.step(|_| ())?;
            Ok(state.panic_at(at))
        };
        let error = supervisor.run(ends).unwrap_err();
        let failure = error.failure().unwrap_or_else(|| panic!("{at:?}: {error:?}"));
        assert!(failure.is_panic() && failure.request() == "last checkpoint", "{at:?}: {failure:?}");
        let events = records(&event_files(dir.path())[0]);
        assert!(events.last().unwrap().ends_with(&[0x3a, 2, 8, 2]), "{at:?}: it ends with STOP");
        // The place is free, nothing is left of the save, and the supervisor can be used again.
        state.panic_at(At::Nothing);
        let other = quiet(Supervisor::builder(state.clone())).dir(dir.path()).build();
        other.run(|session| Ok(assert_eq!(session.steps().get(), 0, "{at:?}"))).unwrap();
        supervisor.run(|_| Ok(())).unwrap();
        assert!(!dir.path().join(".checkpoint.tmp").exists());
    }
}

#[test]
fn a_state_that_panics_at_the_start_comes_out_and_the_start_can_be_repeated() {
    let _dog = Watchdog::new("");
    for at in [At::Schema, At::Save, At::Copy, At::SaveOfCopy, At::Missing, At::Restore] {
        let (dir, state) = (TempDir::new().unwrap(), Hostile(Arc::new(Mutex::new(At::Nothing))));
        let supervisor = quiet(Supervisor::builder(state.clone())).dir(dir.path()).build();
        if at == At::Restore {
            supervisor.run(|_| Ok(())).unwrap();
        }
        state.panic_at(at);
        let started = catch_unwind(AssertUnwindSafe(|| supervisor.start()));
        assert!(started.is_err(), "{at:?}");
        state.panic_at(At::Nothing);
        let other = quiet(Supervisor::builder(state.clone())).dir(dir.path()).build();
        other.run(|_| Ok(())).unwrap();
        supervisor.run(|_| Ok(())).unwrap();
    }
}

/// The second call starts the services.
#[test]
fn services_that_a_panic_has_kept_from_their_start_can_be_started_again() {
    let _dog = Watchdog::new("");
    let (dir, state) = (TempDir::new().unwrap(), Hostile(Arc::new(Mutex::new(At::Nothing))));
    let supervisor = quiet(Supervisor::builder(state.clone())).dir(dir.path()).services(false).build();
    let run = supervisor.run(|session| {
        state.panic_at(At::Copy);
        assert!(catch_unwind(AssertUnwindSafe(|| session.start_services())).is_err());
        state.panic_at(At::Nothing);
        session.start_services()?;
        Ok(session.coordinator().workers())
    });
    let workers = run.unwrap().unwrap();
    assert!(workers.contains(&"checkpoint".to_owned()), "{workers:?}");
}

#[test]
fn closures_that_panic_at_the_start_come_out_and_the_start_can_be_repeated() {
    let _dog = Watchdog::new("");
    for which in ["init", "local init", "local init when", "ready", "manager"] {
        let dir = TempDir::new().unwrap();
        let calls = Arc::new(AtomicU32::new(0));
        let first = move || {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                panics()
            }
        };
        let builder = counting(dir.path());
        let supervisor = match which {
            "init" => builder.init(move |_| Ok(first())),
            "local init" => builder.local_init(move |_| Ok(first())),
            "local init when" => builder.local_init_when(move |_| (first(), Readiness::Ready).1, |_| Ok(())),
            "ready" => builder.ready(move |_| (first(), Readiness::Ready).1),
            _ => builder.session_manager(move |_: &Arc<Snapshot<u64>>, _: &_| {
                first();
                Ok(Prepared { step: 0, restored_from: None })
            }),
        };
        let supervisor = supervisor.build();
        assert!(catch_unwind(AssertUnwindSafe(|| supervisor.start())).is_err(), "{which}");
        counting(dir.path()).build().run(|_| Ok(())).unwrap();
        supervisor.run(|_| Ok(())).unwrap();
    }
}

#[test]
fn a_summary_that_panics_fails_the_job_by_name() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let supervisor = counting(dir.path()).summary(|_| panics::<Result<Summary, Error>>()).build();
    let error = supervisor.run(|session| Ok(session.wait_for_stop()?)).unwrap_err();
    let failure = error.failure().unwrap();
    assert!(failure.is_panic() && failure.request() == "summary", "{error:?}");
}

#[test]
fn a_hook_for_warnings_that_panics_changes_nothing() {
    let _dog = Watchdog::new("");
    let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).on_warning(|_| panics()).build();
    supervisor.run(|session| Ok(session.step(|sum| sum.set(1))?)).unwrap();
    // One that waits, and says for what.
    let dir = TempDir::new().unwrap();
    let chief = counting(dir.path()).build();
    let _session = chief.start().unwrap();
    let other = counting(dir.path())
        .chief(Chief::No)
        .ready(|_| Readiness::NotReady("never".into()))
        .wait_for_chief(MS)
        .on_warning(|_| panics())
        .build();
    assert!(matches!(other.start(), Err(SuperviseError::NotReady { .. })));
    chief.stop().unwrap();
}

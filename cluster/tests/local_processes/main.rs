//! What belongs to worker processes alone.
#![cfg(target_os = "linux")]

#[path = "../support/deaths.rs"]
mod deaths;
mod refused;
mod restarts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::mpsc;
use std::time::Duration;

use forebear::time::sleep;
use forebear::timer::expires;
use forebear_cluster::engine::MAX_SLOTS;
use forebear_cluster::{
    ClusterCoordinator, ClusterCoordinatorBuilder, ClusterError, FailureKind, FetchError, LocalProcesses,
    ResourceFn, TaskFn, TaskOptions, Tasks, tasks, worker,
};

use crate::deaths::{AS_WORKER, EXIT, GATE, STUCK, is_dead, judged, lives, pid_in, until};

const PID: TaskFn<(), u32> = TaskFn::new("pid", |_, ()| Ok(process::id()));

/// Starts this program as the worker was started, and returns what it says.
const START_ANOTHER: TaskFn<(), String> = TaskFn::new("start another", |_, ()| {
    let output = Command::new(std::env::current_exe()?).args(AS_WORKER).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
});

/// Hangs in so many of its attempts, with a timer. Answers in which it did not.
const HANG: TaskFn<u32, u32> = TaskFn::new("hang", |ctx, times| {
    let hangs = ctx.attempt() <= times;
    let _timer = expires(if hangs { Duration::from_millis(10) } else { Duration::from_secs(1_000) })?;
    if hangs {
        loop {
            std::hint::spin_loop();
        }
    }
    Ok(ctx.attempt())
});

const LENGTH: TaskFn<Vec<u8>, usize> = TaskFn::new("length", |_, bytes| Ok(bytes.len()));

/// What a resource was made of.
const TABLE: ResourceFn<Vec<u8>, usize> = ResourceFn::new("table", |_, bytes| Ok(bytes.len()));

const BYTES: TaskFn<usize, Vec<u8>> = TaskFn::new("bytes", |_, n| Ok(vec![7; n]));

/// Writes so many lines.
const FLOOD: TaskFn<u32, u32> = TaskFn::new("flood", |_, lines| {
    (0..lines).for_each(|n| println!("line {n}"));
    Ok(lines)
});

/// Shuts all sockets of its process that it can reach by name.
const CLOSE: TaskFn<(), ()> = TaskFn::new("close", |_, ()| {
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let number: i32 = entry.file_name().to_string_lossy().parse()?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with("socket:") {
            let me =
                rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())?;
            let socket = rustix::process::pidfd_getfd(me, number, rustix::process::PidfdGetfdFlags::empty())?;
            let _ = std::os::unix::net::UnixStream::from(socket).shutdown(std::net::Shutdown::Both);
        }
    }
    Ok(())
});

fn known() -> Tasks {
    tasks![PID, STUCK, GATE, START_ANOTHER, BYTES, LENGTH, TABLE, HANG, EXIT, FLOOD, CLOSE]
}

/// What the workers run: this program, with this test alone.
#[test]
fn worker_process() {
    worker::entry(known());
    println!("this is no worker");
}

/// A worker of another version.
#[test]
fn strange_worker() {
    worker::entry(tasks![PID]);
}

/// A worker from before a change of a type.
#[test]
fn older_worker() {
    const OLD: TaskFn<(), u64> = TaskFn::new("pid", |_, ()| Ok(0));
    worker::entry(tasks![OLD, STUCK, GATE, START_ANOTHER, BYTES, LENGTH, TABLE, HANG, EXIT, FLOOD, CLOSE]);
}

/// A program before and after a type has exchanged two fields. Both types have one name, and in postcard each can be read as the other.
struct Before;
struct After;

const _: () = {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Size {
        height: u32,
        width: u32,
    }

    impl Before {
        fn known() -> Tasks {
            tasks![TaskFn::<Vec<Size>, u32>::new("rows", |_, all| Ok(all
                .iter()
                .map(|of| of.height - of.width)
                .sum()))]
        }
    }
};

const _: () = {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Size {
        width: u32,
        height: u32,
    }

    impl After {
        fn known() -> Tasks {
            tasks![TaskFn::<Vec<Size>, u32>::new("rows", |_, all| Ok(all
                .iter()
                .map(|of| of.height - of.width)
                .sum()))]
        }
    }
};

#[test]
fn worker_with_other_fields() {
    worker::entry(Before::known());
}

/// A worker that knows a task more.
#[test]
fn newer_worker() {
    worker::entry(known().with(TaskFn::<(), ()>::new("newest", |_, ()| Ok(()))));
}

/// A worker with two tasks of one name.
#[test]
fn worker_of_twins() {
    worker::entry(known().with(PID));
}

/// A worker that says who it is, and ends by itself, with nothing to do, when it finds a file of its name. It is given the directory as an argument, and has no tests of that name.
#[test]
fn crashing_worker() {
    let Some(dir) = std::env::args().find(|arg| arg.contains("crashing-")).map(PathBuf::from) else { return };
    std::thread::spawn(move || {
        let _ = deaths::say(&dir.join("begun"));
        while !dir.join(process::id().to_string()).exists() {
            sleep(Duration::from_millis(1)).unwrap();
        }
        process::exit(7);
    });
    worker::entry(known());
}

/// A coordinator that is killed.
#[test]
fn coordinator_process() {
    let Some(dir) = std::env::var_os("FOREBEAR_TEST_DIR").map(PathBuf::from) else { return };
    let store = dir.join("store");
    fs::create_dir(&store).unwrap();
    let cluster = start(engine(2).store_dir(store)).min_workers(2).start().unwrap();
    for n in 0..2 {
        cluster.schedule(&GATE, (dir.join(format!("begun {n}")), dir.join("never"))).unwrap();
    }
    cluster.join().unwrap();
}

fn engine(workers: usize) -> LocalProcesses {
    LocalProcesses::new(workers).args(AS_WORKER)
}

fn start(engine: LocalProcesses) -> ClusterCoordinatorBuilder {
    ClusterCoordinator::builder(engine).tasks(known())
}

#[test]
fn tasks_run_in_other_processes() {
    let cluster = start(engine(2)).min_workers(2).start().unwrap();
    let pids: Vec<u32> = (0..20).map(|_| cluster.schedule(&PID, ()).unwrap().fetch().unwrap()).collect();
    assert!(pids.iter().all(|pid| *pid != process::id()));
}

#[test]
fn a_worker_that_does_not_heed_a_cancel_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(engine(1).cancel_grace(Duration::from_millis(1))).start().unwrap();
    let value = cluster.schedule(&STUCK, dir.path().join("begun")).unwrap();
    until(|| dir.path().join("begun").exists());
    value.cancel();
    assert!(matches!(value.fetch(), Err(FetchError::Dropped)));
    until(|| cluster.workers().first().is_some_and(|worker| worker.id.incarnation() == 2));
    cluster.join().unwrap();
}

#[test]
fn a_task_that_is_not_over_when_its_timer_expires_ends_with_its_worker_and_runs_elsewhere() {
    let (said, heard) = mpsc::channel();
    let hook = move |text: &str| said.send(text.to_owned()).unwrap();
    let cluster = start(engine(2).on_warning(hook)).min_workers(2).start().unwrap();
    assert_eq!(cluster.schedule(&HANG, 1).unwrap().fetch().unwrap(), 2);
    cluster.join().unwrap();
    assert_eq!(cluster.metrics().returned, 1);
    // It is said, too, that the worker has ended.
    let warning = heard.iter().find(|warning| !warning.contains("has ended")).unwrap();
    assert!(warning.contains("of the worker `worker-"), "{warning}");
    assert!(warning.contains(file!()) && warning.ends_with("has expired"), "{warning}");
}

#[test]
fn a_task_that_is_not_over_when_its_timer_expires_is_not_tried_for_ever() {
    let cluster = start(engine(1).on_warning(|_| {})).start().unwrap();
    let options = TaskOptions::new().max_attempts(2);
    let value = cluster.schedule_with(&options, &HANG, u32::MAX).unwrap();
    let Err(FetchError::Task(failure)) = value.fetch() else { panic!("it never ends") };
    assert!(matches!(failure.kind(), FailureKind::Poisoned { attempts: 2 }), "{failure}");
    // The next worker of that name takes the next task.
    assert!(cluster.join().is_err());
    assert_eq!(cluster.schedule(&HANG, 0).unwrap().fetch().unwrap(), 1);
}

#[test]
fn without_a_server_of_timers_a_task_that_asks_for_one_fails() {
    let cluster = start(engine(1).no_timers()).start().unwrap();
    let Err(FetchError::Task(failure)) = cluster.schedule(&HANG, 0).unwrap().fetch() else {
        panic!("there is none")
    };
    assert!(failure.to_string().contains("configure"), "{failure}");
}

#[test]
fn a_worker_whose_task_is_not_over_when_its_time_and_the_grace_are_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(engine(1).cancel_grace(Duration::from_millis(1))).start().unwrap();
    let options = TaskOptions::new().timeout(Duration::from_millis(1));
    let value = cluster.schedule_with(&options, &STUCK, dir.path().join("begun")).unwrap();
    let Err(FetchError::Task(failure)) = value.fetch() else { panic!("its time is over") };
    assert!(matches!(failure.kind(), FailureKind::TimedOut), "{failure}");
    assert!(cluster.join().is_err());
    assert_eq!(cluster.schedule(&HANG, 0).unwrap().fetch().unwrap(), 1);
}

#[test]
fn r66_a_clone_of_an_engine_that_runs_is_refused() {
    let engine = engine(1);
    let first = start(engine.clone()).start().unwrap();
    let second = start(engine.clone()).start();
    assert!(matches!(second, Err(ClusterError::Start { .. })), "{second:?}");
    drop(first);
    let again = start(engine).start().unwrap();
    assert_ne!(again.schedule(&PID, ()).unwrap().fetch().unwrap(), process::id());
}

#[test]
fn tasks_beside_the_one_that_kills_their_worker_are_not_judged_before_they_have_run_alone() {
    let cluster = start(engine(1).slots(4).on_warning(|_| {})).max_attempts(2).start().unwrap();
    judged::neighbours_are_judged_by_a_death_of_their_own(&cluster);
}

#[test]
fn a_kill_by_the_program_is_no_task_s_fault() {
    let engine = engine(1).on_warning(|_| {});
    let control = engine.control();
    let cluster = start(engine).max_attempts(1).start().unwrap();
    judged::what_the_program_kills_is_no_death(&cluster, || {
        control.kill("worker-0");
        control.add("worker-0").unwrap();
    });
}

/// Its worker dies more often than it may with nothing to do.
#[test]
fn a_task_that_ends_its_process_is_judged_by_its_own_limit_and_no_worker_is_given_up_for_it() {
    let cluster = start(engine(1).restarts(1).on_warning(|_| {})).max_attempts(5).start().unwrap();
    let value = cluster.schedule_with(&TaskOptions::new().raise(false), &EXIT, 3).unwrap();
    let Err(FetchError::Task(failure)) = value.fetch() else { panic!("it has ended its process") };
    assert_eq!(*failure.kind(), FailureKind::Poisoned { attempts: 5 });
    cluster.schedule(&PID, ()).unwrap().fetch().unwrap();
}

#[test]
fn a_task_that_ends_its_process_is_not_tried_for_ever_and_others_go_on() {
    let cluster = start(engine(1)).max_attempts(2).start().unwrap();
    judged::a_task_that_ends_its_process_fails(&cluster, || {
        _ = cluster.schedule(&PID, ()).unwrap().fetch().unwrap();
    });
}

#[test]
fn a_task_that_floods_standard_output_changes_nothing() {
    let engine = engine(1).program("sh").args(
        ["-c", "exec \"$0\" \"$@\" >/dev/null"].map(String::from).into_iter().chain(
            [std::env::current_exe().unwrap().to_str().unwrap().to_owned()]
                .into_iter()
                .chain(AS_WORKER.map(String::from)),
        ),
    );
    let cluster = start(engine).start().unwrap();
    assert_eq!(cluster.schedule(&FLOOD, 100_000).unwrap().fetch().unwrap(), 100_000);
}

/// Its socket is among them: so that is its death.
#[test]
fn a_task_that_closes_what_its_process_has_open_is_the_end_of_its_worker() {
    let cluster = start(engine(1)).max_attempts(2).start().unwrap();
    let value = cluster.schedule_with(&TaskOptions::new().raise(false), &CLOSE, ()).unwrap();
    let Err(FetchError::Task(failure)) = value.fetch() else { panic!("nobody hears of its end") };
    assert_eq!(*failure.kind(), FailureKind::Poisoned { attempts: 2 });
    cluster.schedule(&PID, ()).unwrap().fetch().unwrap();
}

#[test]
fn sigterm_has_a_worker_end_what_it_has_and_leave() {
    lives::by_sigterm_one_ends_what_it_has_and_leaves(&start(engine(1)).start().unwrap(), "worker-0");
}

#[test]
fn workers_end_with_their_coordinator_however_that_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = Command::new(std::env::current_exe().unwrap())
        .args(["coordinator_process", "--exact", "--nocapture"])
        .env("FOREBEAR_TEST_DIR", dir.path())
        .spawn()
        .unwrap();
    let pids = [0, 1].map(|n| pid_in(&dir.path().join(format!("begun {n}"))));
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    pids.into_iter().for_each(|pid| until(|| is_dead(pid)));
    let left = fs::read_dir(dir.path().join("store")).unwrap().count();
    assert_eq!(left, 0, "the last worker removes the directory of the objects");
}

/// The files of the objects below this directory.
fn objects(below: &Path) -> usize {
    let job = fs::read_dir(below).unwrap().next().unwrap().unwrap().path();
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    let files = fs::read_dir(job).unwrap().map(|entry| name(&entry.unwrap()));
    files.filter(|name| name != "lock" && !name.starts_with("timers")).count()
}

#[test]
fn large_results_are_files_and_are_dropped_with_their_handles_and_the_directory_with_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(engine(1).store_dir(dir.path())).start().unwrap();
    let value = cluster.schedule(&BYTES, 1 << 20).unwrap();
    let stored = value.stored().unwrap();
    assert_eq!(objects(dir.path()), 1);
    drop(value);
    assert_eq!(objects(dir.path()), 1, "the token holds it");
    drop(stored);
    until(|| objects(dir.path()) == 0);
    // Nobody wants this one. Its file is deleted beside the join.
    drop(cluster.schedule(&BYTES, 1 << 20).unwrap());
    cluster.join().unwrap();
    until(|| objects(dir.path()) == 0);
    drop(cluster);
    until(|| fs::read_dir(dir.path()).unwrap().count() == 0);
}

#[test]
fn a_result_that_cannot_be_stored_is_a_failure_that_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(engine(1).store_dir(dir.path())).start().unwrap();
    fs::remove_dir_all(fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path()).unwrap();
    cluster.schedule(&BYTES, 1 << 20).unwrap();
    let Err(ClusterError::Task(failure)) = cluster.join() else { panic!("it cannot be stored") };
    assert!(matches!(failure.kind(), FailureKind::Store { .. }), "{failure}");
    let missing = start(engine(1).store_dir("/no/such/directory")).start().unwrap_err();
    assert!(missing.to_string().contains("/no/such/directory"), "{missing}");
}

#[test]
fn arguments_that_no_message_takes_are_refused_with_size_and_limit_and_no_worker_dies_of_them() {
    const LIMIT: usize = 1 << 20;
    let cluster = start(engine(1).args_limit(LIMIT)).start().unwrap();
    let pid = cluster.schedule(&PID, ()).unwrap().fetch().unwrap();
    let long = || vec![7; 2 * LIMIT];
    let says = |error: ClusterError| {
        assert!(error.to_string().contains("a stored value"), "{error}");
        matches!(error, ClusterError::TooLarge { bytes, limit: LIMIT, .. } if bytes > 2 * LIMIT)
    };
    let scheduled =
        cluster.schedule(&LENGTH, long()).and_then(|value| value.fetch().map_err(ClusterError::Fetch));
    assert!(says(scheduled.unwrap_err()));
    assert!(says(cluster.per_worker(&TABLE, long()).map(drop).unwrap_err()));
    // The length takes three bytes.
    assert_eq!(cluster.schedule(&LENGTH, vec![7; LIMIT - 3]).unwrap().fetch().unwrap(), LIMIT - 3);
    // A result goes by the store.
    assert_eq!(cluster.schedule(&BYTES, 2 * LIMIT).unwrap().fetch().unwrap(), long());
    assert_eq!(cluster.schedule(&PID, ()).unwrap().fetch().unwrap(), pid);
}

#[test]
fn what_a_worker_starts_is_no_worker() {
    let cluster = start(engine(1)).start().unwrap();
    let said = cluster.schedule(&START_ANOTHER, ()).unwrap().fetch().unwrap();
    assert!(said.contains("this is no worker"), "{said}");
}

#[test]
fn a_worker_of_more_slots_than_there_may_be_has_the_most() {
    let cluster = start(engine(1).slots(usize::MAX)).start().unwrap();
    assert_ne!(cluster.schedule(&PID, ()).unwrap().fetch().unwrap(), process::id());
    assert_eq!(cluster.workers()[0].slots, MAX_SLOTS);
}

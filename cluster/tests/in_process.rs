//! What belongs to the engine in this process alone.

#[path = "support/until.rs"]
mod until;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebear::{Error, Runtime};
use forebear_cluster::engine::{MAX_SLOTS, WorkerState};
use forebear_cluster::{
    ClusterCoordinator, ClusterError, FailureKind, InProcess, PerWorker, ResourceFn, TaskFn, TaskOptions,
    tasks,
};

use crate::until::until;

const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
const RUNTIME: TaskFn<(), usize> = TaskFn::new("runtime", |_, ()| Ok(Runtime::current().workers()));
const NEVER: TaskFn<(), ()> = TaskFn::new("never", |_, ()| Ok(forebear::time::sleep(Duration::MAX)?));

fn start(engine: InProcess) -> ClusterCoordinator {
    ClusterCoordinator::builder(engine).tasks(tasks![NEXT, RUNTIME, NEVER]).start().unwrap()
}

#[test]
fn with_everything_imported_a_value_is_fetched_as_often_as_one_likes() {
    #[allow(clippy::wildcard_imports, reason = "what a user may write")]
    use forebear_cluster::*;

    let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEXT]).start().unwrap();
    let value = cluster.schedule(&NEXT, 1).unwrap();
    assert_eq!((value.fetch().unwrap(), value.fetch().unwrap()), (2, 2));
}

#[test]
fn a_value_in_a_line_of_a_log_has_its_size_and_not_its_bytes() {
    const ZEROS: TaskFn<usize, Vec<u8>> = TaskFn::new("zeros", |_, n| Ok(vec![0; n]));
    let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![ZEROS]).start().unwrap();
    let value = cluster.schedule(&ZEROS, 200 << 10).unwrap();
    cluster.join().unwrap();
    let line = format!("{value:?}");
    assert!(line.contains("Done { bytes: 20480") && line.len() < 100, "{line}");
}

#[test]
fn tasks_run_on_the_runtime_that_was_given() {
    let runtime = Runtime::builder().workers(3).build().unwrap();
    let cluster = start(InProcess::new(1).runtime(&runtime));
    assert_eq!(cluster.schedule(&RUNTIME, ()).unwrap().fetch().unwrap(), 3);
}

#[test]
fn a_cluster_outlives_the_handle_of_its_runtime_and_ends_with_its_own() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let cluster = start(InProcess::new(2).runtime(&runtime));
    drop(runtime);
    assert_eq!(cluster.schedule(&NEXT, 1).unwrap().fetch().unwrap(), 2);
    let value = cluster.schedule(&NEVER, ()).unwrap();
    drop(cluster);
    assert!(value.fetch().is_err());
}

#[test]
fn one_thread_is_enough_for_tasks_and_for_who_waits_for_them() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let sum = runtime.run(|| {
        let cluster = start(InProcess::new(2));
        let values: Vec<_> = (0..50).map(|n| cluster.schedule(&NEXT, n).unwrap()).collect();
        cluster.join().unwrap();
        cluster.fetch(values).unwrap().iter().sum::<u32>()
    });
    assert_eq!(sum, (1..=50).sum());
}

#[test]
fn tasks_of_a_runtime_that_is_shut_down_fail_and_nobody_waits_for_ever() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let cluster = start(InProcess::new(1).runtime(&runtime));
    let value = cluster.schedule(&NEVER, ()).unwrap();
    runtime.shutdown(Duration::from_secs(100)).unwrap();
    assert!(value.fetch().is_err());
    assert!(matches!(cluster.join(), Err(ClusterError::Task(_))));
    assert!(cluster.schedule(&NEXT, 1).unwrap().fetch().is_err());
    assert!(cluster.shutdown().is_ok());
}

#[test]
fn a_worker_runs_as_many_tasks_as_it_has_slots() {
    let cluster = start(InProcess::new(1).slots(3));
    let values: Vec<_> = (0..5).map(|_| cluster.schedule(&NEVER, ()).unwrap()).collect();
    let counts = || (cluster.metrics().running, cluster.metrics().queued);
    until(|| counts() == (3, 2));
    values[0].cancel();
    assert!(values[0].fetch().is_err());
    until(|| counts() == (3, 1));
}

#[test]
fn r66_a_clone_of_an_engine_that_runs_is_refused() {
    let engine = InProcess::new(1);
    let first = start(engine.clone());
    let second = ClusterCoordinator::builder(engine.clone()).start();
    assert!(matches!(second, Err(ClusterError::Start { .. })));
    assert_eq!(first.schedule(&NEXT, 1).unwrap().fetch().unwrap(), 2);
    drop(first);
    start(engine);
}

#[test]
fn time_counts_from_when_a_task_was_scheduled() {
    let engine = InProcess::new(0);
    let control = engine.control();
    let cluster = ClusterCoordinator::builder(engine).tasks(tasks![NEXT]).min_workers(0).start().unwrap();
    let late = TaskOptions::new().timeout(Duration::ZERO);
    cluster.schedule_with(&late, &NEXT, 1).unwrap();
    control.add("late").unwrap();
    let Err(ClusterError::Task(failure)) = cluster.join() else { panic!("its time is over") };
    assert_eq!(*failure.kind(), FailureKind::TimedOut);
}

#[test]
fn arguments_that_the_queue_cannot_hold_are_refused() {
    const TEXT: TaskFn<String, ()> = TaskFn::new("text", |_, _| Ok(()));
    let builder = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![TEXT]);
    let cluster = builder.queue_limit(10, 100).start().unwrap();
    let refused = cluster.schedule(&TEXT, "x".repeat(200));
    assert!(matches!(refused, Err(ClusterError::TooLarge { bytes: 202, limit: 100, .. })));
    cluster.schedule(&TEXT, "x".repeat(90)).unwrap().fetch().unwrap();
}

#[test]
fn an_error_waits_for_what_still_runs_on_a_worker_that_is_gone() {
    static STEP: AtomicUsize = AtomicUsize::new(0);
    static GATE: AtomicUsize = AtomicUsize::new(0);
    const FAILS: TaskFn<(), ()> = TaskFn::new("fails", |_, ()| Err(Error::other("no")));
    const LINGERS: TaskFn<(), ()> = TaskFn::new("lingers", |_, ()| {
        STEP.store(1, Ordering::SeqCst);
        let _ = forebear::time::sleep(Duration::MAX);
        STEP.store(2, Ordering::SeqCst);
        forebear::shield(|| until(|| GATE.load(Ordering::SeqCst) > 0));
        GATE.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let engine = InProcess::new(1);
    let control = engine.control();
    let cluster = ClusterCoordinator::builder(engine).tasks(tasks![FAILS, LINGERS]).start().unwrap();
    cluster.schedule(&LINGERS, ()).unwrap();
    until(|| STEP.load(Ordering::SeqCst) == 1);
    control.add("second").unwrap();
    cluster.schedule(&FAILS, ()).unwrap();
    until(|| STEP.load(Ordering::SeqCst) == 2);
    control.fail("worker-0");
    until(|| cluster.workers().iter().any(|worker| worker.state == WorkerState::Gone));
    assert!(!cluster.done().unwrap(), "the task still runs");
    GATE.fetch_add(1, Ordering::SeqCst);
    assert!(matches!(cluster.join(), Err(ClusterError::Task(_))));
    assert_eq!(GATE.load(Ordering::SeqCst), 2);
}

#[test]
fn what_is_queued_behind_a_failure_never_starts() {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    const FAILS: TaskFn<(), ()> = TaskFn::new("fails", |_, ()| Err(Error::other("no")));
    const STARTS: TaskFn<(), ()> = TaskFn::new("starts", |_, ()| {
        STARTED.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let builder = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![FAILS, STARTS, NEVER]);
    let cluster = builder.start().unwrap();
    for _ in 0..100 {
        let holds = cluster.schedule(&NEVER, ()).unwrap();
        cluster.schedule(&FAILS, ()).unwrap();
        let queued = [(); 3].map(|()| cluster.schedule(&STARTS, ()).unwrap());
        holds.cancel();
        assert!(matches!(cluster.join(), Err(ClusterError::Task(_))));
        assert!(queued.iter().all(|value| value.fetch().is_err()));
    }
    assert_eq!(STARTED.load(Ordering::Relaxed), 0);
}

/// A task may schedule: it runs in this process.
#[test]
fn a_task_may_schedule_and_wait_for_what_it_has_scheduled() {
    static CLUSTER: Mutex<Option<ClusterCoordinator>> = Mutex::new(None);
    const OUTER: TaskFn<u32, u32> = TaskFn::new("outer", |_, n| {
        let cluster = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let cluster = cluster.ok_or_else(|| Error::other("no cluster"))?;
        Ok(cluster.schedule(&NEXT, n)?.fetch()? + cluster.schedule(&NEXT, n)?.fetch()?)
    });
    let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![OUTER, NEXT]).start().unwrap();
    *CLUSTER.lock().unwrap() = Some(cluster.clone());
    let value = cluster.schedule(&OUTER, 1).unwrap();
    cluster.join().unwrap();
    assert_eq!(value.fetch().unwrap(), 4);
    CLUSTER.lock().unwrap().take();
}

/// A destructor of a resource may panic, wait, and schedule nothing any more.
#[test]
fn a_destructor_of_a_resource_may_panic_and_wait() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Hostile(bool);
    impl Drop for Hostile {
        fn drop(&mut self) {
            let _ = forebear::time::sleep(Duration::from_millis(1));
            DROPPED.fetch_add(1, Ordering::Relaxed);
            assert!(!self.0, "as it is meant to");
        }
    }
    const HOSTILE: ResourceFn<bool, Hostile> = ResourceFn::new("hostile", |_, panics| Ok(Hostile(panics)));
    const USES: TaskFn<PerWorker<Hostile>, ()> =
        TaskFn::new("uses", |ctx, resource| ctx.local(&resource).map(drop));
    let engine = InProcess::new(1);
    let control = engine.control();
    let cluster = ClusterCoordinator::builder(engine).tasks(tasks![HOSTILE, USES, NEXT]).start().unwrap();
    for panics in [false, true] {
        let resource = cluster.per_worker(&HOSTILE, panics).unwrap();
        cluster.schedule(&USES, resource.clone()).unwrap().fetch().unwrap();
        control.add("worker-0").unwrap(); // the part of the one before goes
        cluster.schedule(&USES, resource).unwrap().fetch().unwrap();
    }
    until(|| DROPPED.load(Ordering::Relaxed) == 4);
    assert_eq!(cluster.schedule(&NEXT, 1).unwrap().fetch().unwrap(), 2);
    assert!(cluster.workers().iter().all(|worker| worker.state != WorkerState::Gone));
}

#[test]
fn a_worker_of_more_slots_than_there_may_be_has_the_most() {
    let cluster = start(InProcess::new(1).slots(usize::MAX));
    assert_eq!(cluster.schedule(&NEXT, 1).unwrap().fetch().unwrap(), 2);
    assert_eq!(cluster.workers()[0].slots, MAX_SLOTS);
}

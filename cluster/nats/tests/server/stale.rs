//! What workers put into the store of large values after the coordinator has given their tasks to others.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebear_cluster::TaskFn;
use forebear_cluster::engine::WorkerState;

use crate::dying::say;
use crate::messages::{add_chunk, chunks, is_chunk, objects};
use crate::support::process::Process;
use crate::support::sieve::Sieve;
use crate::support::{job, shared_port, shared_url, until};
use crate::{BYTES, LEASE, LONG, engine, files, pid_in, start, state};

/// Writes its process id into the first file, waits for the second one, and returns so many bytes.
pub(crate) const HOARD: TaskFn<(PathBuf, PathBuf, usize), Vec<u8>> =
    TaskFn::new("hoard", |_, (begun, gate, n)| {
        say(&begun)?;
        while !gate.exists() {
            forebear::time::sleep(Duration::from_millis(1))?;
        }
        Ok(vec![7; n])
    });

/// True when the coordinator, which is behind that sieve, has deleted what one attempt has put: when it forgets the attempt, when the ledger does so, and some time after. Each time it begins with a list of
/// the chunks, and asks for an entry if there are none.
fn deletions(sieve: &Sieve, job: &str) -> Arc<AtomicBool> {
    let (over, asks, mut looks) = (Arc::new(AtomicBool::new(false)), format!("STREAM.INFO.OBJ_FB_{job}_"), 0);
    let done = over.clone();
    sieve.lose(move |message| {
        if message.contains(&asks) {
            looks += u32::from(message.contains(".C.") && message.contains("\"offset\":0,"));
            done.fetch_or(looks >= 3 && message.contains(".M."), Ordering::Relaxed);
        }
        false
    });
    over
}

/// A worker is cut off while it puts a result, and a chunk of that arrives when the coordinator has deleted what was there.
#[test]
#[ignore = "needs a server: ci/nats"]
fn what_a_worker_that_was_cut_off_puts_too_late_is_purged_when_it_joins_anew() {
    let (job, [near, far]) = (job(), [(); 2].map(|()| Sieve::before(shared_port())));
    let deleted = deletions(&near, &job);
    let cluster = start(engine(&near.url(), &job, LEASE)).min_workers(0).start().unwrap();
    let _worker = Process::worker(&far.url(), &job, "far");
    until(|| state(&cluster, "far") == Some(WorkerState::Ready));
    let (its, mut seen, cut) = (job.clone(), 0, Arc::new(AtomicBool::new(false)));
    let is_cut = cut.clone();
    far.lose(move |message| {
        seen += usize::from(is_chunk(message, &its));
        is_cut.fetch_or(seen > 2, Ordering::Relaxed);
        seen > 2
    });
    let value = cluster.schedule(&BYTES, 1 << 20).unwrap();
    until(|| cut.load(Ordering::Relaxed));
    far.keep(|_| true);
    assert_eq!(objects(&shared_url(), &job), 1);
    let subject = chunks(&shared_url(), &job).remove(0);
    until(|| deleted.load(Ordering::Relaxed) && objects(&shared_url(), &job) == 0);
    assert_eq!(cluster.metrics().returned, 1);
    add_chunk(subject.clone());
    assert_eq!(objects(&shared_url(), &job), 1);
    far.lose(|_| false);
    far.release();
    // The second attempt puts another object.
    let (attempt, _) = subject.rsplit_once('.').unwrap();
    until(|| !chunks(&shared_url(), &job).iter().any(|subject| subject.starts_with(attempt)));
    assert_eq!(value.fetch().unwrap(), vec![7; 1 << 20]);
    assert_eq!(cluster.workers()[0].id.incarnation(), 2);
    drop(value);
    until(|| objects(&shared_url(), &job) == 0);
    cluster.join().unwrap();
}

/// The coordinator hears nothing of a worker for a lease, and the worker does not hear that it is gone. Its result is there as a whole, and its record is refused.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_result_that_is_put_too_late_is_purged_when_its_record_is_refused() {
    let (job, [near, far], (_dir, begun, gate)) =
        (job(), [(); 2].map(|()| Sieve::before(shared_port())), files());
    let deleted = deletions(&near, &job);
    let engine = engine(&near.url(), &job, LEASE);
    let control = engine.control();
    let cluster = start(engine).min_workers(0).start().unwrap();
    let _worker = Process::worker(&far.url(), &job, "far");
    let value = cluster.schedule(&HOARD, (begun.clone(), gate.clone(), 1 << 20)).unwrap();
    pid_in(&begun);
    let [up, down] = ["up", "down"].map(|way| format!("fb.{job}.{way}"));
    far.keep(move |message| message.contains(&down));
    far.lose(move |message| message.contains(&up));
    until(|| deleted.load(Ordering::Relaxed));
    assert_eq!((cluster.metrics().returned, control.dropped()), (1, 0));
    fs::write(gate, "").unwrap();
    until(|| control.dropped() > 0);
    until(|| objects(&shared_url(), &job) == 0);
    assert_eq!(cluster.metrics().done, 0);
    far.lose(|_| false);
    far.release();
    assert_eq!(value.fetch().unwrap(), vec![7; 1 << 20]);
    cluster.join().unwrap();
}

/// The task is cancelled while its worker puts the result, and the server does not hear that the worker purges what it has put.
#[test]
#[ignore = "needs a server: ci/nats"]
fn what_a_cancelled_task_has_put_is_purged_by_its_worker_when_the_server_hears_it() {
    let (job, sieve) = (job(), Sieve::before(shared_port()));
    let cluster = start(engine(&shared_url(), &job, LONG)).min_workers(0).start().unwrap();
    let _worker = Process::worker(&sieve.url(), &job, "far");
    until(|| state(&cluster, "far") == Some(WorkerState::Ready));
    let (its, mut seen) = (job.clone(), 0);
    let (purged, said) = (Arc::new(AtomicBool::new(false)), format!(".OBJ_FB_{job}_"));
    let is_purged = purged.clone();
    sieve.lose(move |message| {
        let is_put = is_chunk(message, &its);
        seen += usize::from(is_put);
        is_purged.fetch_or(message.contains(&format!("PURGE{said}")), Ordering::Relaxed);
        is_put && seen > 2 || message.contains(&said)
    });
    let value = cluster.schedule(&BYTES, 1 << 20).unwrap();
    until(|| objects(&shared_url(), &job) == 1);
    value.cancel();
    until(|| purged.load(Ordering::Relaxed));
    sieve.lose(|_| false);
    until(|| objects(&shared_url(), &job) == 0);
    cluster.join().unwrap();
}

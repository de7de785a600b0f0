//! Event files: `ci/tensorboard` has the real TensorBoard read them; this is about the files and the writer's manners.

mod records;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::sync::Arc;

use forebear::{CancelReason, Runtime};
use forebear_supervise::{EventError, EventWriter, SessionLog, Summary};
use records::{holds, records};
use support::{Come, Watchdog};
use tempfile::TempDir;

#[test]
fn a_file_begins_with_its_version_and_holds_what_was_written_in_order() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let events = EventWriter::create(dir.path()).unwrap();
    events.session(Some(5), SessionLog::Start).unwrap();
    (0..10_000).for_each(|step| events.write(step, Summary::new().scalar("loss", 0.5)).unwrap());
    events.session(Some(9_999), SessionLog::Checkpoint("checkpoint-9".into())).unwrap();
    events.session(None, SessionLog::Stop).unwrap();
    let path = events.path().to_owned();
    events.close().unwrap();
    let records = records(&path);
    assert_eq!(records.len(), 1 + 1 + 10_000 + 2);
    assert!(holds(&records[0], "brain.Event:2") && holds(&records[10_002], "checkpoint-9"));
    // Step, after the time: field 2, a varint.
    let steps: Vec<u64> = records[2..10_002]
        .iter()
        .map(|record| {
            assert_eq!(record[9], 0x10);
            u64::from(record[10] & 0x7f) | if record[10] & 0x80 != 0 { u64::from(record[11]) << 7 } else { 0 }
        })
        .collect();
    assert!(
        steps.iter().copied().eq((0..10_000).map(|step| step & 0x7fff)),
        "in the order in which they were written"
    );
}

#[test]
fn each_writer_has_a_file_of_its_own_also_within_one_second() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let writers: Vec<_> = (0..50).map(|_| EventWriter::create(dir.path()).unwrap()).collect();
    let mut paths: Vec<_> = writers.iter().map(|writer| writer.path().to_owned()).collect();
    writers.into_iter().for_each(|writer| writer.close().unwrap());
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 50);
    assert!(paths.iter().all(|path| records(path).len() == 1));
}

/// TensorBoard reads the files of a directory in the order of their names, and goes back to none.
#[test]
fn a_file_that_is_made_after_the_clock_was_set_back_stands_after_the_others() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let mut paths = vec![dir.path().join("events.out.tfevents.4000000000.host.1.0")];
    std::fs::write(&paths[0], "").unwrap();
    for _ in 0..12 {
        let events = EventWriter::create(dir.path()).unwrap();
        paths.push(events.path().to_owned());
        events.close().unwrap();
    }
    assert!(paths.is_sorted(), "{paths:#?}");
}

#[test]
fn without_a_close_what_was_written_comes_into_the_file() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let events = EventWriter::create(dir.path()).unwrap();
    let path = events.path().to_owned();
    (0..100).for_each(|step| events.write(step, Summary::new().scalar("x", 1.0)).unwrap());
    drop(events);
    support::until(|| records(&path).len() == 101);
}

#[test]
fn what_the_disk_refuses_is_told_to_who_writes_next_and_to_who_flushes() {
    const TEST: &str = "what_the_disk_refuses_is_told_to_who_writes_next_and_to_who_flushes";
    let _dog = Watchdog::new("");
    if !support::is_child(TEST) {
        let dir = TempDir::new().unwrap();
        let mark = ("DIRECTORY", dir.path().to_str().unwrap());
        let (ok, told) = support::again_in_child(TEST, mark, "trap '' XFSZ; ulimit -f 64;");
        assert!(ok, "{told}");
        return;
    }
    let events = EventWriter::create(std::env::var_os("DIRECTORY").unwrap()).unwrap();
    let text = "x".repeat(100_000);
    let _ = events.write(1, Summary::new().text("much", &text));
    let flushed = events.flush().unwrap_err();
    let written = events.write(2, Summary::new()).unwrap_err();
    for error in [flushed, written] {
        let EventError::Io { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.raw_os_error(), Some(rustix::io::Errno::FBIG.raw_os_error()), "{source}");
    }
}

#[test]
fn a_cancelled_writer_is_told_so() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let events = Arc::new(EventWriter::create(dir.path()).unwrap());
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let writes = events.clone();
    let cancelled = runtime.spawn(move || {
        forebear::Request::current().unwrap().abort(CancelReason::Asked);
        tell.send(matches!(writes.flush(), Err(EventError::Cancelled))).unwrap();
    });
    assert!(told.come().unwrap());
    let _ = cancelled.wait();
    events.flush().unwrap();
}

#[test]
fn a_histogram_of_anything_is_well_formed() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let events = EventWriter::create(dir.path()).unwrap();
    let strange = [
        vec![],
        vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY],
        vec![0.0; 5],
        vec![f64::MIN, f64::MAX],
        vec![1.0, f64::NAN, 2.0],
        vec![f64::MIN_POSITIVE, 0.0],
    ];
    for values in &strange {
        events.write(0, Summary::new().histogram("strange", values)).unwrap();
    }
    let path = events.path().to_owned();
    events.close().unwrap();
    assert_eq!(records(&path).len(), 1 + strange.len());
}

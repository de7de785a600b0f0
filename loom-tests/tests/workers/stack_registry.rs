//! A reader that has an address, against the thread or runtime that frees what lies there: `StackRegistry`, as it ships.
//!
//! A record is a cell that loom watches: readers read it, and its owner writes it after it was dismissed, as if it were unmapped.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | the reader releases the lock before it reads | the record is unmapped under it | `registered_is_read_after_the_unlock` |
//! | the reader does not look whether the record is registered | it reads what has been unmapped | `registered_is_read_without_a_lookup` |
//! | a runtime, or a thread, is not dismissed while a reader has the lock | the record is unmapped under the reader | `runtime_unregistered_unless_locked`, `thread_unregistered_unless_locked` |
#![cfg(loom)]

use std::ptr::NonNull;

use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_loom_tests::{Answers, exhaust, explore};
use forebear_runtime::model::stack_registry::{StackRegistry, Stacks};

/// What a stack's record is.
type Record = UnsafeCell<bool>;

/// A runtime that has one stack, and a request on it.
struct Runtime {
    record: Record,
    /// The request has ended.
    over: AtomicBool,
}

// SAFETY: that is what the models ask: loom sees every access of the record.
unsafe impl Sync for Runtime {}
// SAFETY: as above.
unsafe impl Send for Runtime {}

// SAFETY: the record lies in it.
unsafe impl Stacks<Record> for Runtime {
    fn have(&self, record: NonNull<Record>) -> bool {
        record == NonNull::from(&self.record)
    }
}

struct Process {
    stack_registry: StackRegistry<Record, Runtime>,
    runtime: Runtime,
}

impl Process {
    fn new() -> Arc<Process> {
        let runtime = Runtime { record: UnsafeCell::new(true), over: AtomicBool::new(false) };
        Arc::new(Process { stack_registry: StackRegistry::new(), runtime })
    }

    fn record(&self) -> NonNull<Record> {
        NonNull::from(&self.runtime.record)
    }

    /// As `AnyRequest::state` reads: the request first, and its stack if the request is not over.
    fn read(&self, answers: &Answers) {
        if self.runtime.over.load(Ordering::Acquire) {
            answers.note("over");
            return;
        }
        let mut found = false;
        self.stack_registry.with(self.record(), |record, _| {
            // Loom switches threads here, while the lock is held.
            thread::yield_now();
            // SAFETY: that is what the models ask.
            record.with(|record| assert!(unsafe { *record }, "the record has been unmapped"));
            found = true;
        });
        answers.note(if found { "read" } else { "unmapped" });
    }

    fn unmap(&self) {
        // SAFETY: that is what the models ask.
        self.runtime.record.with_mut(|record| unsafe { *record = false });
    }

    /// As `Shared::close`.
    fn close(&self) {
        self.runtime.over.store(true, Ordering::Release);
        self.stack_registry.unregister_runtime(NonNull::from(&self.runtime));
        self.unmap();
    }

    /// As a thread exits that ran a request.
    fn exit(&self) {
        self.runtime.over.store(true, Ordering::Release);
        self.stack_registry.unregister_thread(self.record());
        self.unmap();
    }
}

const ANSWERS: [&str; 3] = ["over", "read", "unmapped"];

/// Is a stack mapped for as long as a thread reads it that is no worker of its runtime?
#[test]
fn a_reader_keeps_the_stack_of_another_runtime_mapped_or_does_not_read_it() {
    exhaust(&ANSWERS, |answers| {
        let process = Process::new();
        // SAFETY: EL1: it is dismissed before it is unmapped.
        unsafe { process.stack_registry.register_runtime(NonNull::from(&process.runtime)) };
        let closing = {
            let process = process.clone();
            thread::spawn(move || process.close())
        };
        process.read(answers);
        closing.join().unwrap();
    });
}

/// Is the record of a thread there for as long as another thread reads it?
#[test]
fn a_reader_keeps_the_record_of_a_thread_or_does_not_read_it() {
    exhaust(&ANSWERS, |answers| {
        let process = Process::new();
        // SAFETY: EL1: it is dismissed before it is unmapped.
        unsafe { process.stack_registry.register_thread(process.record()) };
        let exiting = {
            let process = process.clone();
            thread::spawn(move || process.exit())
        };
        process.read(answers);
        exiting.join().unwrap();
    });
}

/// The same with two readers.
#[test]
fn two_readers_keep_the_stack_of_another_runtime_mapped() {
    explore(&ANSWERS, |answers| {
        let process = Process::new();
        // SAFETY: EL1: it is dismissed before it is unmapped.
        unsafe { process.stack_registry.register_runtime(NonNull::from(&process.runtime)) };
        let reader = {
            let (process, answers) = (process.clone(), answers.clone());
            thread::spawn(move || process.read(&answers))
        };
        let closing = {
            let process = process.clone();
            thread::spawn(move || process.close())
        };
        process.read(answers);
        reader.join().unwrap();
        closing.join().unwrap();
    });
}

//! The engine, with a supply that is not a queue: named wakes, ticks, a stop that has to wait.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Gate, Notes, until};
use forebear_pool::{Affinity, Engine, Options, Signals, StartError, Supply, Worker, WorkerState};

/// One mailbox per worker, and a few switches.
struct Mail {
    signals: Signals,
    boxes: Vec<Mutex<Vec<u32>>>,
    may_stop: AtomicBool,
    tick: Option<Duration>,
    sleeps: AtomicUsize,
    wakes: AtomicUsize,
    read: Notes<(usize, u32)>,
}

impl Mail {
    fn new(workers: usize) -> Mail {
        Mail {
            signals: Signals::new(workers),
            boxes: (0..workers).map(|_| Mutex::default()).collect(),
            may_stop: AtomicBool::new(true),
            tick: None,
            sleeps: AtomicUsize::new(0),
            wakes: AtomicUsize::new(0),
            read: Notes::new(),
        }
    }

    fn send(&self, worker: usize, letter: u32) {
        self.boxes[worker].lock().unwrap().push(letter);
        self.signals.wake(worker);
    }
}

impl Supply for Mail {
    type Task = u32;

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, worker: usize) -> Option<u32> {
        self.boxes[worker].lock().unwrap().pop()
    }

    fn steal(&self, _: usize) -> Option<u32> {
        None
    }

    fn best(&self, _: usize) -> u64 {
        u64::MAX
    }

    fn before_sleep(&self, _: usize) -> Option<Duration> {
        self.sleeps.fetch_add(1, SeqCst);
        self.tick
    }

    fn after_sleep(&self, _: usize) {
        self.wakes.fetch_add(1, SeqCst);
    }

    fn may_stop(&self, _: usize) -> bool {
        self.may_stop.load(SeqCst)
    }
}

fn read_mail(worker: &Worker<Mail>) {
    while let Some(letter) = worker.idle() {
        worker.supply().read.add((worker.index(), letter));
    }
}

#[test]
fn a_named_wake_reaches_that_worker_however_it_sleeps() {
    let engine = Engine::start(Options::new(3), Arc::new(Mail::new(3)), read_mail).unwrap();
    let mail = Arc::clone(engine.supply());
    for round in 0..1_000_u32 {
        if round % 8 == 0 {
            until("all sleep", || mail.signals.sleeping() == 3);
        }
        let worker = round as usize % 3;
        mail.send(worker, round);
        assert_eq!(mail.read.wait_for(round as usize + 1)[round as usize], (worker, round));
    }
    engine.stop_and_join();
    assert_eq!(mail.sleeps.load(SeqCst), mail.wakes.load(SeqCst), "after_sleep once for every before_sleep");
    assert_eq!((mail.signals.sleeping(), mail.signals.searching()), (0, 0));
}

#[test]
fn a_tick_looks_again_without_a_wake() {
    let mail = Mail { tick: Some(Duration::from_micros(200)), ..Mail::new(1) };
    let engine = Engine::start(Options::new(1), Arc::new(mail), read_mail).unwrap();
    until("it has slept", || engine.supply().sleeps.load(SeqCst) > 0);
    // Put in without telling anybody.
    engine.supply().boxes[0].lock().unwrap().push(7);
    assert_eq!(engine.supply().read.wait_for(1), [(0, 7)]);
    engine.stop_and_join();
}

#[test]
fn a_worker_that_may_not_stop_goes_on_serving() {
    let engine = Engine::start(Options::new(1), Arc::new(Mail::new(1)), read_mail).unwrap();
    let mail = Arc::clone(engine.supply());
    mail.may_stop.store(false, SeqCst);
    mail.signals.stop();
    assert!(mail.signals.is_stopping());
    mail.send(0, 1);
    mail.read.wait_for(1);
    until("it sleeps again", || engine.states() == [WorkerState::Sleeping]);
    mail.send(0, 2);
    mail.read.wait_for(2);
    mail.may_stop.store(true, SeqCst);
    mail.signals.wake(0);
    engine.join();
    assert_eq!(engine.states(), [WorkerState::Stopped]);
}

#[test]
fn what_was_there_before_the_stop_is_taken() {
    for _ in 0..200 {
        let engine = Engine::start(Options::new(2), Arc::new(Mail::new(2)), read_mail).unwrap();
        engine.supply().send(0, 1);
        engine.supply().send(1, 2);
        engine.stop_and_join();
        assert_eq!(engine.supply().read.now().len(), 2);
    }
}

#[test]
fn signals_made_for_another_number_are_an_error() {
    let error = Engine::start(Options::new(2), Arc::new(Mail::new(3)), read_mail).unwrap_err();
    assert!(matches!(error, StartError::OtherSignals { asked: 2, signals: 3 }));
}

#[test]
fn an_engine_knows_its_threads() {
    let found = Notes::new();
    let (tell, gate) = (found.clone(), Gate::new());
    let wait = gate.clone();
    let place: Arc<Mutex<Option<Engine<Mail>>>> = Arc::default();
    let inside = Arc::clone(&place);
    let engine = Engine::start(Options::new(2), Arc::new(Mail::new(2)), move |worker: &Worker<Mail>| {
        wait.wait();
        let engine = inside.lock().unwrap();
        tell.add((worker.index(), engine.as_ref().and_then(Engine::current_worker)));
        drop(engine);
        read_mail(worker);
    });
    *place.lock().unwrap() = Some(engine.unwrap());
    gate.open();
    let mut found = found.wait_for(2);
    found.sort();
    assert_eq!(found, [(0, Some(0)), (1, Some(1))]);
    let engine = place.lock().unwrap().take().unwrap();
    assert_eq!(engine.current_worker(), None);
    assert_eq!(engine.threads().len(), 2);
    engine.stop_and_join();
}

/// Dropping an engine tells its workers to stop, and does not wait for them.
#[test]
fn dropping_an_engine_stops_it() {
    let stopped = Notes::new();
    let tell = stopped.clone();
    let options = Options::new(2).on_stop(move |worker| tell.add(worker));
    drop(Engine::start(options, Arc::new(Mail::new(2)), read_mail).unwrap());
    stopped.wait_for(2);
}

/// How long the workers of such an engine search, in the order of their numbers.
fn searches(options: Options) -> Vec<Option<Duration>> {
    let workers = options.workers();
    let (mail, seen) = (Arc::new(Mail::new(workers)), Arc::new(Mutex::new(vec![None; workers])));
    let shown = Arc::clone(&seen);
    let engine = Engine::start(options, mail, move |worker: &Worker<Mail>| {
        shown.lock().unwrap()[worker.index()] = Some(worker.search_time());
        read_mail(worker);
    });
    engine.unwrap().stop_and_join();
    let seen = seen.lock().unwrap();
    seen.iter().map(|it| it.unwrap()).collect()
}

#[test]
fn workers_bound_to_a_core_each_search_as_free_ones_do_and_those_on_one_core_do_not() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let options = || Options::new(cores).on_warning(|_| ());
    let free = searches(options());
    assert!(free.iter().all(Option::is_some));
    assert_eq!(searches(options().affinity(Affinity::OneEach)), free);
    let crowd = Options::new(cores + 1);
    assert!(searches(crowd).iter().all(Option::is_none));
    let on_one = Options::new(2).affinity(Affinity::Cores(vec![0, 0])).on_warning(|_| ());
    assert!(searches(on_one).iter().all(Option::is_none));
}

//! The board of a `ClusterCoordinator`, and the dispatcher of the engines whose coordinator hands tasks out: callers, worker links and watchers that meet.
//!
//! Shipped: `cluster/src/dispatch.rs`, `coordinator/board.rs` and `coordinator/board/state.rs`, compiled here as they are, with loom's names behind `crate::shim`; below them `Event`. What they import of the
//! crate beside that (messages, errors, slots of values) is written down here without what the models do not ask about. A worker's side is a list of orders: a thread
//! whose call has put some there answers them.
#![cfg(loom)]

// What the shipped files import from `forebear`.
extern crate self as forebear;

pub use forebear_runtime::TimeoutError;

/// Which request schedules a task. Here none does.
#[allow(dead_code, reason = "there is none")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId;

/// As in `forebear`.
pub mod sync {
    pub use forebear_sync::Event;
}

/// As in `forebear`. No model waits with a limit.
pub mod time {
    /// The time of the machine.
    pub fn now() -> std::time::Instant {
        std::time::Instant::now()
    }
}

mod shim {
    pub(crate) use forebear_context::shim::{Mutex, MutexGuard, atomic};
}

#[path = "../../../cluster/src/by_task.rs"]
mod by_task;
#[path = "../support/cell/mod.rs"]
mod cell;
mod coordinator;
#[path = "../../../cluster/src/dispatch.rs"]
#[allow(dead_code, reason = "a part of it is called here")]
mod dispatch;
mod engine;
#[path = "../support/party/mod.rs"]
mod party;

mod error {
    use std::sync::Arc;
    use std::time::Instant;

    use crate::engine::WorkerId;

    #[allow(dead_code, reason = "no model reads how often")]
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum FailureKind {
        TimedOut,
        Poisoned { attempts: u32 },
        Broken,
    }

    #[derive(Clone, Debug)]
    pub(crate) struct TaskFailure;

    impl TaskFailure {
        pub(crate) fn new(_: Arc<str>, _: Option<WorkerId>, _: u32, _: FailureKind) -> TaskFailure {
            TaskFailure
        }
    }

    #[allow(dead_code, reason = "no model reads why")]
    #[derive(Debug)]
    pub(crate) enum ClusterError {
        Task(TaskFailure),
        Unavailable { since: Instant, reason: String },
        Cancelled,
        Closed,
    }
}

mod stored {
    use std::sync::Weak;

    use crate::coordinator::Shared;
    use crate::engine::ObjectId;

    #[allow(dead_code, reason = "nothing is stored")]
    pub(crate) struct Kept {
        pub(crate) shared: Weak<Shared>,
        pub(crate) object: ObjectId,
        pub(crate) bytes: u64,
    }
}

mod remote {
    use std::sync::Arc;

    use crate::engine::WorkerId;
    use crate::error::TaskFailure;
    use crate::shim::Mutex;
    use crate::stored::Kept;

    #[allow(dead_code, reason = "the models ask whether it is over")]
    pub(crate) enum RemoteState {
        Queued,
        Running { worker: WorkerId, attempt: u32, progress: f64 },
        Done(Arc<[u8]>),
        Stored { bytes: u64 },
        Failed(TaskFailure),
        Dropped,
        Closed,
    }

    impl RemoteState {
        pub(crate) fn is_over(&self) -> bool {
            !matches!(self, RemoteState::Queued | RemoteState::Running { .. })
        }
    }

    /// Where a result comes in.
    pub(crate) struct Slot(Mutex<RemoteState>);

    impl Slot {
        pub(crate) fn new() -> Slot {
            Slot(Mutex::new(RemoteState::Queued))
        }

        pub(crate) fn set(&self, state: RemoteState) {
            *self.0.lock().unwrap() = state;
        }

        pub(crate) fn tell(&self) {}

        pub(crate) fn tell_away(&self, _: bool) {}

        pub(crate) fn keep(&self, _: Arc<Kept>) {}

        pub(crate) fn is_wanted(&self) -> bool {
            false
        }

        pub(crate) fn is_over(&self) -> bool {
            self.0.lock().unwrap().is_over()
        }
    }
}

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use forebear_context::shim::Mutex;
use forebear_context::shim::thread::{self, JoinHandle};

use self::cell::{exhaust, explore};
use self::coordinator::board::{Board, Then, Unmet, Until};
use self::coordinator::{board, listing};
use self::dispatch::{Dispatcher, Going, Port};
use self::engine::{Answer, Envelope, Event, EventSink, Order, Report, TaskId, WorkerId};
use self::error::{ClusterError, FailureKind};
use self::party::Party;
use self::remote::Slot;

/// A board and a dispatcher that are connected as a coordinator and its engine are.
struct System {
    board: Board,
    dispatcher: OnceLock<Dispatcher>,
    /// What was told of tasks.
    told: Mutex<Vec<(TaskId, Told)>>,
    links: Vec<Arc<Link>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Started,
    Returned,
    Ended,
}

/// The way to a worker with one slot, and what it runs: task, attempt and generation.
struct Link {
    id: WorkerId,
    orders: Mutex<Vec<Order>>,
    runs: Mutex<Vec<(TaskId, u32, u64)>>,
    /// It is dead, and follows nothing.
    dead: Mutex<bool>,
}

impl Port for Arc<Link> {
    fn order(&self, order: Order) {
        if *self.dead.lock().unwrap() {
            return;
        }
        if let Order::Run { envelope, attempt } = &order {
            let mut runs = self.runs.lock().unwrap();
            runs.push((envelope.task, *attempt, envelope.generation));
            assert_eq!(runs.len(), 1, "it has one slot");
        }
        self.orders.lock().unwrap().push(order);
    }

    fn stop(&self) {}
}

const NAMES: [&str; 2] = ["one", "two"];

impl System {
    /// With room for so many tasks in the queue, and so many workers, which are not ready.
    fn new(room: usize, workers: usize) -> Arc<System> {
        let link = |name: &'static str| {
            let (orders, runs, dead) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()), Mutex::new(false));
            Arc::new(Link { id: WorkerId::new(name, 1), orders, runs, dead })
        };
        let links = NAMES[..workers].iter().map(|name| link(name)).collect();
        let told = Mutex::new(Vec::new());
        let system = Arc::new(System { board: board(room), dispatcher: OnceLock::new(), told, links });
        let weak: Weak<System> = Arc::downgrade(&system);
        let events = move |events: &mut dyn Iterator<Item = Event>| {
            if let Some(system) = weak.upgrade() {
                system.hear(events);
            }
        };
        assert!(system.dispatcher.set(Dispatcher::new(EventSink::of_batches(events))).is_ok());
        for link in &system.links {
            system.dispatcher().join(link.id.clone(), 1, Arc::new(link.clone()));
        }
        system
    }

    /// The same, and the workers are ready.
    fn ready(room: usize, workers: usize) -> Arc<System> {
        let system = System::new(room, workers);
        system.links.iter().for_each(|link| system.dispatcher().report(&link.id, Report::Ready));
        system
    }

    fn dispatcher(&self) -> &Dispatcher {
        self.dispatcher.get().expect("it is set at once")
    }

    /// Events, on their way to the board.
    fn hear(&self, events: &mut dyn Iterator<Item = Event>) {
        let heard = events.inspect(|event| {
            let mut told = self.told.lock().unwrap();
            match event {
                Event::Started { task, .. } => told.push((*task, Told::Started)),
                Event::Returned { task } => told.push((*task, Told::Returned)),
                Event::Ended { task, .. } => told.push((*task, Told::Ended)),
                Event::Drained { before } => {
                    for link in &self.links {
                        let old =
                            link.runs.lock().unwrap().iter().any(|(.., generation)| generation < before);
                        assert!(!old, "it is drained, and something runs");
                    }
                }
                _ => {}
            }
        });
        let heard: Vec<Event> = heard.collect();
        for then in self.board.on_events(heard) {
            if let Then::CancelBefore(generation) = then {
                self.dispatcher().cancel_before(generation);
            }
        }
    }

    /// Lists a task when there is room, and submits it.
    fn schedule(&self, slot: &Arc<Slot>) -> Result<TaskId, Unmet> {
        let list = |state: &mut coordinator::board::BoardState| (state.add(listing(slot)), state.generation);
        let (task, generation) = self.board.wait(Until::Room(1), None, list)?;
        self.dispatcher().submit(Envelope { task, generation, max_attempts: 2, time_left: None });
        Ok(task)
    }

    fn join(&self) -> Result<(), Unmet> {
        self.board.wait(Until::Over(TaskId(u64::MAX)), None, |_| ())
    }

    /// A worker's answer to what it runs.
    fn answer(&self, link: &Link, answer: Answer) {
        let Some((task, attempt, _)) = link.runs.lock().unwrap().pop() else { return };
        let ran = Duration::ZERO;
        self.dispatcher().report(&link.id, Report::Answer { task, attempt, answer, ran });
    }

    /// The workers do what they are ordered. A thread calls it after each call that may have brought orders.
    fn work(&self) {
        for link in self.links.iter().chain(&self.links) {
            while !std::mem::take(&mut *link.orders.lock().unwrap()).is_empty() {
                self.answer(link, Answer::Done(Arc::from([])));
            }
        }
    }

    /// The first worker dies.
    fn lose_the_first(&self) {
        *self.links[0].dead.lock().unwrap() = true;
        self.dispatcher().gone(&self.links[0].id, Going::Died);
    }

    /// All is over, and was told in its order.
    fn check(&self, slots: &[&Arc<Slot>]) {
        let metrics = self.board.metrics();
        assert_eq!((metrics.queued, metrics.running), (0, 0));
        assert!(slots.iter().all(|slot| slot.is_over()));
        let told = self.told.lock().unwrap();
        for task in told.iter().map(|(task, _)| *task) {
            let its: Vec<Told> = told.iter().filter(|(of, _)| *of == task).map(|(_, told)| *told).collect();
            let rest = its.strip_prefix(&[Told::Started, Told::Returned]).unwrap_or(&its);
            // Of one that was queued when all was cancelled only the drain tells.
            assert!([&[Told::Started, Told::Ended][..], &[Told::Ended]].contains(&rest), "{its:?}");
        }
    }
}

fn slots<const N: usize>() -> [Arc<Slot>; N] {
    std::array::from_fn(|_| Arc::new(Slot::new()))
}

/// Does `f` as another thread.
fn other<R: 'static>(system: &Arc<System>, f: impl FnOnce(&System) -> R + 'static) -> JoinHandle<R> {
    let system = system.clone();
    thread::spawn(move || Party::new(0).on(|| f(&system)))
}

fn on<R>(f: impl FnOnce() -> R) -> R {
    Party::new(0).on(f)
}

/// Does a join miss the end of the last task?
#[test]
fn the_last_task_ends_while_a_join_falls_asleep() {
    exhaust(&[], |_| {
        let (system, [slot]) = (System::ready(9, 1), slots());
        on(|| system.schedule(&slot)).ok().unwrap();
        let works = other(&system, System::work);
        assert!(on(|| system.join()).is_ok());
        works.join().unwrap();
        system.check(&[&slot]);
    });
}

/// Does a caller that waits for room miss the start of the task that had it?
#[test]
fn a_worker_makes_room_while_a_caller_falls_asleep() {
    explore(&[], |_| {
        let (system, [first, second]) = (System::new(1, 1), slots());
        assert!(on(|| system.schedule(&first)).is_ok());
        let takes = other(&system, |system| system.dispatcher().report(&system.links[0].id, Report::Ready));
        assert!(on(|| system.schedule(&second)).is_ok());
        takes.join().unwrap();
        on(|| system.work());
        system.check(&[&first, &second]);
    });
}

/// Is a message lost that a caller leaves to the one that empties the outbox?
#[test]
fn two_answers_come_at_once_and_a_third_task_waits_for_a_slot() {
    explore(&[], |_| {
        let (system, [first, second, third]) = (System::ready(9, 2), slots());
        for slot in [&first, &second, &third] {
            assert!(on(|| system.schedule(slot)).is_ok());
        }
        let ends = other(&system, |system| {
            system.answer(&system.links[0], Answer::Done(Arc::from([])));
            system.work();
        });
        on(|| {
            system.answer(&system.links[1], Answer::Done(Arc::from([])));
            system.work();
        });
        ends.join().unwrap();
        on(|| system.work());
        system.check(&[&first, &second, &third]);
    });
}

/// Is a failure raised once, when nothing runs, and is each task over that a caller has scheduled beside it?
#[test]
fn a_task_fails_while_another_one_is_scheduled() {
    explore(&["raised by the schedule", "raised by the join"], |answers| {
        let (system, [first, second]) = (System::ready(9, 1), slots());
        assert!(on(|| system.schedule(&first)).is_ok());
        // The thread answers it.
        system.links[0].orders.lock().unwrap().clear();
        let fails = other(&system, |system| {
            system.answer(&system.links[0], Answer::Failed(FailureKind::Broken));
            system.work();
        });
        let raised = |answer: Result<(), Unmet>| match answer {
            Ok(()) => false,
            Err(Unmet::Error(ClusterError::Task(_))) => true,
            Err(_) => panic!("nothing else can be raised"),
        };
        let by_schedule = raised(on(|| system.schedule(&second)).map(drop));
        on(|| system.work());
        let by_join = raised(on(|| system.join()));
        fails.join().unwrap();
        assert!(by_schedule != by_join, "it is raised once");
        answers.note(if by_schedule { "raised by the schedule" } else { "raised by the join" });
        let listed = [&first, &second];
        system.check(if by_schedule { &listed[..1] } else { &listed });
        assert!(!raised(on(|| system.join())));
    });
}

/// Is a failure raised only when the task has ended that runs beside it?
#[test]
fn a_task_fails_while_another_one_runs() {
    explore(&[], |_| {
        let (system, [first, second]) = (System::ready(9, 2), slots());
        for slot in [&first, &second] {
            assert!(on(|| system.schedule(slot)).is_ok());
        }
        let fails = other(&system, |system| {
            system.answer(&system.links[0], Answer::Failed(FailureKind::Broken));
        });
        on(|| system.answer(&system.links[1], Answer::Done(Arc::from([]))));
        assert!(matches!(on(|| system.join()), Ok(()) | Err(Unmet::Error(ClusterError::Task(_)))));
        fails.join().unwrap();
        let runs = |link: &Arc<Link>| !link.runs.lock().unwrap().is_empty();
        assert!(!system.links.iter().any(runs));
        system.check(&[&first, &second]);
    });
}

/// Does a task that its worker answers as it dies end once, by the answer or on another worker?
#[test]
fn a_worker_is_declared_gone_while_it_answers() {
    exhaust(&["by the answer", "elsewhere"], |answers| {
        let (system, [slot]) = (System::ready(9, 2), slots());
        assert!(on(|| system.schedule(&slot)).is_ok());
        let dies = other(&system, |system| {
            system.lose_the_first();
            system.answer(&system.links[1], Answer::Done(Arc::from([])));
        });
        let (answer, ran) = (Answer::Done(Arc::from([])), Duration::ZERO);
        let report = Report::Answer { task: TaskId(0), attempt: 1, answer, ran };
        on(|| system.dispatcher().report(&system.links[0].id, report));
        dies.join().unwrap();
        on(|| system.work());
        assert!(on(|| system.join()).is_ok());
        let returned = system.told.lock().unwrap().iter().any(|(_, told)| *told == Told::Returned);
        answers.note(if returned { "elsewhere" } else { "by the answer" });
        system.check(&[&slot]);
    });
}

/// Does a join miss the end of a task that goes to another worker?
#[test]
fn a_task_goes_to_another_worker_while_a_join_falls_asleep() {
    exhaust(&[], |_| {
        let (system, [slot]) = (System::ready(9, 2), slots());
        assert!(on(|| system.schedule(&slot)).is_ok());
        let dies = other(&system, |system| {
            system.lose_the_first();
            system.answer(&system.links[1], Answer::Done(Arc::from([])));
        });
        assert!(on(|| system.join()).is_ok());
        dies.join().unwrap();
        assert!(system.told.lock().unwrap().iter().any(|(_, told)| *told == Told::Returned));
        system.check(&[&slot]);
    });
}

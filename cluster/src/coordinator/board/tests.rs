use super::*;
use crate::engine::{Answer, GONE, WorkerState};

fn board(tasks: usize) -> Board {
    Board::new(Limit { tasks, bytes: 100 }, Weak::new())
}

impl Board {
    /// An event that comes alone.
    fn on_event(&self, event: Event) -> Vec<Then> {
        self.on_events([event])
    }
}

fn add(board: &Board, slot: &Arc<Slot>) -> TaskId {
    add_as(board, slot, Raises::Always)
}

fn add_as(board: &Board, slot: &Arc<Slot>, raises: Raises) -> TaskId {
    let slot = Arc::downgrade(slot);
    let listing = Listing { name: "task".into(), bytes: 1, slot, raises, by: None, kept: None };
    board.try_now(Until::Room(1), |state| state.add(listing)).unwrap().unwrap()
}

fn ended(task: TaskId, answer: Answer) -> Event {
    Event::Ended { task, worker: None, attempt: 1, answer, ran: Duration::ZERO }
}

fn failed() -> Answer {
    Answer::Failed(crate::FailureKind::TimedOut)
}

#[test]
fn r30_a_result_that_nobody_holds_is_freed() {
    let (board, slot) = (board(9), Arc::new(Slot::new(None)));
    let task = add(&board, &slot);
    let weak = Arc::downgrade(&slot);
    drop(slot);
    let bytes: Arc<[u8]> = Arc::from([1_u8, 2]);
    board.on_event(ended(task, Answer::Done(bytes.clone())));
    assert!(weak.upgrade().is_none());
    assert_eq!(Arc::strong_count(&bytes), 1);
}

#[test]
fn what_a_worker_says_of_its_progress_and_its_time_stays_within_what_there_is() {
    let board = board(2);
    for _ in 0..2 {
        let slot = Arc::new(Slot::new(None));
        let task = add(&board, &slot);
        board.on_event(Event::Started { task, worker: WorkerId::new("worker", 1), attempt: 1 });
        board.on_event(Event::Progress { task, thousandths: u32::MAX });
        assert!(slot.runs_at(1.0));
        let (answer, ran) = (Answer::Done(Arc::from([])), Duration::MAX);
        board.on_event(Event::Ended { task, worker: None, attempt: 1, answer, ran });
    }
    assert_eq!((board.metrics().done, board.metrics().ran), (2, Duration::MAX));
}

#[test]
fn r22_events_of_tasks_that_are_no_tasks_any_more_change_nothing() {
    let (board, slot) = (board(1), Arc::new(Slot::new(None)));
    let task = add(&board, &slot);
    let worker = WorkerId::new("worker", 1);
    board.on_event(Event::Started { task, worker: worker.clone(), attempt: 1 });
    board.on_event(ended(task, Answer::Done(Arc::from([]))));
    for _ in 0..2 {
        assert!(board.on_event(ended(task, failed())).is_empty());
        assert!(board.on_event(Event::Returned { task }).is_empty());
        board.on_event(Event::Started { task, worker: worker.clone(), attempt: 2 });
    }
    let metrics = board.metrics();
    assert_eq!((metrics.done, metrics.failed, metrics.queued, metrics.running), (1, 0, 0, 0));
    assert_eq!(board.try_now(Until::Over(TaskId(u64::MAX)), |_| ()).unwrap(), Some(()));
}

#[test]
fn a_failure_is_raised_after_the_drain_and_not_before() {
    let (board, slots) = (board(9), [(); 3].map(|()| Arc::new(Slot::new(None))));
    let tasks = slots.each_ref().map(|slot| add(&board, slot));
    let then = board.on_event(ended(tasks[0], failed()));
    assert!(matches!(then[..], [Then::CancelBefore(1)]));
    let look = || board.try_now(Until::Settled, |_| ());
    assert_eq!(look().unwrap(), None);
    // Another one fails meanwhile.
    assert!(board.on_event(ended(tasks[1], failed())).is_empty());
    assert_eq!(look().unwrap(), None);
    board.on_event(Event::Drained { before: 1 });
    assert!(matches!(look(), Err(ClusterError::Task(_))));
    assert_eq!(look().unwrap(), Some(()), "once");
    // What was drained and answers late is no failure of the new generation.
    assert!(board.on_event(ended(tasks[2], failed())).is_empty());
    assert_eq!(look().unwrap(), Some(()));
}

#[test]
fn a_time_out_that_was_inherited_is_raised_by_nobody_and_other_failures_are() {
    let (board, slot) = (board(9), Arc::new(Slot::new(None)));
    let look = |board: &Board| board.try_now(Until::Settled, |_| ()).unwrap();
    for raises in [Raises::ButTimeOut, Raises::Never] {
        let task = add_as(&board, &slot, raises);
        assert!(board.on_event(ended(task, failed())).is_empty());
        assert_eq!(look(&board), Some(()));
    }
    let task = add_as(&board, &slot, Raises::Never);
    let other = || Answer::Failed(crate::FailureKind::NotRegistered);
    assert!(board.on_event(ended(task, other())).is_empty());
    let task = add_as(&board, &slot, Raises::ButTimeOut);
    assert!(matches!(board.on_event(ended(task, other()))[..], [Then::CancelBefore(1)]));
}

#[test]
fn each_call_says_that_the_engine_is_away_until_it_is_back() {
    let (board, slot) = (board(9), Arc::new(Slot::new(None)));
    let task = add(&board, &slot);
    board.on_event(Event::Unavailable { reason: "gone".into() });
    for until in [Until::Room(1), Until::Over(TaskId(9)), Until::Settled] {
        for _ in 0..2 {
            let look = board.try_now(until, |_| ());
            assert!(matches!(look, Err(ClusterError::Unavailable { reason, .. }) if reason == "gone"));
        }
    }
    // An error that is due is the cause of more than that, and comes first.
    board.on_event(ended(task, failed()));
    board.on_event(Event::Drained { before: 1 });
    assert!(matches!(board.try_now(Until::Settled, |_| ()), Err(ClusterError::Task(_))));
    board.on_event(Event::Available);
    assert_eq!(board.try_now(Until::Over(TaskId(9)), |_| ()).unwrap(), Some(()));
}

#[test]
fn of_the_workers_that_are_gone_the_newest_are_kept_and_all_that_are_there() {
    let board = board(9);
    let tell = |name: &str, incarnation, state| {
        let id = WorkerId::new(name, incarnation);
        board.on_event(Event::Worker(WorkerStatus::new(id, state, 1)));
    };
    tell("stays", 1, WorkerState::Ready);
    tell("returns", 1, WorkerState::Gone);
    tell("returns", 2, WorkerState::Ready);
    for n in 0..3 * GONE {
        let name = format!("worker-{n}");
        tell(&name, 1, WorkerState::Ready);
        tell(&name, 1, WorkerState::Gone);
    }
    let workers = board.workers();
    assert_eq!(workers.len(), GONE + 2);
    let ready: Vec<_> = workers.iter().filter(|worker| worker.state == WorkerState::Ready).collect();
    assert_eq!(ready.iter().map(|worker| worker.id.name()).collect::<Vec<_>>(), ["returns", "stays"]);
    assert!(workers.iter().any(|worker| worker.id.name() == format!("worker-{}", 3 * GONE - 1)));
}

#[test]
fn what_comes_back_needs_no_room() {
    let (board, slots) = (board(1), [(); 2].map(|()| Arc::new(Slot::new(None))));
    let first = add(&board, &slots[0]);
    let worker = WorkerId::new("worker", 1);
    board.on_event(Event::Started { task: first, worker, attempt: 1 });
    add(&board, &slots[1]);
    board.on_event(Event::Returned { task: first });
    assert_eq!(board.metrics().queued, 2);
    assert_eq!(board.try_now(Until::Room(1), |_| ()).unwrap(), None);
}

#[test]
fn events_that_come_together_are_followed_in_their_order() {
    let (board, slots) = (board(9), [(); 2].map(|()| Arc::new(Slot::new(None))));
    let tasks = slots.each_ref().map(|slot| add(&board, slot));
    let started = |task| Event::Started { task, worker: WorkerId::new("worker", 1), attempt: 1 };
    let progress = Event::Progress { task: tasks[1], thousandths: 500 };
    let done = ended(tasks[0], Answer::Done(Arc::from([7])));
    assert!(board.on_events([started(tasks[0]), started(tasks[1]), progress, done]).is_empty());
    assert!(slots[0].is_done(&[7]) && slots[1].runs_at(0.5));
    assert_eq!((board.metrics().queued, board.metrics().running), (0, 1));
}

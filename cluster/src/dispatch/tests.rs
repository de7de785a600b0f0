#[path = "tests/histories.rs"]
mod histories;

use std::sync::Weak;

use super::*;

/// What was said, in order.
#[derive(Default)]
struct Said(Mutex<Vec<String>>);

impl Said {
    fn say(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl Port for Said {
    fn order(&self, order: Order) {
        self.say(format!("{order:?}"));
    }

    fn stop(&self) {
        self.say("stop".into());
    }
}

#[test]
fn what_a_panic_has_left_is_sent_by_the_next_caller() {
    let said = Arc::new(Said::default());
    let dispatcher = Dispatcher::new(EventSink::new(|event| assert!(!matches!(event, Event::Worker(_)))));
    let join = || dispatcher.join(WorkerId::new("worker", 1), 1, said.clone());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(join)).is_err());
    assert!(said.0.lock().unwrap().is_empty());
    dispatcher.tell(Event::Available);
    assert_eq!(*said.0.lock().unwrap(), ["Begin"]);
}

#[test]
fn a_worker_is_told_of_before_it_is_told_anything() {
    let said = Arc::new(Said::default());
    let its = said.clone();
    let dispatcher = Dispatcher::new(EventSink::new(move |event| {
        let Event::Worker(status) = event else { return };
        its.say(format!("{:?}", status.state));
    }));
    dispatcher.join(WorkerId::new("worker", 1), 1, said.clone());
    assert_eq!(*said.0.lock().unwrap(), ["Starting", "Begin"]);
}

fn envelope(task: u64) -> Envelope {
    Envelope {
        job: 1,
        task: TaskId(task),
        generation: 0,
        name: "task".into(),
        args: Arc::from([]),
        needs: None,
        max_attempts: 1,
        time_left: None,
    }
}

/// Says what it is given, and when it is flushed.
struct Flushed(Arc<Said>);

impl Port for Flushed {
    fn order(&self, order: Order) {
        if let Order::Run { envelope, .. } = order {
            self.0.say(format!("run {}", envelope.task.0));
        }
    }

    fn flush(&self) {
        self.0.say("flush".into());
    }

    fn stop(&self) {}
}

/// Four tasks for a worker with two slots, which has been given the first two. The answers to those come together. What is said then, with a line for what is told together.
fn said_of(answers: [Answer; 2]) -> Vec<String> {
    let said = Arc::new(Said::default());
    let its = said.clone();
    let dispatcher = Dispatcher::new(EventSink::of_batches(move |events| {
        let told = events.filter_map(|event| match event {
            Event::Started { task, .. } => Some(format!("started {}", task.0)),
            Event::Ended { task, .. } => Some(format!("ended {}", task.0)),
            _ => None,
        });
        its.say(told.collect::<Vec<_>>().join(", "));
    }));
    let id = WorkerId::new("worker", 1);
    dispatcher.join(id.clone(), 2, Arc::new(Flushed(said.clone())));
    dispatcher.report(&id, Report::Ready);
    (1..=4).for_each(|task| dispatcher.submit(envelope(task)));
    said.0.lock().unwrap().clear();
    let answers = [1, 2].into_iter().zip(answers);
    dispatcher.reports(
        &id,
        answers.map(|(task, answer)| Report::Answer {
            task: TaskId(task),
            attempt: 1,
            answer,
            ran: Duration::ZERO,
        }),
    );
    let said = said.0.lock().unwrap();
    said.clone()
}

#[test]
fn what_happens_together_is_told_together_and_a_worker_has_its_next_tasks_before_good_ends_are_told() {
    let done = || Answer::Done(Arc::from([]));
    assert_eq!(
        said_of([done(), done()]),
        ["started 3, started 4", "run 3", "run 4", "flush", "ended 1, ended 2"]
    );
    // A failure may cancel what is queued.
    let failed = Answer::Failed(FailureKind::NotRegistered);
    assert_eq!(
        said_of([done(), failed]),
        ["ended 1, ended 2", "started 3, started 4", "run 3", "run 4", "flush"]
    );
}

/// Has ended each task before it has taken the order.
struct Prompt {
    said: Arc<Said>,
    of: Weak<Dispatcher>,
    id: WorkerId,
}

impl Port for Prompt {
    fn order(&self, order: Order) {
        if let (Order::Run { envelope, attempt }, Some(dispatcher)) = (order, self.of.upgrade()) {
            self.said.say(format!("run {}", envelope.task.0));
            let (task, answer) = (envelope.task, Answer::Done(Arc::from([])));
            dispatcher.report(&self.id, Report::Answer { task, attempt, answer, ran: Duration::ZERO });
        }
    }

    fn stop(&self) {}
}

#[test]
fn ends_are_put_off_for_orders_once_and_not_for_as_long_as_there_are_tasks() {
    let said = Arc::new(Said::default());
    let its = said.clone();
    let dispatcher = Arc::new(Dispatcher::new(EventSink::new(move |event| {
        if let Event::Ended { task, .. } = event {
            its.say(format!("ended {}", task.0));
        }
    })));
    (1..=4).for_each(|task| dispatcher.submit(envelope(task)));
    let id = WorkerId::new("worker", 1);
    let port = Prompt { said: said.clone(), of: Arc::downgrade(&dispatcher), id: id.clone() };
    dispatcher.join(id.clone(), 1, Arc::new(port));
    dispatcher.report(&id, Report::Ready);
    let said = said.0.lock().unwrap();
    assert_eq!(*said, ["run 1", "run 2", "ended 1", "ended 2", "run 3", "run 4", "ended 3", "ended 4"]);
}

/// Two workers of two slots, one after the other, and two tasks, of which the first kills its worker.
#[test]
fn a_task_that_was_beside_the_one_that_killed_its_worker_is_not_judged_before_it_has_run_alone() {
    let said = Arc::new(Said::default());
    let its = said.clone();
    let dispatcher = Dispatcher::new(EventSink::new(move |event| match event {
        Event::Started { task, worker, attempt } => its.say(format!("{} on {worker}: {attempt}", task.0)),
        Event::Ended { task, answer: Answer::Failed(FailureKind::Poisoned { attempts }), .. } => {
            its.say(format!("{} poisoned: {attempts}", task.0));
        }
        Event::Ended { task, .. } => its.say(format!("{} ended", task.0)),
        _ => {}
    }));
    struct Quiet;
    impl Port for Quiet {
        fn order(&self, _: Order) {}
        fn stop(&self) {}
    }
    let worker = |number| WorkerId::new("w", number);
    let comes = |number| {
        dispatcher.join(worker(number), 2, Arc::new(Quiet));
        dispatcher.report(&worker(number), Report::Ready);
    };
    let answers = |number, task, attempt| {
        let (answer, ran) = (Answer::Done(Arc::from([])), Duration::ZERO);
        dispatcher.report(&worker(number), Report::Answer { task: TaskId(task), attempt, answer, ran });
    };
    let heard = || mem::take(&mut *said.0.lock().unwrap());
    comes(1);
    [1, 2].into_iter().for_each(|task| dispatcher.submit(envelope(task)));
    dispatcher.gone(&worker(1), Going::Died);
    assert_eq!(heard(), ["1 on w (1): 1", "2 on w (1): 1"]);
    comes(2);
    assert_eq!(heard(), ["1 on w (2): 2"], "it has the worker for itself");
    dispatcher.gone(&worker(2), Going::Died);
    assert_eq!(heard(), ["1 poisoned: 2"]);
    comes(3);
    assert_eq!(heard(), ["2 on w (3): 2"]);
    [3, 4, 5].into_iter().for_each(|task| dispatcher.submit(envelope(task)));
    assert!(heard().is_empty());
    answers(3, 2, 2);
    assert_eq!(heard(), ["3 on w (3): 1", "4 on w (3): 1", "2 ended"], "both slots are free again");
    comes(4);
    [6].into_iter().for_each(|task| dispatcher.submit(envelope(task)));
    assert_eq!(heard(), ["5 on w (4): 1", "6 on w (4): 1"]);
    dispatcher.gone(&worker(4), Going::Died);
    answers(3, 3, 1);
    dispatcher.submit(envelope(7));
    assert_eq!(heard(), ["3 ended"], "the suspect 5 waits for the other slot, and nothing overtakes it");
    answers(3, 4, 1);
    dispatcher.cancel(TaskId(6));
    answers(3, 5, 2);
    assert_eq!(heard(), ["5 on w (3): 2", "4 ended", "6 ended", "7 on w (3): 1", "5 ended"]);
    comes(5);
    (8..=10).for_each(|task| dispatcher.submit(envelope(task)));
    assert_eq!(heard(), ["8 on w (3): 1", "9 on w (5): 1", "10 on w (5): 1"]);
    dispatcher.gone(&worker(5), Going::Died);
    answers(3, 7, 1);
    dispatcher.submit(envelope(11));
    assert_eq!(heard(), ["7 ended"]);
    // One that waits is cancelled. The next one waits in its place, and then there is none.
    dispatcher.cancel(TaskId(9));
    assert_eq!(heard(), ["9 ended"]);
    dispatcher.cancel(TaskId(10));
    assert_eq!(heard(), ["10 ended", "11 on w (3): 1"]);
}

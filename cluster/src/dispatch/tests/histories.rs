//! Histories at random: what a coordinator asks for, and what workers do, in any order. What the dispatcher owes is checked after each step, against what the workers really run.

use std::collections::BTreeMap;

use super::*;

/// The orders of one worker.
#[derive(Default)]
struct Inbox(Mutex<Vec<Order>>);

impl Port for Inbox {
    fn order(&self, order: Order) {
        self.0.lock().unwrap().push(order);
    }

    fn stop(&self) {}
}

/// A worker as it really is.
struct Real {
    id: WorkerId,
    inbox: Arc<Inbox>,
    slots: usize,
    ready: bool,
    /// It is asked to leave, or has been declared gone.
    leaving: bool,
    gone: bool,
    /// What it runs, and whether that was cancelled. It goes on after the worker was declared gone, if that is so said.
    running: BTreeMap<(TaskId, u32), bool>,
}

/// A task as the coordinator knows it.
struct Known {
    generation: u64,
    max_attempts: u32,
    attempts: u32,
    /// So many of its workers were killed by the program.
    forgiven: u32,
    /// It was given to a worker, and has neither come back nor ended.
    leased: bool,
    ended: bool,
}

struct History {
    seed: u64,
    dispatcher: Dispatcher,
    events: Arc<Mutex<Vec<Event>>>,
    workers: Vec<Real>,
    tasks: BTreeMap<TaskId, Known>,
    generation: u64,
    drained: u64,
    states: BTreeMap<WorkerId, WorkerState>,
    number: u64,
}

impl History {
    fn new(seed: u64) -> History {
        let events = Arc::new(Mutex::new(Vec::new()));
        let its = events.clone();
        let dispatcher = Dispatcher::new(EventSink::new(move |event| its.lock().unwrap().push(event)));
        History {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            dispatcher,
            events,
            workers: Vec::new(),
            tasks: BTreeMap::new(),
            generation: 0,
            drained: 0,
            states: BTreeMap::new(),
            number: 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as usize % end
    }

    fn submit(&mut self) {
        self.number += 1;
        let (task, max_attempts) = (TaskId(self.number), 1 + self.below(3) as u32);
        // Now and then one of a generation that is over: it is dropped.
        let generation = self.generation - (self.below(8) == 0) as u64 * self.generation.min(1);
        let envelope = Envelope {
            job: 1,
            task,
            generation,
            name: "task".into(),
            args: Arc::from([]),
            needs: None,
            max_attempts,
            time_left: None,
        };
        let known = Known { generation, max_attempts, attempts: 0, forgiven: 0, leased: false, ended: false };
        self.tasks.insert(task, known);
        self.dispatcher.submit(envelope);
    }

    fn join(&mut self) {
        let (id, inbox) =
            (WorkerId::new("worker", self.workers.len() as u64 + 1), Arc::new(Inbox::default()));
        let slots = 1 + self.below(3);
        let real = Real {
            id: id.clone(),
            inbox: inbox.clone(),
            slots,
            ready: false,
            leaving: false,
            gone: false,
            running: BTreeMap::new(),
        };
        self.workers.push(real);
        self.dispatcher.join(id, slots, inbox);
    }

    fn ready(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        if !worker.leaving {
            worker.ready = true;
            self.dispatcher.report(&worker.id.clone(), Report::Ready);
        }
    }

    fn answer(&mut self, at: usize) {
        let draw = self.below(4);
        let worker = &mut self.workers[at];
        let Some((&(task, attempt), &cancelled)) = worker.running.iter().next() else { return };
        worker.running.remove(&(task, attempt));
        let answer = match draw {
            0 if cancelled => Answer::Cancelled,
            1 => Answer::Failed(FailureKind::NotRegistered),
            _ => Answer::Done(Arc::from([])),
        };
        let id = worker.id.clone();
        let report = Report::Answer { task, attempt, answer, ran: Duration::ZERO };
        self.dispatcher.report(&id, report.clone());
        self.follow();
        // A hostile worker says it twice.
        if draw == 3 {
            self.dispatcher.report(&id, report);
        }
    }

    /// An answer for an attempt that the worker does not have.
    fn lie(&mut self, at: usize) {
        let worker = &self.workers[at];
        let Some((task, attempt)) = worker.running.keys().next().copied() else { return };
        let (answer, ran) = (Answer::Done(Arc::from([])), Duration::ZERO);
        self.dispatcher.report(&worker.id, Report::Answer { task, attempt: attempt + 1, answer, ran });
    }

    fn gone(&mut self, at: usize) {
        let how = [Going::Died, Going::Killed, Going::RunsOn][self.below(3)];
        let worker = &mut self.workers[at];
        if std::mem::replace(&mut worker.gone, true) {
            return;
        }
        worker.leaving = true;
        if how == Going::Killed {
            for (task, _) in worker.running.keys() {
                self.tasks.get_mut(task).unwrap().forgiven += 1;
            }
        }
        if how != Going::RunsOn {
            worker.running.clear();
        }
        self.dispatcher.gone(&worker.id.clone(), how);
    }

    fn drain(&mut self, at: usize) {
        self.workers[at].leaving = true;
        self.dispatcher.drain(&self.workers[at].id.clone());
    }

    fn step(&mut self) {
        let at = (!self.workers.is_empty()).then(|| self.below(self.workers.len()));
        match (self.below(20), at) {
            (0..6, _) => self.submit(),
            (6, _) if self.number > 0 => {
                let task = TaskId(1 + self.below(self.number as usize) as u64);
                self.dispatcher.cancel(task);
            }
            (7, _) => {
                self.generation += 1;
                self.dispatcher.cancel_before(self.generation);
            }
            (8 | 9, _) => self.join(),
            (10..13, Some(at)) => self.ready(at),
            (13, Some(at)) => self.gone(at),
            (14, Some(at)) => self.drain(at),
            (15, Some(at)) => self.lie(at),
            (_, Some(at)) => self.answer(at),
            _ => {}
        }
        self.follow();
    }

    /// Has the workers follow their orders, and checks what the coordinator was told.
    fn follow(&mut self) {
        for worker in &mut self.workers {
            for order in std::mem::take(&mut *worker.inbox.0.lock().unwrap()) {
                match order {
                    Order::Run { envelope, attempt } => {
                        assert!(worker.ready, "{} was given a task before it was ready", worker.id);
                        let suspects = |worker: &Real| {
                            worker.running.keys().any(|(task, attempt)| {
                                let known = &self.tasks[task];
                                *attempt > known.max_attempts + known.forgiven
                            })
                        };
                        assert!(!suspects(worker), "{} was given a task beside a suspect", worker.id);
                        worker.running.insert((envelope.task, attempt), false);
                        assert!(worker.running.len() <= worker.slots, "{} has too many tasks", worker.id);
                        assert!(!suspects(worker) || worker.running.len() == 1, "it is not alone");
                    }
                    Order::Cancel(task) => {
                        let its = worker.running.iter_mut().filter(|((running, _), _)| *running == task);
                        its.for_each(|(_, cancelled)| *cancelled = true);
                    }
                    _ => {}
                }
            }
        }
        let events = std::mem::take(&mut *self.events.lock().unwrap());
        for event in events {
            self.check(event);
        }
    }

    fn check(&mut self, event: Event) {
        match event {
            Event::Started { task, worker, attempt } => {
                let known = self.tasks.get_mut(&task).unwrap();
                assert!(!known.ended && !known.leased, "{task} was started while it runs, or after its end");
                assert!(known.generation >= self.drained, "{task} was started after its drain");
                known.attempts += 1;
                known.leased = true;
                assert_eq!(attempt, known.attempts);
                assert_eq!(self.states[&worker], WorkerState::Ready);
            }
            Event::Returned { task } => {
                let known = self.tasks.get_mut(&task).unwrap();
                assert!(std::mem::take(&mut known.leased) && !known.ended);
                assert!(known.attempts <= known.max_attempts + known.forgiven);
            }
            Event::Ended { task, answer, attempt, .. } => {
                let known = self.tasks.get_mut(&task).unwrap();
                assert!(!std::mem::replace(&mut known.ended, true), "{task} has ended twice");
                assert!(known.generation >= self.drained, "{task} has ended after its drain");
                known.leased = false;
                assert_eq!(attempt, known.attempts);
                if let Answer::Failed(FailureKind::Poisoned { attempts }) = answer {
                    assert_eq!(attempts, known.attempts - known.forgiven);
                    assert!((known.max_attempts..=known.max_attempts + 1).contains(&attempts));
                }
            }
            Event::Worker(status) => _ = self.states.insert(status.id, status.state),
            Event::Drained { before } => {
                assert_eq!(before, self.generation);
                self.drained = before;
                let old = |(task, _): &(TaskId, u32)| self.tasks[task].generation < before;
                let still = self.workers.iter().flat_map(|worker| worker.running.keys()).find(|key| old(key));
                assert_eq!(still, None, "it was drained, and something runs");
            }
            _ => {}
        }
    }

    /// Workers come and do what there is.
    fn end(&mut self) {
        self.join();
        self.ready(self.workers.len() - 1);
        self.follow();
        while let Some(at) = self.workers.iter().position(|worker| !worker.running.is_empty()) {
            self.answer(at);
            self.follow();
        }
        assert_eq!(self.drained, self.generation, "nothing runs, and it was not drained");
        let lost = self.tasks.iter().find(|(_, known)| known.generation >= self.drained && !known.ended);
        assert!(lost.is_none(), "{:?} is lost", lost.map(|(task, _)| task));
    }
}

#[test]
fn in_any_history_each_task_ends_once_and_a_drain_means_that_nothing_runs() {
    for seed in 1..=500 {
        let said = std::panic::catch_unwind(|| {
            let mut history = History::new(seed);
            (0..200).for_each(|_| history.step());
            history.end();
            history.tasks.values().filter(|known| known.attempts > 1).count()
        });
        assert!(said.is_ok(), "seed {seed}");
    }
}

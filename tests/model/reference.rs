//! The reference: what a program does, by the promises, one step after the other.
//!
//! Written from the promises (requests, outcome, waiting, direct execution, cancellation, callbacks), not from the code:
//! no words, no lists, no threads. It answers what is seen to happen after an order: lines, whose order means nothing (what
//! must come first says so by a number in the line). What concerns cancelling is in [`super::cancelling`], the choice of
//! orders that make sense in [`super::choice`].
//!
//! # Vocabulary
//!
//! An *actor* is a foreign thread or a request; a thread is an actor that is always running and never cancelled. A request
//! that was started by a waiter on its own stack has a *lender*, which waits and hears nothing until it ends. An actor that
//! learns of its cancel while it is idle *takes shelter*: it listens on in a shielded region until the next order.

use super::program::{Call, Ending, How, Id, Leaf, Make, Order, Step, THREADS};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Life {
    #[default]
    New,
    Running,
    Finished,
    /// Along these names.
    Failed(Vec<Id>),
    Cancelled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Doing {
    #[default]
    Idle,
    /// Carrying out an order.
    Acts,
    Waits(Id, How),
    Lends(Id, How),
}

#[derive(Debug, Default)]
pub(crate) struct Actor {
    pub(crate) parent: Option<Id>,
    pub(crate) own_stack: bool,
    pub(crate) life: Life,
    pub(crate) doing: Doing,
    /// Cancelled, by an abort for a reason of its own.
    pub(crate) marked: Option<Option<u32>>,
    /// The mark is acted upon. It is once, outside of shielded regions.
    pub(crate) delivered: bool,
    pub(crate) sheltered: bool,
    pub(crate) region: bool,
    /// A cancel was vetoed.
    pub(crate) remembers: bool,
    /// By somebody who did not wait.
    pub(crate) submitted: bool,
    /// In the common table; others are held for a wait until its waiter's next order.
    pub(crate) table: usize,
    pub(crate) holds: Option<Id>,
    pub(crate) waiters: Vec<Id>,
    /// The number of its last wait.
    pub(crate) began: usize,
    /// Whoever runs it on his stack, while he wants it.
    pub(crate) lender: Option<Id>,
    pub(crate) below: Option<Id>,
    pub(crate) calls: Vec<Call>,
    pub(crate) called: usize,
    pub(crate) has_value: bool,
    pub(crate) seen: bool,
    /// What its last wait answered, if that was an error that can be handed on.
    pub(crate) answer: Option<Life>,
}

#[derive(Debug, Default)]
pub(crate) struct Reference {
    pub(crate) all: Vec<Actor>,
    told: Vec<String>,
    waits: usize,
}

impl Reference {
    pub(crate) fn new() -> Reference {
        let mut reference = Reference::default();
        (0..THREADS).for_each(|_| reference.add(None, false, Life::Running));
        reference
    }

    fn add(&mut self, parent: Option<Id>, own_stack: bool, life: Life) {
        self.all.push(Actor { parent, own_stack, life, ..Actor::default() });
    }

    pub(crate) fn tell(&mut self, line: String) {
        self.told.push(line);
    }

    /// Whether a request is over, or has not started.
    pub(crate) fn state(&self, id: Id) -> &'static str {
        match self.all[id].life {
            Life::New => "new",
            Life::Running => "running",
            Life::Finished => "finished",
            Life::Failed(_) => "failed",
            Life::Cancelled => "cancelled",
        }
    }

    pub(crate) fn requests(&self) -> std::ops::Range<Id> {
        THREADS..self.all.len()
    }

    // ---- orders -----------------------------------------------------------------------------------------------------

    /// Carries out a step that was resolved; answers what is seen to happen.
    pub(crate) fn carry_out(&mut self, step: &Step) -> Vec<String> {
        let me = step.actor;
        if let Order::Pass = step.order {
            if let Doing::Waits(target, _) = self.all[me].doing {
                self.leave(me, target, false);
                self.answer_with(me, target, "timed out");
            }
            return std::mem::take(&mut self.told);
        }
        self.all[me].doing = Doing::Acts;
        self.all[me].sheltered = false;
        if let Some(held) = self.all[me].holds.take() {
            self.handle_gone(held);
        }
        match step.order {
            Order::Make(make) => self.make(me, make),
            Order::Leaf(leaf, ending) => self.leaf(me, leaf, ending),
            Order::Submit(id) => self.submit(id, true),
            Order::Wait(id, how) => self.wait(me, id, how),
            Order::Clone(id) => self.all[id].table += 1,
            Order::Drop(id) => {
                self.all[id].table -= 1;
                self.handle_gone(id);
            }
            Order::Cancel(id) => {
                let came = self.cancel(id);
                self.tell(format!("{me}: cancel of {id} answers {came}"));
            }
            Order::Abort(id, why) => {
                let over = self.is_over(id);
                if !over && self.all[id].marked.is_none() {
                    self.mark(id, Some(why));
                }
                self.tell(format!(
                    "{me}: abort of {id} answers {}",
                    if over { "AlreadyDone" } else { "Marked" }
                ));
            }
            Order::Subscribe(id, call) if self.is_over(id) => {
                if self.call(id, call) && call == Call::FinishedPanics {
                    self.tell(format!("{me}: a callback's panic came out"));
                }
            }
            Order::Subscribe(id, call) => self.all[id].calls.push(call),
            Order::Look(id) => {
                let outcome = self.outcome(id);
                self.tell(format!("{me}: outcome of {id} is {outcome}"));
                self.all[id].seen |= matches!(self.all[id].life, Life::Failed(_));
            }
            Order::Open => self.all[me].region = true,
            Order::Close => self.close(me),
            Order::End(ending) => {
                self.close(me);
                self.end_by(me, ending);
            }
            Order::Pass => {}
        }
        if self.all[me].doing == Doing::Acts && !self.is_over(me) {
            self.idle(me);
        }
        std::mem::take(&mut self.told)
    }

    fn make(&mut self, me: Id, make: Make) {
        let id = self.all.len();
        let parent = (me >= THREADS && make != Make::Detached).then_some(me);
        self.add(parent, make == Make::OwnStack, Life::New);
        self.all[id].table = 1;
        if self.is_orphaned(id) {
            self.mark(id, None); // born cancelled
        } else if make == Make::Spawned {
            self.submit(id, true);
        }
    }

    /// It cannot be told where a leaf ran, and nobody gets at it.
    fn leaf(&mut self, me: Id, leaf: Leaf, ending: Ending) {
        self.tell("a leaf drops what it captured".to_owned());
        let came = match ending {
            _ if self.is_cancelled(me) => "cancelled",
            Ending::Value | Ending::HandOn => "a value",
            Ending::Error | Ending::Panic => "failed by a leaf",
        };
        if leaf != Leaf::Forgotten {
            self.tell(format!("{me}: wait for a leaf answers {came}"));
        } else if came == "failed by a leaf" {
            self.tell("a leaf's failure is reported".to_owned());
        }
        if came == "a value" {
            self.tell("a leaf's value is dropped".to_owned());
        }
    }

    fn submit(&mut self, id: Id, by_hand: bool) {
        if self.all[id].life != Life::New {
            return;
        }
        if self.is_orphaned(id) {
            return self.mark(id, None);
        }
        self.all[id].submitted = by_hand;
        self.start(id);
    }

    fn start(&mut self, id: Id) {
        self.all[id].life = Life::Running;
        self.tell(format!("{id} runs"));
        self.idle(id);
    }

    /// Done with an order, or just started: listens. Learns of its cancel if there is one.
    pub(crate) fn idle(&mut self, me: Id) {
        self.all[me].doing = Doing::Idle;
        if self.is_cancelled(me) {
            self.all[me].sheltered = true;
            self.tell(format!("{me} takes shelter"));
        }
    }

    fn close(&mut self, me: Id) {
        self.all[me].region = false;
        if self.all[me].marked.is_some() && !self.all[me].delivered {
            self.deliver(me);
        }
    }

    // ---- waiting ----------------------------------------------------------------------------------------------------

    fn wait(&mut self, me: Id, id: Id, how: How) {
        match how {
            How::Take => self.all[id].table -= 1, // the very handle
            _ => self.all[me].holds = Some(id),
        }
        self.all[me].doing = Doing::Waits(id, how);
        self.waits += 1;
        self.all[me].began = self.waits;
        if self.is_cancelled(me) {
            return self.answer_with(me, id, "cancelled");
        }
        if self.is_over(id) {
            return self.answer(me, id);
        }
        if self.stack(me).contains(&id) {
            return self.answer_with(me, id, "circular");
        }
        if self.all[id].life == Life::New && self.is_orphaned(id) {
            self.mark(id, None);
            return self.answer(me, id);
        }
        if self.all[id].life == Life::New && matches!(how, How::Wait | How::Take) && !self.all[id].own_stack {
            self.all[me].doing = Doing::Lends(id, how);
            (self.all[id].lender, self.all[id].below) = (Some(me), Some(me));
            return self.start(id);
        }
        self.all[id].waiters.push(me);
        self.submit(id, false);
    }

    /// Answers a waiter whose target is over.
    fn answer(&mut self, me: Id, id: Id) {
        if self.is_cancelled(me) {
            return self.answer_with(me, id, "cancelled"); // told first
        }
        let (Doing::Waits(_, how) | Doing::Lends(_, how)) = self.all[me].doing else {
            unreachable!("it waits")
        };
        let shared = how == How::Take && self.all[id].life == Life::Finished && self.handles(id) > 1;
        let outcome = if shared { "shared".to_owned() } else { self.outcome(id) };
        self.all[id].seen |= matches!(self.all[id].life, Life::Failed(_));
        let called = self.all[id].called;
        let outcome = if shared { outcome } else { format!("{outcome}, after {called} callbacks") };
        self.answer_with(me, id, &outcome);
    }

    /// It hears from the next order on.
    pub(crate) fn answer_with(&mut self, me: Id, id: Id, what: &str) {
        let (Doing::Waits(_, how) | Doing::Lends(_, how)) = self.all[me].doing else {
            unreachable!("it waits")
        };
        self.tell(format!("{me}: {how:?} for {id} answers {what}"));
        self.all[me].answer = match what {
            "cancelled" => Some(Life::Cancelled),
            "timed out" | "circular" | "shared" => Some(Life::Failed(Vec::new())),
            _ => Some(self.all[id].life.clone()).filter(|life| matches!(life, Life::Failed(_))),
        };
        self.all[me].doing = Doing::Acts;
        if how == How::Take {
            self.handle_gone(id);
        }
        self.idle(me);
    }

    /// `me` and whatever lies below on its stack.
    pub(crate) fn stack(&self, me: Id) -> Vec<Id> {
        std::iter::successors(Some(me), |&at| self.all[at].below).collect()
    }

    fn handles(&self, id: Id) -> usize {
        let held = self.all.iter().filter(|a| {
            a.holds == Some(id)
                || matches!(a.doing, Doing::Waits(of, How::Take) | Doing::Lends(of, How::Take) if of == id)
        });
        self.all[id].table + held.count()
    }

    /// One handle less.
    fn handle_gone(&mut self, id: Id) {
        if self.handles(id) > 0 {
            return;
        }
        if self.all[id].life == Life::New {
            return self.mark(id, None);
        }
        if self.is_over(id) {
            self.forget(id);
        }
    }

    /// Nobody can reach its value or failure any more.
    fn forget(&mut self, id: Id) {
        if std::mem::take(&mut self.all[id].has_value) {
            self.tell(format!("{id}: its value is dropped"));
        }
        if matches!(self.all[id].life, Life::Failed(_)) && !std::mem::replace(&mut self.all[id].seen, true) {
            self.tell(format!("{id}: its failure is reported"));
        }
    }

    // ---- the end ----------------------------------------------------------------------------------------------------

    fn end_by(&mut self, me: Id, ending: Ending) {
        let handed_on = self.all[me].answer.take().filter(|_| ending == Ending::HandOn);
        self.tell(format!("{me} drops what it captured"));
        self.all[me].has_value = ending == Ending::Value || (ending == Ending::HandOn && handed_on.is_none());
        let life = match (ending, handed_on) {
            (Ending::Error | Ending::Panic, _) => Life::Failed(vec![me]),
            (_, Some(Life::Failed(path))) => Life::Failed([path, vec![me]].concat()),
            _ if self.all[me].marked.is_some() => Life::Cancelled,
            _ => Life::Finished,
        };
        self.end(me, life);
    }

    pub(crate) fn end(&mut self, id: Id, mut life: Life) {
        if life == Life::Cancelled && std::mem::take(&mut self.all[id].has_value) {
            self.tell(format!("{id}: its value is dropped"));
        }
        self.all[id].life = life.clone();
        let calls = std::mem::take(&mut self.all[id].calls);
        for &call in calls.iter().filter(|call| matches!(call, Call::Finished | Call::FinishedPanics)) {
            if self.call(id, call) && call == Call::FinishedPanics {
                life = Life::Failed(vec![id]);
                self.all[id].life = life.clone();
            }
        }
        for group in [[Call::Failed, Call::Cancelled], [Call::Done, Call::Done]] {
            calls.iter().filter(|call| group.contains(call)).for_each(|&call| _ = self.call(id, call));
        }
        if life != Life::Finished || self.is_orphaned(id) {
            self.spread(id);
        }
        for waiter in std::mem::take(&mut self.all[id].waiters) {
            self.answer(waiter, id);
        }
        if let Some(lender) = self.all[id].below.take() {
            self.all[id].lender = None;
            self.answer(lender, id);
        }
        if self.handles(id) == 0 {
            self.forget(id);
        }
    }

    /// Calls, if the outcome is the callback's.
    fn call(&mut self, id: Id, call: Call) -> bool {
        let fits = match call {
            Call::Finished | Call::FinishedPanics => self.all[id].life == Life::Finished,
            Call::Failed => matches!(self.all[id].life, Life::Failed(_)),
            Call::Cancelled => self.all[id].life == Life::Cancelled,
            Call::Done => true,
        };
        if fits {
            self.all[id].called += 1;
            self.all[id].seen |= matches!(self.all[id].life, Life::Failed(_));
            let outcome = if call == Call::Cancelled { "nothing".to_owned() } else { self.outcome(id) };
            let nth = self.all[id].called;
            self.tell(format!("{id}: callback {nth} is {call:?}, told {outcome}"));
        }
        fits
    }

    fn outcome(&self, id: Id) -> String {
        match (&self.all[id].life, self.all[id].marked) {
            (Life::New | Life::Running, _) => "none".to_owned(),
            (Life::Finished, _) => format!("value {id}"),
            (Life::Failed(path), _) => format!("failed along {path:?}"),
            (Life::Cancelled, Some(Some(why))) => format!("cancelled for reason {why}"),
            (Life::Cancelled, _) => "cancelled".to_owned(),
        }
    }

    pub(crate) fn is_over(&self, id: Id) -> bool {
        !matches!(self.all[id].life, Life::New | Life::Running)
    }
}

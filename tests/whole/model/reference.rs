//! The reference: what a program does, by the promises, one step after the other.
//!
//! Written from the promises (requests, outcome, waiting, direct execution, cancellation, callbacks), not from the code:
//! no words, no lists, no threads. It answers what is seen to happen after an order: lines, whose order means nothing (what
//! must come first says so by a number in the line). Here are a request's begin, waits and end; what concerns cancelling is in
//! [`super::cancelling`], what each order asks for in [`super::orders`], and the choice of those that make sense in
//! [`super::choice`].
//!
//! # Vocabulary
//!
//! An *actor* is a foreign thread or a request; a thread is an actor that is always running and never cancelled. A request
//! that was started by a waiter on its own stack has a *lender*, which waits and hears nothing until it ends. An actor that
//! learns of its cancel while it is idle *takes shelter*: it listens on in a shielded region until the next order.

use super::program::{Call, Ending, How, Id, THREADS};

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

#[derive(Clone, Debug, Default)]
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
    /// The waiter that runs it on its own stack, while it is demand.
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
    /// Whether no request runs on a waiter's stack.
    pub(crate) own_stacks: bool,
    pub(crate) told: Vec<String>,
    waits: usize,
}

impl Reference {
    pub(crate) fn new(own_stacks: bool) -> Reference {
        let thread = Actor { life: Life::Running, ..Actor::default() };
        Reference { all: vec![thread; THREADS], own_stacks, ..Reference::default() }
    }

    pub(crate) fn tell(&mut self, line: String) {
        self.told.push(line);
    }

    pub(crate) fn requests(&self) -> std::ops::Range<Id> {
        THREADS..self.all.len()
    }

    // ---- the begin ----------------------------------------------------------------------------------------------------

    pub(crate) fn submit(&mut self, id: Id, by_hand: bool) {
        if self.all[id].life != Life::New {
            return;
        }
        if self.is_orphaned(id) {
            return self.mark(id, None);
        }
        self.all[id].submitted = by_hand;
        self.start(id);
    }

    pub(crate) fn start(&mut self, id: Id) {
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

    pub(crate) fn close(&mut self, me: Id) {
        self.all[me].region = false;
        if self.all[me].marked.is_some() && !self.all[me].delivered {
            self.deliver(me);
        }
    }

    // ---- waiting ----------------------------------------------------------------------------------------------------

    pub(crate) fn wait(&mut self, me: Id, id: Id, how: How) {
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
    pub(crate) fn handle_gone(&mut self, id: Id) {
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

    pub(crate) fn end_by(&mut self, me: Id, ending: Ending) {
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
    pub(crate) fn call(&mut self, id: Id, call: Call) -> bool {
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

    pub(crate) fn outcome(&self, id: Id) -> String {
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

//! What each order asks of the reference.

use super::program::{Call, Ending, Id, Leaf, Make, Order, Step, THREADS};
use super::reference::{Actor, Doing, Life, Reference};

impl Reference {
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
        self.all.push(Actor {
            parent,
            own_stack: self.own_stacks || make == Make::OwnStack,
            table: 1,
            ..Actor::default()
        });
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
}

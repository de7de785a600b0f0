//! Which orders of a program make sense when their turn comes, by what the reference knows.

use super::program::{Ending, How, Id, Order, REQUESTS, Step, THREADS};
use super::reference::{Actor, Doing, Life, Reference};

impl Reference {
    /// The step with real numbers, if it makes sense now.
    pub(crate) fn resolve(&self, step: &Step) -> Option<Step> {
        let hears = |id: &Id| self.all[*id].life == Life::Running && self.all[*id].doing == Doing::Idle;
        let pick = |from: Vec<Id>, n: Id| (!from.is_empty()).then(|| from[n % from.len()]);
        let of = |n| pick(self.requests().filter(|&id| self.all[id].table > 0).collect(), n);
        if let Order::Pass = step.order {
            return self.next_to_time_out();
        }
        let actor = pick((0..self.all.len()).filter(hears).collect(), step.actor)?;
        let me = &self.all[actor];
        let order = match step.order {
            Order::Make(_) if self.requests().len() == REQUESTS => return None,
            Order::Make(_) | Order::Leaf(..) => step.order,
            Order::Submit(id) => Order::Submit(of(id)?),
            Order::Wait(id, how) => {
                let makes_no_sense =
                    |id: &Id| self.closes_a_cycle(actor, *id) || how == How::Take && self.is_being_taken(*id);
                Order::Wait(of(id).filter(|id| !makes_no_sense(id))?, how)
            }
            Order::Clone(id) => Order::Clone(of(id)?),
            Order::Drop(id) => Order::Drop(of(id)?),
            Order::Cancel(id) => Order::Cancel(of(id)?),
            Order::Abort(id, why) => Order::Abort(of(id)?, why),
            Order::Subscribe(id, call) => Order::Subscribe(of(id)?, call),
            Order::Look(id) => Order::Look(of(id)?),
            Order::Open if actor < THREADS || me.region => return None,
            Order::Close if !me.region => return None,
            Order::End(_) if actor < THREADS => return None,
            Order::Open | Order::Close | Order::End(_) | Order::Pass => step.order,
        };
        Some(Step { actor, order })
    }

    /// What brings a program to its end: time passes, who is idle returns, handles are dropped.
    pub(crate) fn closing(&self) -> Option<Step> {
        let running = |me: &Actor| me.life == Life::Running;
        if let Some(step) = self.next_to_time_out() {
            return Some(step);
        }
        let mut requests = self.all.iter().enumerate().skip(THREADS);
        if let Some((actor, _)) = requests.clone().find(|(_, me)| running(me) && me.doing == Doing::Idle) {
            return Some(Step { actor, order: Order::End(Ending::Value) });
        }
        requests.find(|(_, me)| me.table > 0).map(|(id, _)| Step { actor: 0, order: Order::Drop(id) })
    }

    /// Lets time pass up to the end of one timed wait: two that end at once would run against each other.
    pub(crate) fn next_to_time_out(&self) -> Option<Step> {
        let timed = |id: &Id| matches!(self.all[*id].doing, Doing::Waits(_, How::Timed));
        let first = (0..self.all.len()).filter(timed).min_by_key(|&id| self.all[id].began)?;
        Some(Step { actor: first, order: Order::Pass })
    }

    /// Who of two that take is the last, and gets the value, depends on who goes on first.
    fn is_being_taken(&self, target: Id) -> bool {
        let takes = |doing| matches!(doing, Doing::Waits(of, How::Take) | Doing::Lends(of, How::Take) if of == target);
        self.all.iter().any(|me| takes(me.doing))
    }

    /// A wait that would wait for itself through others. (On its own stack it is refused.)
    fn closes_a_cycle(&self, me: Id, target: Id) -> bool {
        let mine = self.stack(me);
        let mut at = target;
        while let Doing::Waits(next, _) | Doing::Lends(next, _) = self.all[at].doing {
            if mine.contains(&next) && !mine.contains(&target) {
                return true;
            }
            at = next;
        }
        false
    }
}

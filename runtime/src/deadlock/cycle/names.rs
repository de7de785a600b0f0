//! What stands on the stacks of a cycle, and the names round it.
//!
//! # Who holds a lock
//!
//! A lock knows the stack of its holder, and not which of the requests there took it: that would cost each lock and unlock. Requests nest on a stack, and a
//! plain thread may stand below them. So where a cycle comes to a stack by a lock, and more than one might hold it, all of them are named as one: the top one alone
//! would mostly be the wrong one, since that waits.

use std::ptr::{self, NonNull};

use forebear_context::context::Reason;
use forebear_context::context::edge::{Ahead, Held};
use forebear_context::source::Several;

use crate::record::dependents;
use crate::record::dropping;
use crate::record::fiber::Fiber;
use crate::record::header::{Header, REGION};
use crate::shared::thread;

/// A request and its name. The pointer is null for what is named only.
type Named = (*const Header, String);

/// The requests on a stack, from the top. By the stack itself, or while its wait is held (Y3).
pub(super) fn on_stack(fiber: &Fiber) -> impl Iterator<Item = &Header> {
    // SAFETY: what is below another on a stack is not over.
    std::iter::successors(fiber.request(), |h| unsafe { h.lender.get().as_ref() })
}

/// How a request stands on a stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StandsBy {
    /// It has started there.
    Running,
    /// It is being ended there without having started.
    Ending,
    /// It is after something that has started or is being ended there, directly or not.
    Declared,
}

/// Calls `with` for all that cannot end before this stack continues. By the stack itself, or while its wait is held (Y3).
pub(super) fn each_standing(fiber: &Fiber, with: &mut dyn FnMut(&Header, StandsBy)) {
    let mut with_blocked = |h: &Header, way| {
        with(h, way);
        dependents::each_blocked(h, |blocked| {
            with(blocked, StandsBy::Declared);
            false
        });
    };
    dropping::each_ended_on(fiber, |h, _| with_blocked(h, StandsBy::Ending));
    on_stack(fiber).for_each(|h| with_blocked(h, StandsBy::Running));
}

/// Whether a request is a job of the scope that has this address.
pub(super) fn is_job(h: &Header, scope: NonNull<()>) -> bool {
    ptr::addr_eq(h.scope.get(), scope.as_ptr())
}

/// How one comes to a stack.
#[derive(Clone, Copy)]
enum StackEntry {
    /// By a wait for this request.
    Target(*const Header),
    /// By a scope's, for this one among others.
    JobOf(NonNull<()>),
    /// By a set's, for this one among others, any of which would do.
    MemberOf(NonNull<Several>),
    /// By a wait for what something on it holds; the lock does not know which of its requests.
    Holder,
}

impl StackEntry {
    fn of(held: &Held<'_>) -> Option<StackEntry> {
        match (held.ahead(), held.waits_for()) {
            (Ahead::All(_), (reason, _)) if reason.has_owner() => Some(StackEntry::Holder),
            (Ahead::All(several), (Reason::Select, _)) => Some(StackEntry::MemberOf(several.cast())),
            (Ahead::All(scope), _) => Some(StackEntry::JobOf(scope)),
            (Ahead::Owner(_), _) => Some(StackEntry::Holder),
            (_, (Reason::Request | Reason::Arm, target)) => Some(StackEntry::Target(target.cast())),
            _ => None,
        }
    }

    /// The target is declared to be after a request that has started on this stack, or that is being ended there. The
    /// fields are the target's name, how many requests are on the stack down to that request, and that request itself
    /// if it is being ended.
    fn through(self, fiber: &Fiber) -> Option<(String, usize, Option<Named>)> {
        let blocked_by = |h: &Header| {
            let mut name = None;
            dependents::each_blocked(h, |blocked| {
                let leads = self.leads_to(blocked);
                if leads {
                    name = Some(blocked.name().to_owned());
                }
                leads
            });
            name
        };
        let running = on_stack(fiber)
            .enumerate()
            .find_map(|(depth, h)| blocked_by(h).map(|name| (name, depth + 1, None)));
        running.or_else(|| {
            let mut found = None;
            dropping::each_ended_on(fiber, |h, below| {
                if found.is_none() {
                    found = blocked_by(h).map(|name| (name, count_above(fiber, below), Some(named(h))));
                }
            });
            found
        })
    }

    /// The request that is being ended on this stack without having started, if one comes here by a wait for that one: how many stand above, and
    /// its name.
    fn ended_on(self, fiber: &Fiber) -> Option<(usize, Named)> {
        if matches!(self, StackEntry::Holder) {
            return None;
        }
        let mut found = None;
        dropping::each_ended_on(fiber, |h, below| {
            if self.leads_to(h) {
                found = Some((count_above(fiber, below), named(h)));
            }
        });
        found
    }

    fn leads_to(self, h: &Header) -> bool {
        match self {
            StackEntry::Target(target) => ptr::eq(h, target),
            StackEntry::JobOf(scope) => is_job(h, scope),
            StackEntry::MemberOf(several) => {
                let mut found = false;
                // SAFETY: it lies in the frame of the wait, which was bound and is held.
                let several = unsafe { several.as_ref() };
                // SAFETY: as above: the wait is held meanwhile.
                unsafe { several.each_request(&mut |member| found |= ptr::addr_eq(member.as_ptr(), h)) };
                found
            }
            StackEntry::Holder => true,
        }
    }
}

/// Those on a stack that may have taken a lock that it holds, as one name; `None` if there is only one. By the stack itself, or while its wait is held (Y3).
fn holders(fiber: &Fiber) -> Option<Named> {
    // A region with a limit is a part of its caller, as an arm is of its maker.
    let requests = on_stack(fiber).filter(|h| !h.has_state(REGION)).map(Header::identity);
    let mut names: Vec<Named> = requests.map(named).collect();
    names.dedup_by_key(|name| name.0);
    if !fiber.has_worker() {
        // SAFETY: a fiber without a worker is a foreign thread's; it is there by Y3.
        let thread = unsafe { thread::name_of_thread(NonNull::from(fiber.context())) };
        names.push((ptr::null(), thread.to_owned()));
    }
    if names.len() < 2 {
        return None;
    }
    let mut shown: Vec<String> = names.iter().rev().map(|name| shortened(&name.1)).collect();
    if shown.len() > 2
        && shown.iter().map(|name| name.chars().count() + 3).sum::<usize>() > 2 * (SHOWN + 3) + 4
    {
        shown.splice(1..shown.len() - 1, ["…".to_owned()]);
    }
    Some((ptr::null(), format!("{}, on one stack", shown.join(" > "))))
}

/// The most characters of a name where several are shown as one: a message cuts what is longer than three of them.
const SHOWN: usize = 20;

fn shortened(name: &str) -> String {
    let mut rest = name;
    if name.chars().count() > SHOWN {
        while let Some(outer) = rest.strip_suffix("::{{closure}}") {
            rest = outer;
        }
    }
    let many = rest.chars().count();
    if many <= SHOWN {
        return rest.to_owned();
    }
    // As in `ShownName`: a path loses its beginning.
    match rest.contains("::") {
        true => std::iter::once('…').chain(rest.chars().skip(many + 1 - SHOWN)).collect(),
        false => rest.chars().take(SHOWN - 1).chain(std::iter::once('…')).collect(),
    }
}

/// The names round the cycle, from the request that waits in the first member: each waits for the next, or has lent it its
/// stack. `None`: it is no cycle.
pub(super) fn name(ring: &[Held<'_>]) -> Option<Vec<String>> {
    let mut entry = StackEntry::of(ring.last()?)?;
    let mut names: Vec<Named> = Vec::new();
    let mut below_first = 0;
    for (at, held) in ring.iter().enumerate() {
        // SAFETY: a context with an edge is a fiber's.
        let fiber = unsafe { Fiber::of(held.context()) };
        let mut from = names.len();
        // From the top, which waits, down to the one that is waited for.
        let (mut bottom, mut many) = (None, 0);
        match on_stack(fiber).position(|h| entry.leads_to(h)) {
            Some(depth) => {
                many = depth + 1;
                if matches!(entry, StackEntry::Holder) {
                    bottom = holders(fiber);
                }
            }
            None if matches!(entry, StackEntry::Holder) => {
                // A thread that runs no request.
                bottom = Some((ptr::null(), held.context().name()));
            }
            None => match entry.ended_on(fiber) {
                Some((above, ended)) => (bottom, many) = (Some(ended), above),
                None => {
                    // One comes here through what is after a request of this stack, and has not started.
                    let (name, above, ended) = entry.through(fiber)?;
                    names.push((ptr::null(), name));
                    from = names.len();
                    (bottom, many) = (ended, above);
                }
            },
        }
        let on_top = on_stack(fiber).take(many).map(Header::identity);
        names.extend(on_top.map(named));
        names.extend(bottom);
        names[from..].reverse();
        let top = names.len().saturating_sub(1);
        // SAFETY: the wait is held.
        if let Some(wait) = unsafe { held.context().owner_wait() } {
            names.push((ptr::null(), wait.to_string()));
        }
        if at == 0 {
            below_first = top;
        }
        entry = StackEntry::of(held)?;
    }
    names.rotate_left(below_first);
    Some(distinct(names))
}

/// The names round the cycle that the wait of `fiber` for something on its own stack would be; `None` if `target` is not there.
pub(super) fn of_own_stack(fiber: &Fiber, target: &Header) -> Option<Vec<String>> {
    let depth = on_stack(fiber).position(|h| ptr::eq(h, target))?;
    let mut names: Vec<_> = on_stack(fiber).take(depth + 1).map(Header::identity).map(named).collect();
    names[1..].reverse();
    Some(distinct(names))
}

/// The same if `target` is being ended on that stack without having started.
pub(super) fn of_own_end(fiber: &Fiber, target: &Header) -> Option<Vec<String>> {
    let mut found = None;
    dropping::each_ended_on(fiber, |h, below| {
        if ptr::eq(h, target) {
            found = Some(count_above(fiber, below));
        }
    });
    let mut names: Vec<_> = on_stack(fiber).take(found?).map(Header::identity).map(named).collect();
    names.push(named(target));
    names[1..].reverse();
    Some(distinct(names))
}

/// How many requests stand on this stack above `below`.
fn count_above(fiber: &Fiber, below: *const Header) -> usize {
    on_stack(fiber).take_while(|on| !ptr::eq(*on, below)).count()
}

fn named(h: &Header) -> Named {
    (ptr::from_ref(h), h.name().to_owned())
}

/// An arm of a join goes by the name of its maker, which waits for it; that is said once.
fn distinct(mut names: Vec<Named>) -> Vec<String> {
    names.dedup_by(|a, b| !a.0.is_null() && a.0 == b.0);
    let ends = names.first().zip(names.last()).map(|(first, last)| (first.0, last.0));
    if names.len() > 1 && ends.is_some_and(|(first, last)| !first.is_null() && first == last) {
        names.pop();
    }
    names.into_iter().map(|name| name.1).collect()
}

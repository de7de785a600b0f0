//! When nothing on a thread's seats can go on: is there anybody who could end one of the waits there, and if not, which is
//! answered with its circle.
//!
//! Every wait for a request leads to the stack that it runs on, and from there to what that waits for. Where this leads out
//! of the thread (another seat, a guest, another runtime) somebody may still come. Where it leads back, nobody can, whoever
//! else is about: the member that began its wait last gets [`Cause::Circular`](forebear_context::context::Cause). Where it
//! leads to the end of a scope or of a pool, the jobs are what they wait for, and they all stand still here; then it is the
//! innermost wait of all.

use std::ptr::{self, NonNull};

use forebear_context::context::Reason;
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::Ordering;

use crate::driver::Seat;
use crate::header::Header;
use crate::strand::Strand;
use crate::word::HELD;

/// Where a wait leads.
enum Edge {
    /// To this stack of the thread's.
    Here(*const Strand),
    /// To the end of others that cannot go on either.
    Others,
    /// To somebody who may come.
    Away,
}

/// Ends the innermost of the waits here that nothing can end. False: somebody may come.
///
/// On the thread whose seats these are, in its driver, with nothing ready. `host` is its own strand.
pub(crate) fn settle_circle(seats: &[Seat], host: &Strand) -> bool {
    // What a single walk could not see as it closed; see `cycle`.
    if seats.iter().any(|seat| seat.shared.survey.make_now()) {
        return true;
    }
    if seats.iter().any(|seat| seat.shared.deadlines.next().is_some()) {
        return false;
    }
    let mut waits: Vec<(u64, &Strand)> = Vec::new();
    for seat in seats {
        let worker = seat.worker();
        worker.driver().each_begun(|strand| {
            if strand.context().is_waiting() {
                // SAFETY: K3; it waits, so it stays while this looks.
                waits.push((strand.due.get().0, unsafe { &*ptr::from_ref(strand) }));
            }
        });
    }
    // The innermost first; the host began before all that it drives.
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.0));
    let host_waits = host.context().is_waiting() && host.context().waits_for().0 != Reason::None;
    waits.extend(host_waits.then_some((0, host)));
    let mut away = seats
        .iter()
        .any(|seat| seat.shared.driven.as_ref().is_some_and(|driven| driven.has_others(seat.index)));
    for &(_, strand) in &waits {
        let mut path: Vec<&Strand> = Vec::new();
        let mut at = strand;
        let end = loop {
            if let Some(from) = path.iter().position(|on| ptr::eq(*on, at)) {
                // `waits` comes innermost first, so the first circle's innermost member is found by its number.
                return settle(seats, host, &path[from..], true);
            }
            path.push(at);
            match edge(seats, host, at) {
                Edge::Here(next) => {
                    // SAFETY: a stack of this thread's that a request runs on, which is not over.
                    at = unsafe { &*next };
                    if !at.context().is_waiting() {
                        // It is ready, and has not been seen yet.
                        break Edge::Away;
                    }
                }
                end => break end,
            }
        };
        away |= matches!(end, Edge::Away);
    }
    if away {
        return false;
    }
    for &(_, strand) in &waits {
        if strand.context().waits_for().0 == Reason::Request {
            let mut path = vec![strand];
            while let Some(at) = path.last()
                && let Edge::Here(next) = edge(seats, host, at)
                && !path.iter().any(|on| ptr::eq(*on, next))
            {
                // SAFETY: as above.
                path.push(unsafe { &*next });
            }
            return settle(seats, host, &path, false);
        }
    }
    false
}

/// Where the wait of `strand` leads.
fn edge(seats: &[Seat], host: &Strand, strand: &Strand) -> Edge {
    let (reason, target) = strand.context().waits_for();
    let h = match (reason, NonNull::new(target.cast::<Header>())) {
        (Reason::Scope | Reason::Pool, _) => return Edge::Others,
        // SAFETY: who waits holds a count of what it waits for.
        (Reason::Request | Reason::Arm, Some(target)) => unsafe { target.as_ref() },
        _ => return Edge::Away,
    };
    let bits = h.word.load();
    if bits.is_unstarted() && bits.life() == HELD {
        return Edge::Others;
    }
    let at = h.strand.load(Ordering::Relaxed).cast_const();
    // SAFETY: M3: homes stay while headers of them do.
    let home = unsafe { h.ran_on.load(Ordering::Relaxed).as_ref() };
    if bits.is_unstarted() || bits.is_terminal() {
        return Edge::Away;
    }
    match home {
        _ if ptr::eq(at, host) => Edge::Here(at),
        Some(home) if seats.iter().any(|seat| ptr::eq(seat.worker().home(), home)) => Edge::Here(at),
        _ => Edge::Away,
    }
}

/// Ends the innermost wait for a request on the path.
fn settle(seats: &[Seat], host: &Strand, path: &[&Strand], closed: bool) -> bool {
    let asks = |strand: &Strand| strand.context().waits_for().0 == Reason::Request;
    let number = |strand: &Strand| if ptr::eq(strand, host) { 0 } else { strand.due.get().0 };
    let candidates = path.iter().enumerate().filter(|(_, strand)| asks(strand));
    let Some((at, _)) = candidates.max_by_key(|(_, strand)| number(strand)) else { return false };
    let strand = path[at];
    // From the one that is told, along the waits.
    let mut names = Vec::new();
    for step in 0..path.len() {
        let on = path[(at + step) % path.len()];
        if !closed && at + step >= path.len() {
            break;
        }
        names.push(on.request().map_or("the calling thread", Header::name).to_owned());
        let (reason, target) = on.context().waits_for();
        // What it waits for may stand below what runs on that stack.
        if reason == Reason::Request
            // SAFETY: as in `edge`.
            && let Some(target) = unsafe { target.cast::<Header>().as_ref() }
        {
            let next = path.get((at + step + 1) % path.len());
            let on_top = next.and_then(|next| next.request()).is_some_and(|top| ptr::eq(top, target));
            if !on_top {
                names.push(target.name().to_owned());
            }
        }
    }
    for seat in seats {
        if let Some(driven) = &seat.shared.driven {
            driven.note_circle(strand, Cycle::new(names.clone()));
            break;
        }
    }
    if !strand.context().end_circular_wait() {
        return false;
    }
    if let Some(worker) = strand.worker() {
        worker.make_ready(NonNull::from(strand));
    }
    true
}

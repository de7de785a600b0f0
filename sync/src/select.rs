//! One wait of several: what `select!` expands to.
//!
//! A select is a *row* of arms in the frame of its caller. The arms are nested types, so that each may have a type of
//! its own and none is boxed. [`forebear_context::source`] says what an arm is, and how a select works.
//!
//! # The race
//!
//! An arm that enters may find that it need not wait, since it became ready after the select had tried it. Then the
//! select takes its wait back. If that is refused, a thread has already handed something to another arm, and the select
//! takes that. Two selects may offer each other what the other wants, in opposite order. Both may take their waits
//! back, and then neither finds the other listed. So after that each pauses before it tries again, longer every time
//! and by a number of its own.

use std::ptr::NonNull;
use std::time::Instant;

use forebear_context::context::{Cause, Context, Reason, Ticket, in_request};
use forebear_context::error::internal::unwind_with;
use forebear_context::error::{Cancelled, Error};
use forebear_context::shim::hint;
use forebear_context::source::{Arm, LeaveResult, Output, ReportsCancel, Several, Source};

use crate::here::with_context;

mod after;
mod cancelled;
mod event;

pub use self::after::{After, after};
pub use self::cancelled::{CancelledSource, cancelled};

/// So many takings-back without a pause.
const AT_ONCE: u32 = 2;
/// The longest pause is of two to the power of this.
const LONGEST: u32 = 6;

/// Arms in a row. To be called by `select!`.
#[derive(Debug)]
pub struct Row<A, R>(pub A, pub R);

/// The end of a row.
#[derive(Debug)]
pub struct End;

/// What a row answers: the output of its first arm, or what the rest of it answers.
#[derive(Debug)]
pub enum Picked<H, R> {
    /// Of the first.
    Here(H),
    /// Of the rest.
    There(R),
}

/// Arms by number.
pub trait Arms {
    /// How many there are.
    fn len(&self) -> usize;
    /// One of them.
    fn at(&mut self, at: usize) -> &mut dyn Arm;
}

/// Arms with what they answer.
pub trait Outputs: Arms {
    /// What the row answers.
    type Output;
    /// The output of an arm that has it; that of the end is the `else` arm's.
    fn output(&mut self, at: usize) -> Self::Output;
    /// Every arm gives up what it has submitted; see [`Arm::give_up`].
    fn give_up(&mut self) -> bool;
}

impl Arms for End {
    fn len(&self) -> usize {
        0
    }

    fn at(&mut self, _: usize) -> &mut dyn Arm {
        unreachable!("asked for an arm behind the last")
    }
}

impl Outputs for End {
    type Output = End;

    fn output(&mut self, _: usize) -> End {
        End
    }

    fn give_up(&mut self) -> bool {
        false
    }
}

impl<A: Arm, R: Arms> Arms for Row<A, R> {
    fn len(&self) -> usize {
        1 + self.1.len()
    }

    fn at(&mut self, at: usize) -> &mut dyn Arm {
        if at == 0 { &mut self.0 } else { self.1.at(at - 1) }
    }
}

impl<A: Output, R: Outputs> Outputs for Row<A, R> {
    type Output = Picked<A::Output, R::Output>;

    fn output(&mut self, at: usize) -> Self::Output {
        if at == 0 { Picked::Here(self.0.output()) } else { Picked::There(self.1.output(at - 1)) }
    }

    #[inline(always)]
    fn give_up(&mut self) -> bool {
        self.0.give_up() | self.1.give_up()
    }
}

/// How to select.
#[derive(Clone, Copy, Debug, Default)]
pub struct SelectTerms {
    /// The arms are looked at in their order.
    pub biased: bool,
    /// There is an `else` arm: no wait.
    pub or_else: bool,
}

/// The arm of a source.
pub fn arm<S: Source>(source: S) -> S::Arm {
    source.into_arm()
}

/// What is left to do after [`prepare`].
enum SelectStep {
    /// This arm has its output.
    Picked(usize),
    Park(Ticket, Option<Instant>),
}

/// Waits for the first of them. To be inlined into the caller, since the switch is (see [`forebear_context::switch`]).
#[inline(always)]
#[track_caller]
pub fn first<R: Outputs>(row: &mut R, terms: SelectTerms) -> R::Output {
    let row_at = NonNull::from(&mut *row);
    // SAFETY: the row stays in its frame.
    let several = unsafe { Several::new(row_at.cast(), each_request::<R>) };
    let picked = with_context!(|context| {
        loop {
            // SAFETY: as above; it is used by this stack alone, but while that is left.
            let row = unsafe { &mut *row_at.as_ptr() };
            match prepare(context, row, terms, &several) {
                SelectStep::Picked(at) => break at,
                SelectStep::Park(ticket, deadline) => {
                    // SAFETY: on the context's own stack, after `begin`.
                    let cause = unsafe { context.park_until(ticket, deadline) };
                    // SAFETY: the wait is over, by this cause.
                    if let Some(at) = unsafe { leave(context, row, cause) } {
                        break at;
                    }
                }
            }
        }
    });
    // SAFETY: as above; no wait is under way.
    let row = unsafe { &mut *row_at.as_ptr() };
    if row.give_up() {
        settle(row);
    }
    row.output(picked)
}

/// Calls `with` with each request that an arm of the row waits for.
///
/// # Safety
///
/// `row` is one of this type, and nobody else touches it meanwhile.
unsafe fn each_request<R: Arms>(row: NonNull<()>, with: &mut dyn FnMut(NonNull<()>)) {
    // SAFETY: by contract.
    let row = unsafe { row.cast::<R>().as_mut() };
    for at in 0..row.len() {
        row.at(at).each_request(with);
    }
}

/// Looks, and enters if there is nothing.
#[inline(never)]
#[track_caller]
fn prepare(context: &Context, row: &mut dyn Arms, terms: SelectTerms, several: &Several) -> SelectStep {
    let len = row.len();
    let turn = if terms.biased { 0 } else { scatter(context.turn()) };
    let start = if len == 0 { 0 } else { (turn % len as u64) as usize };
    let order = move || (start..len).chain(0..start);
    let mut taken_back = 0;
    loop {
        // A select that does not wait is not refused.
        if !terms.or_else && context.is_cancelled() {
            return SelectStep::Picked(tell(row));
        }
        if let Some(at) = order().find(|&at| row.at(at).try_complete(context)) {
            return SelectStep::Picked(at);
        }
        if terms.or_else {
            return SelectStep::Picked(len);
        }
        context.about_to_wait("select!");
        let deadline = (0..len).filter_map(|at| row.at(at).deadline()).min();
        // SAFETY: C2: this is the context's own stack; C4: `several` stays in the caller's frame, and nothing unwinds before the wait is
        // parked or taken back.
        let ticket = unsafe { context.begin(Reason::Select, std::ptr::from_ref(several).cast_mut().cast()) };
        // SAFETY: A1: the row stays in its frame; all of them leave, below or after the wait.
        if order().all(|at| unsafe { row.at(at).enter(context, ticket) }) || !context.withdraw(ticket) {
            return SelectStep::Park(ticket, deadline);
        }
        // SAFETY: taken back.
        if let Some(at) = unsafe { leave(context, row, Cause::Woken) } {
            return SelectStep::Picked(at);
        }
        taken_back += 1;
        if taken_back > AT_ONCE {
            let pauses = 1_u64 << (taken_back - AT_ONCE).min(LONGEST);
            (0..scatter(turn + u64::from(taken_back)) % pauses).for_each(|_| hint::spin_loop());
        }
    }
}

/// All arms leave their lists. Answers the arm that was chosen. If there is none, and the wait was not cancelled, answers an
/// arm that has become ready.
///
/// # Safety
///
/// The wait by whose ticket they have entered is over, by this cause.
#[inline(never)]
unsafe fn leave(context: &Context, row: &mut dyn Arms, cause: Cause) -> Option<usize> {
    let (mut chosen, mut news, mut owes) = (None, None, false);
    for at in 0..row.len() {
        // SAFETY: by contract.
        match unsafe { row.at(at).leave(context, cause) } {
            LeaveResult::Nothing => {}
            LeaveResult::Owes => owes = true,
            LeaveResult::Completed => news = news.or(Some(at)),
            LeaveResult::Chosen => {
                debug_assert!(chosen.is_none(), "A2");
                chosen = Some(at);
            }
        }
    }
    if owes {
        settle(row);
    }
    chosen.or_else(|| news.filter(|_| !context.is_cancelled()))
}

/// All have left: carries out what they owe.
#[cold]
#[inline(never)]
fn settle(row: &mut dyn Arms) {
    let (mut ends, mut last) = (Vec::new(), None);
    for at in 0..row.len() {
        let before = ends.len();
        row.at(at).settle(&mut ends);
        last = if ends.len() > before { Some(at) } else { last };
    }
    if let Some(at) = last {
        // SAFETY: the arms of this row have just added them.
        unsafe { row.at(at).end_all(ends) };
    }
}

/// The arm for a cancellation.
#[cold]
#[track_caller]
fn tell(row: &mut dyn Arms) -> usize {
    let find = |row: &mut dyn Arms, tells| (0..row.len()).find(|&at| row.at(at).reports_cancel() == tells);
    match find(row, ReportsCancel::Only).or_else(|| find(row, ReportsCancel::Output)) {
        Some(at) => {
            row.at(at).cancel();
            at
        }
        None => {
            if (0..row.len()).fold(false, |owes, at| row.at(at).give_up() | owes) {
                settle(row);
            }
            unwind_with(Error::from(Cancelled::new()), in_request())
        }
    }
}

/// Scatters the bits of a number (SplitMix64).
fn scatter(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Waits until one of several is ready, and continues with it.
///
/// ```
/// use std::time::Duration;
///
/// use forebear::channel::unbounded;
/// use forebear::select;
/// use forebear::time::after;
///
/// let (sender, receiver) = unbounded();
/// sender.send(3).unwrap();
/// let mut sum = 0;
/// loop {
///     select! {
///         n = &receiver => sum += n.unwrap(),
///         () = after(Duration::from_millis(1)) => break,
///     }
/// }
/// assert_eq!(sum, 3);
/// ```
///
/// Each arm is `pattern = source => body`. Sources are `&Receiver` (also of one item), `&mut watch::Receiver`,
/// [`sender.send_arm(item)`](crate::channel::Sender::send_arm), `&Event`, `&Request`, `&mut RequestSet`, [`after`](crate::after),
/// [`cancelled`](crate::cancelled), and an `Option` of each, which is never ready if it is `None`. The pattern is that of the source's
/// output and must always match. Bodies are in the function that selects: they may `?`, `break` and `return`. All sources are made
/// first, in order; the body runs when everything has been released.
///
/// Exactly one arm is taken. The others have received and sent nothing; an item that was handed to one of them has been passed on to
/// the next waiter. An item in `sender.send_arm(item)` that was not sent is dropped, unless the source is `&mut sending`, which keeps
/// it.
///
/// Suspends; it does not poll. A cancellation point: in a cancelled request the arm of `cancelled()` is taken, or else the first arm
/// whose output can be a cancel. If there is neither, it unwinds.
///
/// # `else`
///
/// With a last arm `else => body` it does not wait: that arm is taken if no other is ready now. So it is no cancellation point. The
/// arms are polled one after the other: an item that arrives at an arm already polled is missed.
///
/// # Fairness
///
/// If several are ready, each is as likely to be taken as the others: polling begins at a pseudo-random arm. With `biased;` in front the
/// arms are polled in their order, and the first that is ready is taken. While the select waits, the first arm that becomes ready is
/// taken. In the lists of waiters a select is treated as any other waiter.
///
/// # Requests
///
/// A request is submitted when the select polls it. While the select waits, it counts as demand for the request; the request becomes as urgent as
/// the most urgent waiter of the select. It is never run on the stack of the select. A cycle of waits that leads through a select is not found,
/// also if all arms wait for the caller; one through a wait of a `RequestSet` is.
///
/// # Panics
///
/// In a `no_suspend` region, if it would have to wait.
#[macro_export]
macro_rules! select {
    (biased; $($arms:tt)+) => { $crate::__select_parse!([true] [] $($arms)+) };
    ($($arms:tt)+) => { $crate::__select_parse!([false] [] $($arms)+) };
    () => { ::std::compile_error!("`select!` needs at least one arm: `pattern = source => body`") };
}

/// Takes the arms apart: `{(pattern) (source) (body)}` each.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_parse {
    ($how:tt [$($arm:tt)*] else => $body:expr $(,)?) => {
        $crate::__select_run!($how [$($arm)*] [$body])
    };
    ($how:tt [$($arm:tt)*] $pat:pat = $source:expr => $body:block , $($rest:tt)*) => {
        $crate::__select_parse!($how [$($arm)* {($pat) ($source) ($body)}] $($rest)*)
    };
    ($how:tt [$($arm:tt)*] $pat:pat = $source:expr => $body:block $($rest:tt)*) => {
        $crate::__select_parse!($how [$($arm)* {($pat) ($source) ($body)}] $($rest)*)
    };
    ($how:tt [$($arm:tt)*] $pat:pat = $source:expr => $body:expr , $($rest:tt)*) => {
        $crate::__select_parse!($how [$($arm)* {($pat) ($source) ($body)}] $($rest)*)
    };
    ($how:tt [$($arm:tt)*] $pat:pat = $source:expr => $body:expr) => {
        $crate::__select_parse!($how [$($arm)* {($pat) ($source) ($body)}])
    };
    ($how:tt [$($arm:tt)*]) => {
        $crate::__select_run!($how [$($arm)*] [])
    };
}

/// Makes the row, waits, and has the body of what was picked.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_run {
    ([$biased:literal] [$({($pat:pat) ($source:expr) ($body:expr)})*] $or_else:tt) => {{
        let picked = $crate::__select::first(
            &mut $crate::__select_row!($(($source))*),
            $crate::__select::SelectTerms { biased: $biased, or_else: $crate::__select_waits_not!($or_else) },
        );
        $crate::__select_body!(picked [$(($pat) ($body))*] $or_else)
    }};
}

/// Whether there is an `else` arm.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_waits_not {
    ([]) => {
        false
    };
    ([$body:expr]) => {
        true
    };
}

/// The arms, one inside the other.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_row {
    () => { $crate::__select::End };
    (($source:expr) $($rest:tt)*) => {
        $crate::__select::Row($crate::__select::arm($source), $crate::__select_row!($($rest)*))
    };
}

/// The bodies, one inside the other.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_body {
    ($picked:ident [] []) => {
        match $picked { $crate::__select::End => ::std::unreachable!("it waits for an arm") }
    };
    ($picked:ident [] [$body:expr]) => {
        match $picked { $crate::__select::End => $body }
    };
    ($picked:ident [($pat:pat) ($body:expr) $($rest:tt)*] $or_else:tt) => {
        match $picked {
            $crate::__select::Picked::Here($pat) => $body,
            $crate::__select::Picked::There(rest) => $crate::__select_body!(rest [$($rest)*] $or_else),
        }
    };
}

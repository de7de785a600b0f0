//! A random program, as data.
//!
//! A program is a list of orders to *actors*: two foreign threads, and every request that has started. An actor that is
//! idle takes an order, carries it out and is idle again; one that waits, or whose stack is lent, hears nothing until that
//! is over. Only one order is given at a time, and the next when nothing moves any more, so what a program does is
//! determined though its requests run on several workers and really suspend.
//!
//! Numbers in a program choose among what there is when its turn comes, modulo: actors among those that are idle, requests
//! among those that somebody has a handle of. An order that makes no sense then is left out. So any part of a program is a program, which is what shrinking needs.

use proptest::prelude::*;

/// Somebody's number: an actor's, hence a request's too. In a program it chooses, in a step that is carried out it names.
pub(crate) type Id = usize;

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) actor: Id,
    pub(crate) order: Order,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Makes a request; those in whose callable orders are taken.
    Make(Make),
    /// Spawns a request that ends by itself, and does this with its only handle.
    Leaf(Leaf, Ending),
    Submit(Id),
    Wait(Id, How),
    /// One more handle, and one less.
    Clone(Id),
    Drop(Id),
    Cancel(Id),
    Abort(Id, u32),
    Subscribe(Id, Call),
    /// Asks for the outcome.
    Look(Id),
    /// Opens and closes a shielded region.
    Open,
    Close,
    /// Ends the request that the order goes to.
    End(Ending),
    /// Lets time pass up to the end of the timed wait that began first. In a step that is carried out, that actor's.
    Pass,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    /// Not submitted.
    New,
    /// And submitted.
    Spawned,
    /// Never run on a waiter's stack.
    OwnStack,
    /// No child of its maker's.
    Detached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    Taken,
    WaitedFor,
    Forgotten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Value,
    Error,
    Panic,
    /// By `?` on what the last wait answered, if that was an error.
    HandOn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Wait,
    Take,
    Timed,
    Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Finished,
    /// And panics.
    FinishedPanics,
    Failed,
    Cancelled,
    Done,
}

/// As many requests as a program makes at most, and foreign threads that it has.
pub(crate) const REQUESTS: usize = 10;
pub(crate) const THREADS: usize = 2;

pub(crate) fn programs() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..40)
}

fn step() -> impl Strategy<Value = Step> {
    (0..THREADS + REQUESTS, order()).prop_map(|(actor, order)| Step { actor, order })
}

fn order() -> impl Strategy<Value = Order> {
    let id = 0..REQUESTS;
    let make = prop::sample::select(vec![Make::New, Make::Spawned, Make::OwnStack, Make::Detached]);
    let leaf = prop::sample::select(vec![Leaf::Taken, Leaf::WaitedFor, Leaf::Forgotten]);
    let ending = prop::sample::select(vec![Ending::Value, Ending::Error, Ending::Panic, Ending::HandOn]);
    let how = prop::sample::select(vec![How::Wait, How::Take, How::Timed, How::Watch]);
    let call = prop::sample::select(vec![
        Call::Finished,
        Call::FinishedPanics,
        Call::Failed,
        Call::Cancelled,
        Call::Done,
    ]);
    prop_oneof![
        7 => make.prop_map(Order::Make),
        1 => (leaf, ending.clone()).prop_map(|(leaf, ending)| Order::Leaf(leaf, ending)),
        2 => id.clone().prop_map(Order::Submit),
        8 => (id.clone(), how).prop_map(|(id, how)| Order::Wait(id, how)),
        1 => id.clone().prop_map(Order::Clone),
        2 => id.clone().prop_map(Order::Drop),
        4 => id.clone().prop_map(Order::Cancel),
        1 => (id.clone(), 1..4_u32).prop_map(|(id, why)| Order::Abort(id, why)),
        3 => (id.clone(), call).prop_map(|(id, call)| Order::Subscribe(id, call)),
        1 => id.prop_map(Order::Look),
        1 => Just(Order::Open),
        1 => Just(Order::Close),
        4 => ending.prop_map(Order::End),
        1 => Just(Order::Pass),
    ]
}

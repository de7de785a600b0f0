//! The operations on a watch channel, on one-shot channels, on the manual clock and on the plain pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebear::{Error, Request};

use super::{act, callable, micros, settle, time};
use crate::program::{Limit, Node};
use crate::value::Value;
use crate::world::{World, is_ticker};

pub(super) fn publish(world: &Arc<World>, node: &Node) {
    let Some((sender, _receiver)) = world.watch(|| Value::new(world, None)) else { return };
    let refused = sender.send(Value::new(world, node.bodies.first().cloned()));
    drop(refused);
    sender.get().check();
}

pub(super) fn observe(world: &Arc<World>, node: &Node, limit: Limit) -> Result<(), Error> {
    let Some((sender, mut receiver)) = world.watch(|| Value::new(world, None)) else { return Ok(()) };
    // Else it would wait for ever for the end of what it has itself.
    drop(sender);
    let seen = match time(limit) {
        Some(Duration::ZERO) => receiver.try_recv().ok(),
        Some(limit) => settle(node, receiver.recv_timeout(limit))?,
        None => settle(node, receiver.recv())?,
    };
    if let Some(seen) = seen {
        seen.check();
    }
    receiver.get().check();
    Ok(())
}

pub(super) fn send_once(world: &Arc<World>, node: &Node, place: u8) {
    if let Some(sender) = world.take_once(place) {
        let refused = sender.send(Value::new(world, node.bodies.first().cloned()));
        drop(refused);
    }
}

pub(super) fn receive_once(world: &Arc<World>, node: &Node, place: u8, limit: Limit) -> Result<(), Error> {
    let Some(receiver) = world.take_receiver_once(place) else { return Ok(()) };
    let item = match time(limit) {
        Some(limit) => {
            let answer = match limit {
                Duration::ZERO => Ok(receiver.try_recv().ok()),
                limit => settle(node, receiver.recv_timeout(limit)),
            };
            world.give_receiver_once(place, receiver);
            answer?
        }
        None => settle(node, receiver.recv())?,
    };
    if let Some(item) = item {
        item.check();
    }
    Ok(())
}

pub(super) fn subscribe(world: &Arc<World>, node: &Node) {
    let (captured, inner, body) = (Value::new(world, None), Arc::downgrade(world), node.bodies[0].clone());
    let inside = AtomicBool::new(false);
    let subscription = world.beside.clock.on_advance(move |_| {
        // A body that moves the clock does not call itself.
        if is_ticker() || inside.swap(true, Ordering::AcqRel) {
            return;
        }
        captured.check();
        let answer = catch_unwind(AssertUnwindSafe(|| {
            if let Some(world) = inner.upgrade() {
                let _ = act(&world, &body);
            }
        }));
        inside.store(false, Ordering::Release);
        if let Err(payload) = answer {
            std::panic::resume_unwind(payload);
        }
    });
    world.put_subscription(Some(subscription));
}

pub(super) fn advance(world: &World, by: u32) {
    world.beside.clock.advance(micros(by));
}

pub(super) fn submit(world: &Arc<World>, node: &Node) {
    let Some(pool) = world.plain_pool() else { return };
    let task = callable(world, &node.bodies[0], node.bodies.get(1));
    let refused = pool.submit(Box::new(move || drop(task())));
    drop(refused);
}

/// Where a thread runs a request it would stop a worker for a task that may wait for that worker.
pub(super) fn stop_pool(world: &World) {
    if Request::current().is_none()
        && let Some(pool) = world.plain_pool()
        && pool.current_worker().is_none()
    {
        let left = pool.stop();
        drop(left);
    }
}

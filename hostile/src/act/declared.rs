//! The operations on requests that follow others, that have no code, or that several wait for: dependents, completions, sets
//! and futures; and calls that block.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use forebear::time::try_timeout;
use forebear::{Error, Outcome, Request, RequestSet, State, block_on, blocking, wait_all, wait_first};

use super::{act, callable, clear_thread_bombs, described, look_at, micros, settle, time, within};
use crate::program::{Body, Completes, Node, Op, Polls, Several, Then};
use crate::value::{HostileError, Value, violation};
use crate::world::{World, attempt};

/// The dependent of a node.
pub(super) fn then(world: &Arc<World>, node: &Node) -> Option<Request<Value>> {
    let Op::Then { from, gets, runtime, timeout, hint, own_stack, submit, .. } = node.op else { return None };
    let dependency = match gets {
        Then::Whole => world.take_slot(from)?,
        _ => world.slot(from)?,
    };
    let runtime = match runtime {
        Some(runtime) => Some(world.runtime(runtime)?),
        None => None,
    };
    let (f, first) = (callable(world, &node.bodies[0], node.bodies.get(1)), dependency.to_untyped());
    let f = move || {
        if gets == Then::Outcome && !first.is_done()
            || gets != Then::Outcome && first.state() != State::Finished
        {
            violation(format_args!("a dependent runs, and {first:?} has come to no value"));
        }
        f()
    };
    // Where a dependent cannot fail, its error is no value.
    let inner = world.clone();
    let whatever = move |result: Result<Value, Error>| result.unwrap_or_else(|_| Value::new(&inner, None));
    within(world, || {
        let mut builder = described(Request::builder().name("dependent"), timeout, hint, own_stack);
        if let Some(runtime) = &runtime {
            builder = builder.on(runtime);
        }
        let request = match gets {
            Then::Nothing => builder.after(&dependency).try_build(f),
            Then::Value => builder.try_then(&dependency, move |value: &Value| {
                value.check();
                f()
            }),
            Then::Outcome => builder.then_with(&dependency, move |outcome| {
                if let Outcome::Finished(value) = outcome {
                    value.check();
                }
                whatever(f())
            }),
            Then::Whole => builder.into_then(dependency, move |value: Value| {
                value.check();
                drop(value); // its panic would leak a value that is being returned
                whatever(f())
            }),
            Then::Both { other } => {
                let other = world.slot(other).unwrap_or_else(|| dependency.clone());
                builder.then_all((&dependency, &other), move |(one, other): (&Value, &Value)| {
                    one.check();
                    other.check();
                    whatever(f())
                })
            }
        };
        if submit {
            request.submit();
        }
        request
    })
}

/// A completion, whose completer goes where any body finds it.
pub(super) fn promise(world: &World, slot: u8, completer: u8) {
    let Some((ends, request)) = within(world, || Request::completer("promise")) else { return };
    world.put_completer(completer, Some(ends));
    world.put_slot(slot, Some(request));
}

/// Ends a completion: its callbacks run here.
pub(super) fn complete(world: &Arc<World>, node: &Node, completer: u8, with: Completes) {
    let Some(completer) = world.take_completer(completer) else { return };
    match with {
        Completes::Value => {
            if let Err(value) = completer.complete(Value::new(world, None)) {
                value.check();
            }
        }
        Completes::Error(kind) => completer.fail(HostileError::new(world, kind, &node.bodies)),
        Completes::Never => drop(completer),
    }
}

pub(super) fn several(world: &Arc<World>, node: &Node, slots: [u8; 3], how: Several) -> Result<(), Error> {
    let requests: Vec<_> = slots.iter().filter_map(|slot| world.slot(*slot)).collect();
    match how {
        Several::First => {
            if let Some(Some(first)) = settle(node, wait_first(&requests))? {
                look_at(&requests[first]);
            }
        }
        Several::All => {
            if let Some(values) = settle(node, wait_all(&requests))? {
                values.into_iter().for_each(Value::check);
            }
        }
        Several::Next { times, limit, cancel } => {
            let mut set: RequestSet<Value> = requests.into_iter().collect();
            for _ in 0..times {
                let next = match time(limit) {
                    Some(Duration::ZERO) => Ok(set.try_next()),
                    Some(limit) => set.wait_next_timeout(limit).map_err(Error::from),
                    None => set.wait_next().map_err(Error::from),
                };
                let Some(Some((_, request))) = settle(node, next)? else { break };
                look_at(&request);
            }
            if cancel {
                set.cancel();
            }
        }
    }
    Ok(())
}

/// Runs a body on a thread outside the workers. The call has a limit: a cycle through it is not found, and a lock that its caller holds may be
/// waited for without one.
pub(super) fn call_blocking(world: &Arc<World>, node: &Node) -> Result<(), Error> {
    let (inner, body, captured) = (world.clone(), node.bodies[0].clone(), Value::new(world, None));
    // Where the caller has gone it is dropped on that thread.
    let returned = Value::quiet(world, node.bodies.get(1).cloned());
    let f = move || {
        captured.check();
        attempt(&inner, &body);
        drop((inner, captured));
        // This thread outlives the program.
        clear_thread_bombs();
        Returned { _value: returned, _bombs: ClearThreadBombs(std::thread::current().id()) }
    };
    let answer = within(world, || try_timeout(micros(2_000), || Ok(blocking(f)?)));
    answer.map_or(Ok(()), |answer| settle(node, answer).map(drop))
}

/// What a blocking call returns.
struct Returned {
    _value: Value,
    /// Last: the destructor of the value runs a body.
    _bombs: ClearThreadBombs,
}

/// Clears what a body has left in the locals of this thread, which outlives the program. Elsewhere it does nothing.
struct ClearThreadBombs(std::thread::ThreadId);

impl Drop for ClearThreadBombs {
    fn drop(&mut self) {
        if std::thread::current().id() == self.0 {
            clear_thread_bombs();
        }
    }
}

/// A future that ends with the world. A cycle through a future is not found.
struct UntilStopped<'a, F>(&'a World, Pin<Box<F>>);

impl<F: Future> Future for UntilStopped<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.0.wakes_at_the_end(task.waker()) {
            return Poll::Ready(None);
        }
        this.1.as_mut().poll(task).map(Some)
    }
}

/// A waker that runs a body.
struct HostileWaker {
    world: Arc<World>,
    body: Body,
    value: Value,
}

impl HostileWaker {
    fn waker(world: &Arc<World>, body: &Body) -> Waker {
        let value = Value::new(world, None);
        Arc::new(HostileWaker { world: world.clone(), body: body.clone(), value }).into()
    }
}

impl Wake for HostileWaker {
    fn wake(self: Arc<Self>) {
        self.value.check();
        let _ = act(&self.world, &self.body);
    }
}

pub(super) fn await_future(world: &Arc<World>, node: &Node, slot: u8, how: Polls) -> Result<(), Error> {
    let Some(request) = world.slot(slot) else { return Ok(()) };
    match how {
        Polls::BlockOn => {
            let awaited = UntilStopped(world, Box::pin((&request).into_future()));
            if let Some(Some(answer)) = settle(node, block_on(awaited))?
                && let Some(value) = settle(node, answer)?
            {
                value.check();
            }
        }
        Polls::BlockOnUntyped => {
            let any = request.to_untyped();
            drop(request);
            let awaited = UntilStopped(world, Box::pin((&any).into_future()));
            if let Some(Some(answer)) = settle(node, block_on(awaited))? {
                settle(node, answer)?;
            }
        }
        Polls::Once => {
            let waker = HostileWaker::waker(world, &node.bodies[0]);
            let mut future = Box::pin((&request).into_future());
            if let Poll::Ready(Ok(value)) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                value.check();
            }
        }
        Polls::Keep => {
            let waker = HostileWaker::waker(world, &node.bodies[0]);
            let mut future = Box::pin(request.into_future());
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(Ok(value)) => value.check(),
                Poll::Ready(Err(_)) => {}
                Poll::Pending => world.put_future(Some(future)),
            }
        }
    }
    Ok(())
}

/// Polls the future that somebody has kept, or drops it.
pub(super) fn poll_kept(world: &Arc<World>, drops: bool) {
    let Some(mut future) = world.take_future() else { return };
    if drops {
        return drop(future);
    }
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(value)) => value.check(),
        Poll::Ready(Err(_)) => {}
        Poll::Pending => world.put_future(Some(future)),
    }
}

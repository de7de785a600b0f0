//! Runs the nodes of a program, and checks on the way what can be checked.

use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebear::sync::RawMutex;
use forebear::time::{interval, sleep, sleep_until};
use forebear::timer::TimerGuard;
use forebear::{
    CancelReason, Error, OrUnwind, Outcome, Priority, Request, RequestBuilder, Runtime, WaitError,
    is_cancelled, join, no_suspend, shield, try_join, yield_now,
};

mod beside;
mod declared;
mod structure;

use self::declared::{await_future, call_blocking, complete, poll_kept, promise, several, then};
use self::structure::{choose, inside, lock, pool, region, scoped};
use crate::program::{Body, Callback, Hint, Limit, LockKind, Make, Node, OnError, Op};
use crate::value::{Frame, HostileError, Value, violation};
use crate::world::{World, attempt};

thread_local! {
    static THREAD_BOMBS: RefCell<Vec<ThreadBomb>> = const { RefCell::new(Vec::new()) };
}

/// A value in a thread's locals. std aborts if a panic leaves the destructor of one, so this one keeps it in.
#[derive(Debug)]
struct ThreadBomb(Option<Value>);

impl Drop for ThreadBomb {
    fn drop(&mut self) {
        let value = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(move || drop(value)));
    }
}

/// Drops what bodies have left in the locals of this thread.
pub(crate) fn clear_thread_bombs() {
    loop {
        let bombs = THREAD_BOMBS.with(RefCell::take);
        if bombs.is_empty() {
            return;
        }
        drop(bombs);
    }
}

/// Runs a body to its end, or to the first node that returns its error.
pub(crate) fn act(world: &Arc<World>, body: &Body) -> Result<(), Error> {
    // Destructors run when the body is left, in whichever way. None of them runs while a result is being returned: rustc leaks
    // what a function returns if a local of it panics in its destructor.
    let mut bombs = Vec::new();
    let result = act_with(world, body, &mut bombs);
    drop(bombs);
    result
}

fn act_with(world: &Arc<World>, body: &Body, bombs: &mut Vec<Value>) -> Result<(), Error> {
    for node in body.iter() {
        if world.program.without.contains(&node.id) {
            continue;
        }
        let unwinds = std::thread::panicking();
        if unwinds && (matches!(node.op, Op::Panic { .. }) || node.op.waits() && !world.program.wild) {
            continue;
        }
        if let Op::Bomb = node.op {
            bombs.push(Value::new(world, Some(node.bodies[0].clone())));
            continue;
        }
        one(world, node)?;
    }
    Ok(())
}

/// Does with a result what the node does with errors.
fn settle<T>(node: &Node, result: Result<T, impl Into<Error>>) -> Result<Option<T>, Error> {
    match (node.on_error, result) {
        (_, Ok(value)) => Ok(Some(value)),
        (OnError::Unwind, Err(error)) if !std::thread::panicking() => Err(error).or_unwind(),
        (OnError::Return, Err(error)) => Err(error.into()),
        (_, Err(_)) => Ok(None),
    }
}

/// The outcome of a request whose handle we have. What was cancelled and ends by what its own wait was told must not be a failure.
fn look_at(request: &Request<Value>) {
    match request.outcome() {
        Some(Outcome::Finished(value)) => value.check(),
        Some(Outcome::Failed(failure)) => {
            let passed_on = failure
                .downcast_ref::<WaitError>()
                .is_some_and(|error| matches!(error, WaitError::Cancelled));
            if request.is_cancelled() && passed_on {
                violation(format_args!("a cancelled request ends failed: {failure:#}"));
            }
        }
        Some(Outcome::Cancelled(_)) | None => {}
    }
}

/// Calls `f` where a runtime is current: in a request, or inside one of the world's runtimes.
fn within<R>(world: &World, f: impl FnOnce() -> R) -> Option<R> {
    if Request::current().is_some() {
        return Some(f());
    }
    world.some_runtime().map(|runtime| runtime.enter(f))
}

fn micros(n: u32) -> Duration {
    Duration::from_micros(u64::from(n))
}

fn time(limit: Limit) -> Option<Duration> {
    match limit {
        Limit::None => None,
        Limit::Zero => Some(Duration::ZERO),
        Limit::Micros(n) => Some(micros(n)),
    }
}

fn callable(
    world: &Arc<World>,
    body: &Body,
    bomb: Option<&Body>,
) -> impl FnOnce() -> Result<Value, Error> + Send + 'static {
    let captured = Value::new(world, bomb.cloned());
    let (world, body, bomb) = (world.clone(), body.clone(), bomb.cloned());
    move || {
        captured.check();
        let result = act(&world, &body);
        captured.check();
        drop(captured); // its panic would leak a value that is being returned
        result?;
        Ok(Value::new(&world, bomb))
    }
}

/// What makes and dependents are described by alike.
fn described(
    mut builder: RequestBuilder,
    timeout: Option<u32>,
    hint: Option<Hint>,
    own_stack: bool,
) -> RequestBuilder {
    if let Some(n) = timeout {
        builder = builder.timeout(micros(n));
    }
    builder = match hint {
        Some(Hint::Given(hint)) => builder.order_hint(hint.into()),
        Some(Hint::NewestFirst) => builder.newest_first(),
        None => builder,
    };
    if own_stack { builder.own_stack() } else { builder }
}

fn make(world: &Arc<World>, node: &Node, how: Make) -> Option<Request<Value>> {
    let f = callable(world, &node.bodies[0], node.bodies.get(1));
    match how {
        Make::Spawn => within(world, || forebear::try_spawn(f)),
        Make::New => within(world, || Request::try_new(f)),
        Make::Built { runtime, priority, timeout, hint, detached, own_stack, submit } => {
            let mut builder = Request::builder().on(&world.runtime(runtime)?).name("built");
            if priority != 0 {
                builder = builder.priority(Priority::new(priority));
            }
            if detached {
                builder = builder.detached();
            }
            builder = described(builder, timeout, hint, own_stack);
            Some(if submit { builder.try_spawn(f) } else { builder.try_build(f) })
        }
    }
}

fn one(world: &Arc<World>, node: &Node) -> Result<(), Error> {
    let body = node.bodies.first();
    let body = || body.expect("the node has a body");
    match node.op {
        Op::Make { slot, how, .. } => {
            let request = make(world, node, how);
            world.put_slot(slot, request);
        }
        Op::Wait { slot, limit } => {
            let Some(request) = world.slot(slot) else { return Ok(()) };
            let answer = match time(limit) {
                Some(limit) => request.wait_timeout(limit),
                None => request.wait(),
            };
            if let Some(value) = settle(node, answer)? {
                value.check();
            }
            look_at(&request);
        }
        Op::WaitUntyped { slot, limit } => {
            let Some(request) = world.slot(slot) else { return Ok(()) };
            let any = request.to_untyped();
            drop(request);
            let answer = match time(limit) {
                Some(limit) => any.wait_timeout(limit),
                None => any.wait(),
            };
            settle(node, answer)?;
        }
        Op::Watch { slot } => {
            let Some(request) = world.slot(slot) else { return Ok(()) };
            // A watch submits nothing it does not want: only what somebody wants is watched.
            request.submit();
            settle(node, request.watch())?;
        }
        Op::Take { slot } => {
            let Some(request) = world.take_slot(slot) else { return Ok(()) };
            if let Some(value) = settle(node, request.take())? {
                value.check();
            }
        }
        Op::Poll { slot } => {
            let Some(request) = world.slot(slot) else { return Ok(()) };
            let text = format!(
                "{:?} {request:?} {:?} {:?}",
                request.state(),
                request.to_untyped(),
                request.to_untyped().parent()
            );
            if text.is_empty() {
                violation(format_args!("a request without a text"));
            }
            look_at(&request);
        }
        Op::Drop { slot } => world.put_slot(slot, None),
        Op::Forget { slot } => {
            if let Some(request) = world.take_slot(slot) {
                world.leaks();
                mem::forget(request);
            }
        }
        Op::Copy { from, to } => {
            let request = world.slot(from);
            world.put_slot(to, request);
        }
        Op::Cancel { slot } => {
            if let Some(request) = world.slot(slot) {
                let _ = request.cancel();
            }
        }
        Op::Abort { slot } => {
            if let Some(request) = world.slot(slot) {
                let _ = request.abort(CancelReason::Aborted);
            }
        }
        Op::CancelMyself => {
            if let Some(request) = Request::current() {
                let _ = request.cancel();
                let _ = is_cancelled();
            }
        }
        Op::Callback { slot, which, .. } => {
            let Some(request) = world.slot(slot) else { return Ok(()) };
            let captured = Value::new(world, node.bodies.get(1).cloned());
            let (world, body) = (world.clone(), body().clone());
            let call = move || {
                captured.check();
                if let Err(error) = act(&world, &body)
                    && error.to_string().is_empty()
                {
                    violation(format_args!("an error without a text"));
                }
            };
            match which {
                Callback::Finished => request.on_finished(move |value| {
                    value.check();
                    call();
                }),
                Callback::Failed => request.on_failed(move |_| call()),
                Callback::Cancelled => request.on_cancelled(call),
                Callback::Done => request.on_done(move |_| call()),
            };
        }
        Op::Scope { fallible, cancel, stay, after, value } => {
            scoped(world, node, fallible, cancel, stay, after, value)?
        }
        Op::Join { fallible } => {
            let frame = Frame::new();
            let frame = &frame;
            let (a, b) = (&node.bodies[0], &node.bodies[1]);
            let arm = |body| {
                move || {
                    let _in = frame.enter();
                    act(world, body)
                }
            };
            if fallible {
                let answer = within(world, || try_join(arm(a), arm(b)));
                answer.map_or(Ok(None), |answer| settle(node, answer))?;
            } else {
                within(world, || join(arm(a), arm(b)));
            }
        }
        Op::Pool { bound, cancel, include } => pool(world, node, bound, cancel, include)?,
        Op::Then { slot, .. } => {
            let request = then(world, node);
            world.put_slot(slot, request);
        }
        Op::Promise { slot, completer } => promise(world, slot, completer),
        Op::Complete { completer, with } => complete(world, node, completer, with),
        Op::Hint { slot, hint } => {
            if let Some(request) = world.slot(slot) {
                let _ = request.set_order_hint(hint.into());
            }
        }
        Op::Several { slots, how } => several(world, node, slots, how)?,
        Op::Future { slot, how } => await_future(world, node, slot, how)?,
        Op::Kept { drop } => poll_kept(world, drop),
        Op::Blocking { .. } => call_blocking(world, node)?,
        Op::Region { micros: n } => region(world, node, n)?,
        Op::NoSuspend => no_suspend("hostile", || act(world, body()))?,
        Op::Shield => shield(|| act(world, body()))?,
        Op::Catch => match catch_unwind(AssertUnwindSafe(|| forebear::catch(|| act(world, body())))) {
            Ok(Ok(answer)) => answer?,
            Ok(Err(_)) => {}
            Err(payload) if node.on_error == OnError::Unwind && !std::thread::panicking() => {
                resume_unwind(payload)
            }
            Err(_) => {}
        },
        Op::Repeat { times } => {
            for _ in 0..times {
                act(world, body())?;
            }
        }
        Op::Lock { lock: number, kind, limit, forget } => lock(world, node, number, kind, limit, forget)?,
        Op::Condition { lock: number, limit } => {
            let Some(mut guard) =
                settle(node, world.mutexes[usize::from(number)].lock_timeout(micros(limit)))?
            else {
                return Ok(());
            };
            settle(node, world.condition.wait_timeout(&mut guard, micros(limit)))?;
            inside(world, &guard, LockKind::Mutex, || ());
        }
        Op::Notify { all: true } => _ = world.condition.notify_all(),
        Op::Notify { all: false } => _ = world.condition.notify_one(),
        Op::WaitEvent { limit } => match time(limit) {
            Some(limit) => _ = settle(node, world.event.wait_timeout(limit))?,
            None => _ = settle(node, world.event.wait())?,
        },
        Op::SetEvent => world.event.set(),
        Op::ResetEvent => world.reset_event(),
        Op::Barrier { micros: n } => _ = settle(node, world.barrier.wait_timeout(micros(n)))?,
        Op::CallOnce => {
            let mut result = Ok(());
            world.once.call_once(|| result = act(world, body()));
            result?;
        }
        Op::RawLock { micros: n } => {
            struct Unlock<'a>(&'a RawMutex);
            impl Drop for Unlock<'_> {
                fn drop(&mut self) {
                    // Somebody else may have done it.
                    let _ = self.0.unlock();
                }
            }
            if settle(node, world.raw.lock_timeout(micros(n)))?.is_some() {
                let _unlock = Unlock(&world.raw);
                act(world, body())?;
            }
        }
        Op::RawUnlock => _ = world.raw.unlock(),
        Op::CountDown => world.latch.count_down(),
        Op::WaitLatch { limit } => match time(limit) {
            Some(limit) => _ = settle(node, world.latch.wait_timeout(limit))?,
            None => _ = settle(node, world.latch.wait())?,
        },
        Op::Initialise => {
            let value = world.value.get_or_try_init(|| {
                act(world, body())?;
                Ok::<_, Error>(())
            });
            settle(node, value)?;
        }
        Op::WaitValue { limit } => match time(limit) {
            Some(limit) => _ = settle(node, world.value.wait_timeout(limit))?,
            None => _ = settle(node, world.wait_for_value())?,
        },
        Op::Ticks { micros: n, times } => {
            let ticked = within(world, || {
                let mut ticks = interval(micros(n));
                for _ in 0..times {
                    settle(node, ticks.tick())?;
                }
                Ok::<_, Error>(())
            });
            ticked.unwrap_or(Ok(()))?;
        }
        Op::SleepUntil { micros: n } => {
            _ = within(world, || settle(node, sleep_until(forebear::time::now() + micros(n)))).transpose()?;
        }
        Op::Expires { micros: n, forget } => {
            let guard = TimerGuard::builder().client(&world.timers).expires(micros(n));
            if let Some(guard) = settle(node, guard)? {
                let result = act(world, body());
                if forget {
                    mem::forget(guard);
                }
                result?;
            }
        }
        Op::Send { channel, limit, .. } => {
            let Some(sender) = world.sender(channel) else { return Ok(()) };
            let value = Value::new(world, node.bodies.first().cloned());
            match time(limit) {
                Some(Duration::ZERO) => drop(sender.try_send(value)),
                Some(limit) => {
                    _ = settle(node, sender.send_timeout(value, limit).map_err(|error| error.without_item()))?
                }
                None => _ = settle(node, sender.send(value).map_err(|error| error.without_item()))?,
            }
        }
        Op::Receive { channel, limit } => {
            let Some(receiver) = world.receiver(channel) else { return Ok(()) };
            let value = match time(limit) {
                Some(limit) => settle(node, receiver.recv_timeout(limit))?,
                None => settle(node, receiver.recv())?,
            };
            if let Some(value) = value {
                value.check();
            }
        }
        Op::TryReceive { channel } => {
            if let Some(receiver) = world.receiver(channel)
                && let Ok(value) = receiver.try_recv()
            {
                value.check();
            }
        }
        Op::Select { channel, slot, set, cancel, micros } => {
            choose(world, node, channel, slot, set, cancel, micros)?
        }
        Op::Publish { .. } => beside::publish(world, node),
        Op::Observe { limit } => beside::observe(world, node, limit)?,
        Op::OneShot { place } => world.put_one_shot(place),
        Op::SendOnce { place, .. } => beside::send_once(world, node, place),
        Op::ReceiveOnce { place, limit } => beside::receive_once(world, node, place, limit)?,
        Op::Advance { micros: n } => beside::advance(world, n),
        Op::Subscribe => beside::subscribe(world, node),
        Op::Unsubscribe => world.put_subscription(None),
        Op::Submit { .. } => beside::submit(world, node),
        Op::StopPool => beside::stop_pool(world),
        Op::DropPool => drop(world.take_plain_pool()),
        Op::Sleep { micros: n } => _ = within(world, || settle(node, sleep(micros(n)))).transpose()?,
        Op::Yield => _ = settle(node, yield_now())?,
        Op::Spin { micros: n } => {
            let end = Instant::now() + micros(n);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        }
        Op::Panic { .. } => std::panic::panic_any(Value::quiet(world, node.bodies.first().cloned())),
        Op::Fail(kind) => return Err(HostileError::new(world, kind, &node.bodies).into()),
        Op::Bomb => unreachable!("the body that it stands in does it"),
        Op::ThreadBomb => {
            let bomb = ThreadBomb(Some(Value::new(world, Some(body().clone()))));
            // Where the thread's locals are gone, the bomb goes off here.
            let _ = THREAD_BOMBS.try_with(|bombs| bombs.try_borrow_mut().map(|mut bombs| bombs.push(bomb)));
        }
        Op::Thread => {
            let (inner, body) = (world.clone(), body().clone());
            world.start_thread(move || attempt(&inner, &body));
        }
        Op::Run { runtime, fallible } => {
            let Some(runtime) = world.runtime(runtime) else { return Ok(()) };
            let frame = Frame::new();
            let f = || {
                let _in = frame.enter();
                act(world, body())
            };
            if fallible {
                settle(node, runtime.try_run(f))?;
            } else {
                let _ = runtime.run(|| f().is_ok());
            }
        }
        Op::Enter { runtime } => {
            let Some(runtime) = world.runtime(runtime) else { return Ok(()) };
            runtime.enter(|| act(world, body()))?;
        }
        Op::Shutdown { runtime, micros: n } => {
            if let Some(runtime) = world.runtime(runtime) {
                let _ = runtime.shutdown(micros(n));
            }
        }
        Op::Finish { runtime, micros: n } => {
            if let Some(runtime) = world.runtime(runtime) {
                let _ = runtime.finish(micros(n));
            }
        }
        Op::DropRuntime { runtime } => drop(world.take_runtime(runtime)),
        Op::Look { runtime } => {
            if let Some(runtime) = world.runtime(runtime) {
                look(&runtime);
            }
        }
        Op::Dump { runtime } => {
            if let Some(runtime) = world.runtime(runtime)
                && runtime.dump().to_string().is_empty()
            {
                violation(format_args!("a dump without a text"));
            }
        }
    }
    Ok(())
}

fn look(runtime: &Runtime) {
    let _ = (runtime.states(), runtime.active(), runtime.metrics(), runtime.now(), runtime.workers());
}

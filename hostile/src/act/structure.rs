//! The operations that call bodies on the spot: under a lock, in a scope, in a pool, or beside a select.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebear::select::cancelled;
use forebear::time::{after, try_timeout};
use forebear::{Error, Request, RequestPool, RequestSet, scope, select, try_scope};

use super::{act, look_at, micros, settle, time, within};
use crate::program::{Body, Limit, LockKind, Node, OnError};
use crate::value::{Frame, Value, violation};
use crate::world::{Guarded, World};

/// A number for the request that runs this, else for the thread. A region with a limit counts as its caller, whose locks it may take again.
fn myself(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    match Request::current() {
        Some(request) => match world.caller_of_region(request.id()) {
            Some(caller) => return caller,
            None => request.id().hash(&mut hasher),
        },
        None => std::thread::current().id().hash(&mut hasher),
    }
    hasher.finish()
}

/// Runs a body in a region with a limit.
pub(super) fn region(world: &Arc<World>, node: &Node, limit: u32) -> Result<(), Error> {
    let frame = Frame::new();
    let answer = within(world, || {
        let caller = myself(world);
        try_timeout(micros(limit), || {
            let _in = frame.enter();
            let _region = world.enter_region(caller);
            act(world, &node.bodies[0])
        })
    });
    answer.map_or(Ok(()), |answer| settle(node, answer).map(|_| ()))
}

/// Checks that a lock lets in who may be inside, for as long as `f` runs.
pub(super) fn inside<R>(world: &World, guarded: &Guarded, kind: LockKind, f: impl FnOnce() -> R) -> R {
    struct Leave<'a>(&'a Guarded, LockKind);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            match self.1 {
                LockKind::Read => self.0.readers.fetch_sub(1, Ordering::SeqCst),
                LockKind::Mutex | LockKind::Write | LockKind::Reentrant => {
                    self.0.writers.fetch_sub(1, Ordering::SeqCst)
                }
                LockKind::Permit => 0,
            };
        }
    }
    let wrong = match kind {
        LockKind::Read => {
            guarded.readers.fetch_add(1, Ordering::SeqCst);
            guarded.writers.load(Ordering::SeqCst) != 0
        }
        LockKind::Mutex | LockKind::Write => {
            guarded.writers.fetch_add(1, Ordering::SeqCst) != 0 || guarded.readers.load(Ordering::SeqCst) != 0
        }
        LockKind::Reentrant => {
            let me = myself(world);
            let before = guarded.owner.swap(me, Ordering::SeqCst);
            guarded.writers.fetch_add(1, Ordering::SeqCst) != 0 && before != me
        }
        LockKind::Permit => false,
    };
    if wrong {
        violation(format_args!("two are inside a lock ({kind:?})"));
    }
    let _leave = Leave(guarded, kind);
    f()
}

pub(super) fn lock(
    world: &Arc<World>,
    node: &Node,
    number: u8,
    kind: LockKind,
    limit: Limit,
    forget: bool,
) -> Result<(), Error> {
    let number = usize::from(number);
    let body = &node.bodies[0];
    macro_rules! under {
        ($lock:expr, $plain:ident, $timed:ident) => {{
            let guard = match time(limit) {
                Some(limit) => settle(node, $lock.$timed(limit))?,
                None => Some($lock.$plain()),
            };
            let Some(guard) = guard else { return Ok(()) };
            let result = inside(world, &guard, kind, || act(world, body));
            if forget {
                mem::forget(guard);
            }
            result
        }};
    }
    match kind {
        LockKind::Mutex => under!(world.mutexes[number], lock, lock_timeout),
        LockKind::Read => under!(world.rw_locks[number], read, read_timeout),
        LockKind::Write => under!(world.rw_locks[number], write, write_timeout),
        LockKind::Reentrant => under!(world.reentrant[number], lock, lock_timeout),
        LockKind::Permit => {
            let permit = match time(limit) {
                Some(limit) => settle(node, world.permits.acquire_timeout(limit))?,
                None => settle(node, world.permits.acquire())?,
            };
            match permit {
                Some(_permit) => act(world, body),
                None => Ok(()),
            }
        }
    }
}

pub(super) fn scoped(
    world: &Arc<World>,
    node: &Node,
    fallible: bool,
    cancel: bool,
    stay: bool,
    after: Option<u8>,
    value: bool,
) -> Result<(), Error> {
    let after = after.and_then(|slot| world.slot(slot));
    let gets = after.as_ref().filter(|_| value);
    let builder = || match &after {
        Some(dependency) => Request::builder().after(dependency),
        None => Request::builder(),
    };
    let (own, jobs) = node.bodies.split_first().expect("a scope has a body");
    let frame = Frame::new();
    let frame = &frame;
    let body = |s: &forebear::Scope<'_, '_>| act_in_scope(world, node, s, own, cancel);
    let spawn_all = |spawn: &mut dyn FnMut(Body)| jobs.iter().for_each(|job| spawn(job.clone()));
    // What the job of a scope is to be that gets a value: it cannot fail.
    let with_value = |job: Body| {
        move |value: &Value| {
            let _in = frame.enter();
            value.check();
            let _ = act(world, &job);
            Value::new(world, None)
        }
    };
    if fallible {
        let answer = within(world, || {
            try_scope(|s| {
                spawn_all(&mut |job| {
                    let f = {
                        let job = job.clone();
                        move || {
                            let _in = frame.enter();
                            act(world, &job)?;
                            Ok(Value::new(world, None))
                        }
                    };
                    let handle = match gets {
                        Some(dependency) => s.then(dependency, with_value(job)),
                        None if after.is_some() => builder().try_spawn_in(s, f),
                        None => s.try_spawn(f),
                    };
                    if stay {
                        world.put_slot(node.id as u8 % crate::program::SLOTS, Some(handle));
                    }
                });
                body(s)
            })
        });
        answer.map_or(Ok(()), |answer| settle(node, answer).map(|_| ()))
    } else {
        within(world, || {
            scope(|s| {
                spawn_all(&mut |job| {
                    let f = {
                        let job = job.clone();
                        move || {
                            let _in = frame.enter();
                            let _ = act(world, &job);
                            Value::new(world, None)
                        }
                    };
                    let handle = match gets {
                        // After it twice.
                        Some(dependency) => builder().then_in(s, dependency, with_value(job)),
                        None if after.is_some() => builder().spawn_in(s, f),
                        None => s.spawn(f),
                    };
                    if stay {
                        world.put_slot(node.id as u8 % crate::program::SLOTS, Some(handle));
                    }
                });
                body(s)
            })
        })
        .unwrap_or(Ok(()))
    }
}

fn act_in_scope(
    world: &Arc<World>,
    node: &Node,
    s: &forebear::Scope<'_, '_>,
    own: &Body,
    cancel: bool,
) -> Result<(), Error> {
    let result = act(world, own);
    if cancel {
        s.cancel();
    }
    settle(node, result).map(|_| ())
}

pub(super) fn pool(
    world: &Arc<World>,
    node: &Node,
    bound: u8,
    cancel: bool,
    include: [Option<u8>; 2],
) -> Result<(), Error> {
    let frame = Frame::new();
    let frame = &frame;
    let answer = within(world, || {
        let mut pool = RequestPool::new();
        if bound > 0 {
            pool = pool.max_active(usize::from(bound));
        }
        let canceller = cancel.then(|| pool.canceller());
        for (number, body) in node.bodies.iter().enumerate() {
            if number + 1 == node.bodies.len() {
                for request in include.iter().flatten().filter_map(|slot| world.slot(*slot)) {
                    pool.include(request);
                }
            }
            let canceller = canceller.clone().filter(|_| number == 0);
            pool.try_add(move || {
                let _in = frame.enter();
                if let Some(canceller) = canceller {
                    canceller.cancel();
                }
                act(world, body)?;
                Ok(Value::new(world, None))
            });
        }
        match node.id % 3 {
            0 => pool.wait(),
            1 => pool.collect().map(|values| values.iter().for_each(Value::check)),
            _ => pool.wait_each(|_, value| value.check()),
        }
    });
    answer.map_or(Ok(()), |answer| settle(node, answer).map(|_| ()))
}

pub(super) fn choose(
    world: &Arc<World>,
    node: &Node,
    channel: u8,
    slot: u8,
    set: Option<[u8; 2]>,
    cancel: bool,
    limit: u32,
) -> Result<(), Error> {
    let (Some(receiver), Some(request)) = (world.receiver(channel), world.slot(slot)) else { return Ok(()) };
    let mut set: Option<RequestSet<Value>> =
        set.map(|slots| slots.iter().filter_map(|slot| world.slot(*slot)).collect());
    // Outside a request the third arm tells the default runtime's time.
    let answer: Option<Result<(), Error>> = within(world, || {
        select! {
            item = &receiver => item.map(|value: Value| value.check()).map_err(Error::from),
            done = &request => done.map(|value: &Value| value.check()).map_err(Error::from),
            next = set.as_mut() => match next {
                Ok(Some((_, request))) => {
                    look_at(&request);
                    Ok(())
                }
                Ok(None) => Ok(()),
                Err(error) => Err(Error::from(error)),
            },
            happened = &world.event => happened.map_err(Error::from),
            () = after(micros(limit)) => Ok(()),
            _ = cancelled() => Ok(()),
        }
    });
    if let Some(set) = set.filter(|_| cancel) {
        set.cancel();
    }
    match answer {
        Some(Err(error)) if node.on_error == OnError::Return => Err(error),
        _ => Ok(()),
    }
}

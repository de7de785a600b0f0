//! What the threads and requests of one program share, and how a program ends.
//!
//! The end goes in steps. First the threads of the program have a short time to end by themselves. Then the world *stops*. It sets its event, adds
//! permits, and drops its completers, futures and the ends of all channels. So every wait that is left can end. Then each runtime is shut down; a
//! request that has not ended by the grace is a violation. Then the threads are joined, and all handles are dropped. At last every
//! [`Value`](crate::value::Value) must have been dropped.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebear::channel::{Receiver, Sender, bounded, unbounded};
use forebear::sync::{
    Barrier, Condvar, Event, Latch, Once, OnceLock, RawMutex, ReentrantMutex, RwLock, Semaphore,
};
use forebear::time::Clock;
use forebear::timer::InProcessTimer;
use forebear::{Completer, Request, RequestId, Runtime, TakeFuture, TimeoutError};

use crate::act::{act, clear_thread_bombs};
use crate::program::{Body, CHANNELS, COMPLETERS, LOCKS, Program, SLOTS, Setting};
use crate::value::{Value, violation};

mod beside;

use self::beside::Beside;
pub(crate) use self::beside::is_ticker;

/// How long the threads of a program have to end by themselves.
const PATIENCE: Duration = Duration::from_millis(200);

/// Both ends of a channel.
type Ends = (Sender<Value>, Receiver<Value>);

/// A future that somebody has polled, and that others may poll or drop.
type KeptFuture = Pin<Box<TakeFuture<Value>>>;

/// How many writers and readers are inside a lock.
#[derive(Debug, Default)]
pub(crate) struct Guarded {
    pub(crate) writers: AtomicU32,
    pub(crate) readers: AtomicU32,
    pub(crate) owner: AtomicU64,
}

pub(crate) struct World {
    pub(crate) program: Program,
    runtimes: Vec<Mutex<Option<Runtime>>>,
    slots: Vec<Mutex<Option<Request<Value>>>>,
    pub(crate) mutexes: Vec<forebear::sync::Mutex<Guarded>>,
    pub(crate) rw_locks: Vec<RwLock<Guarded>>,
    pub(crate) reentrant: Vec<ReentrantMutex<Guarded>>,
    pub(crate) permits: Semaphore,
    pub(crate) condition: Condvar,
    pub(crate) event: Event,
    pub(crate) barrier: Barrier,
    pub(crate) once: Once,
    pub(crate) raw: RawMutex,
    pub(crate) latch: Latch,
    pub(crate) value: OnceLock<()>,
    pub(crate) timers: InProcessTimer,
    channels: Vec<Mutex<Option<Ends>>>,
    completers: Vec<Mutex<Option<Completer<Value>>>>,
    future: Mutex<Option<KeptFuture>>,
    pub(crate) beside: Beside,
    /// The wakers of futures that end with the world.
    wakers: Mutex<Vec<Waker>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) live: AtomicIsize,
    /// All has ended.
    over: AtomicBool,
    /// Something was leaked on purpose, or may have been.
    pub(crate) may_leak: AtomicBool,
    stopped: Mutex<bool>,
    /// The regions with a limit that are open, each with its caller.
    regions: Mutex<HashMap<RequestId, u64>>,
    /// How long a runtime may take to shut down, and values to be dropped, on a busy machine.
    grace: Duration,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.program.seed).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The system's clock, whose owner runs a body now and then.
#[derive(Debug)]
struct HostileClock {
    world: std::sync::Weak<World>,
    body: Body,
    readings: AtomicU32,
}

impl Clock for HostileClock {
    fn now(&self) -> Instant {
        thread_local!(static INSIDE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
        let enters = self.readings.fetch_add(1, Ordering::Relaxed) % 8 == 7;
        let inside = INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true);
        if !inside {
            if enters && let Some(world) = self.world.upgrade() {
                let _ = catch_unwind(AssertUnwindSafe(|| act(&world, &self.body)));
            }
            let _ = INSIDE.try_with(|inside| inside.set(false));
        }
        Instant::now()
    }
}

impl World {
    fn new(program: Program, grace: Duration) -> Arc<World> {
        let kinds = match &program.setting {
            Setting::Workers(each) => each.clone(),
            Setting::Synchronous | Setting::Seeded => vec![0],
        };
        Arc::new_cyclic(|this| {
            let hook = |number: usize| program.hooks[number].clone();
            let beside = Beside::new(this, &program);
            let build = |workers: usize| {
                let mut builder = Runtime::builder().name("hostile").on_warning({
                    let (world, body) = (this.clone(), hook(0));
                    move |_| call_hook(&world, body.as_ref())
                });
                builder = builder.on_unhandled_failure({
                    let (world, body) = (this.clone(), hook(1));
                    move |_| call_hook(&world, body.as_ref())
                });
                if let Some(body) = hook(2)
                    && program.setting != Setting::Seeded
                {
                    builder = builder.clock(HostileClock {
                        world: this.clone(),
                        body,
                        readings: AtomicU32::new(0),
                    });
                }
                if program.manual && program.hooks[2].is_none() {
                    builder = builder.clock(beside.clock.clone());
                }
                let builder = match program.setting {
                    Setting::Seeded => builder.seeded(program.seed),
                    _ => builder.workers(workers),
                };
                let runtime =
                    builder.build().unwrap_or_else(|error| violation(format_args!("no runtime: {error}")));
                Mutex::new(Some(runtime))
            };
            World {
                runtimes: kinds.into_iter().map(build).collect(),
                beside,
                slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
                mutexes: (0..=LOCKS).map(|_| Default::default()).collect(),
                rw_locks: (0..LOCKS).map(|_| RwLock::new(Guarded::default())).collect(),
                reentrant: (0..LOCKS).map(|_| ReentrantMutex::new(Guarded::default())).collect(),
                permits: Semaphore::new(2),
                condition: Condvar::new(),
                event: Event::new(),
                barrier: Barrier::new(2),
                once: Once::new(),
                raw: RawMutex::new(),
                latch: Latch::new(2),
                value: OnceLock::new(),
                timers: InProcessTimer::new(),
                channels: (0..CHANNELS)
                    .map(|number| {
                        Mutex::new(Some(if number == CHANNELS - 1 {
                            unbounded()
                        } else {
                            bounded(usize::from(number))
                        }))
                    })
                    .collect(),
                completers: (0..COMPLETERS).map(|_| Mutex::default()).collect(),
                future: Mutex::default(),
                wakers: Mutex::default(),
                threads: Mutex::default(),
                live: AtomicIsize::new(0),
                over: AtomicBool::new(false),
                may_leak: AtomicBool::new(false),
                stopped: Mutex::new(false),
                regions: Mutex::default(),
                grace,
                program,
            }
        })
    }

    /// Runs a program from its beginning to its end. With a canary it leaks a value on the way, which the end must find.
    pub(crate) fn run(program: Program, canary: bool, grace: Duration) {
        let world = World::new(program, grace);
        if canary {
            std::mem::forget(Value::new(&world, None));
        }
        let plain = matches!(world.program.setting, Setting::Workers(_));
        let ticker = world.start_ticker();
        if plain {
            let bodies = world.program.threads.clone();
            let running = Arc::new(AtomicU32::new(bodies.len() as u32));
            for body in bodies {
                let (world2, running) = (world.clone(), running.clone());
                world.start_thread(move || {
                    attempt(&world2, &body);
                    running.fetch_sub(1, Ordering::Release);
                });
            }
            let patience = Instant::now() + PATIENCE;
            while running.load(Ordering::Acquire) > 0 && Instant::now() < patience {
                std::thread::yield_now();
            }
        } else {
            let body = world.program.threads[0].clone();
            let runtime = world.runtime(0).expect("nobody has dropped it yet");
            // This thread drives the runtime; another one stops the world if the program waits for what nobody does.
            let (over, wait) = mpsc::channel::<()>();
            let stopper = std::thread::spawn({
                let world = world.clone();
                move || {
                    if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                        world.stop();
                    }
                }
            });
            let _ = catch_unwind(AssertUnwindSafe(|| runtime.run(|| act(&world, &body).is_ok())));
            drop(over);
            let _ = stopper.join();
            // This may be the last handle, whose drop waits for all that is left.
            world.stop();
            drop(runtime);
        }
        world.end(plain);
        if let Some(ticker) = ticker {
            let _ = ticker.join();
        }
    }

    /// Leaves no wait that nobody can end.
    fn stop(self: &Arc<World>) {
        *locked(&self.stopped) = true;
        self.event.set();
        self.permits.add_permits(1_000_000);
        (0..2).for_each(|_| self.latch.count_down());
        // This waits for who makes the value, who may wait for all that follows here.
        let world = self.clone();
        Self::aside(move || {
            let _ = world.value.set(());
        });
        for channel in &self.channels {
            // The items run bodies, which may wait for what follows here.
            let ends = locked(channel).take();
            Self::aside(move || drop(ends));
        }
        std::mem::take(&mut *locked(&self.wakers)).into_iter().for_each(Waker::wake);
        // Each of these ends a request, whose callbacks and captures may wait for another of them.
        for completer in &self.completers {
            let completer = locked(completer).take();
            Self::aside(move || drop(completer));
        }
        let future = self.take_future();
        Self::aside(move || drop(future));
        self.stop_beside();
    }

    /// Calls `f` on a thread of its own. Where there are no workers it may begin requests on that thread, whose exit ends them.
    fn aside(f: impl FnOnce() + Send + 'static) {
        drop(std::thread::spawn(move || {
            let _ = catch_unwind(AssertUnwindSafe(f));
        }));
    }

    fn end(self: Arc<World>, plain: bool) {
        self.stop();
        let runtimes: Vec<Runtime> =
            self.runtimes.iter().filter_map(|runtime| locked(runtime).take()).collect();
        let shut = |runtime: &Runtime| {
            let grace = Instant::now() + self.grace;
            while let Err(error) = runtime.shutdown(self.grace) {
                // Without workers it returns as soon as only others can end what is left: a thread may be about to give up a completer.
                if plain || Instant::now() > grace {
                    violation(format_args!("a runtime does not end: {error:?}"));
                }
                let _ = Event::new().wait_timeout(Duration::from_millis(1));
            }
        };
        if plain {
            std::thread::scope(|s| {
                for runtime in &runtimes {
                    s.spawn(|| shut(runtime));
                }
            });
        } else {
            runtimes.iter().for_each(shut);
        }
        drop(runtimes);
        self.end_plain_pool();
        loop {
            let Some(thread) = locked(&self.threads).pop() else { break };
            let _ = thread.join();
        }
        self.clear_slots();
        if !self.may_leak.load(Ordering::Relaxed) {
            self.await_drops();
        }
        self.over.store(true, Ordering::Release);
    }

    /// Every value has to be dropped.
    fn await_drops(&self) {
        let patience = Instant::now() + self.grace;
        // A request that continues until here may leak something.
        let may_leak = || self.may_leak.load(Ordering::Acquire);
        while self.live.load(Ordering::Acquire) > 0 && !may_leak() && Instant::now() < patience {
            // Where a program has dropped the last handle of a runtime, requests of it may continue until here. One without
            // workers continues only while a thread that has used it waits.
            self.clear_slots();
            let _ = Event::new().wait_timeout(Duration::from_millis(1));
        }
        let left = self.live.load(Ordering::Relaxed);
        if left != 0 && !may_leak() {
            violation(format_args!("{left} values have never been dropped"));
        }
    }

    fn clear_slots(&self) {
        for slot in &self.slots {
            let request = locked(slot).take();
            let _ = catch_unwind(AssertUnwindSafe(move || drop(request)));
        }
        // Destructors that this thread has run may have left something in its locals.
        clear_thread_bombs();
    }

    pub(crate) fn runtime(&self, number: u8) -> Option<Runtime> {
        locked(&self.runtimes[usize::from(number)]).clone()
    }

    pub(crate) fn take_runtime(&self, number: u8) -> Option<Runtime> {
        locked(&self.runtimes[usize::from(number)]).take()
    }

    /// The first runtime that is still there.
    pub(crate) fn some_runtime(&self) -> Option<Runtime> {
        self.runtimes.iter().find_map(|runtime| locked(runtime).clone())
    }

    pub(crate) fn slot(&self, number: u8) -> Option<Request<Value>> {
        locked(&self.slots[usize::from(number)]).clone()
    }

    pub(crate) fn take_slot(&self, number: u8) -> Option<Request<Value>> {
        locked(&self.slots[usize::from(number)]).take()
    }

    /// Puts a handle there; the one that was there is dropped outside the table's lock.
    pub(crate) fn put_slot(&self, number: u8, request: Option<Request<Value>>) {
        let before = std::mem::replace(&mut *locked(&self.slots[usize::from(number)]), request);
        drop(before);
    }

    /// Puts a completer there. One that comes when the world has stopped is dropped, and so is the one that was there.
    pub(crate) fn put_completer(&self, number: u8, completer: Option<Completer<Value>>) {
        let before = {
            let mut place = locked(&self.completers[usize::from(number)]);
            if *locked(&self.stopped) { completer } else { std::mem::replace(&mut *place, completer) }
        };
        drop(before);
    }

    pub(crate) fn take_completer(&self, number: u8) -> Option<Completer<Value>> {
        locked(&self.completers[usize::from(number)]).take()
    }

    /// Keeps a future for others to poll; as [`put_completer`](Self::put_completer).
    pub(crate) fn put_future(&self, future: Option<KeptFuture>) {
        let before = {
            let mut place = locked(&self.future);
            if *locked(&self.stopped) { future } else { std::mem::replace(&mut *place, future) }
        };
        drop(before);
    }

    pub(crate) fn take_future(&self) -> Option<KeptFuture> {
        locked(&self.future).take()
    }

    /// Has the waker called when the world stops. False: it has stopped.
    pub(crate) fn wakes_at_the_end(&self, waker: &Waker) -> bool {
        let stopped = locked(&self.stopped);
        if !*stopped {
            locked(&self.wakers).push(waker.clone());
        }
        !*stopped
    }

    pub(crate) fn sender(&self, number: u8) -> Option<Sender<Value>> {
        locked(&self.channels[usize::from(number)]).as_ref().map(|ends| ends.0.clone())
    }

    pub(crate) fn receiver(&self, number: u8) -> Option<Receiver<Value>> {
        locked(&self.channels[usize::from(number)]).as_ref().map(|ends| ends.1.clone())
    }

    pub(crate) fn start_thread(&self, body: impl FnOnce() + Send + 'static) {
        let mut threads = locked(&self.threads);
        if threads.len() < 8
            && let Ok(thread) = std::thread::Builder::new().name("hostile-thread".into()).spawn(body)
        {
            threads.push(thread);
        }
    }

    /// Waits until the value is made, or the world has stopped. The maker of the value may wait for the caller. The library does not
    /// name that as a cycle, since another request may make the value.
    pub(crate) fn wait_for_value(&self) -> Result<(), TimeoutError> {
        loop {
            match self.value.wait_timeout(Duration::from_millis(5)) {
                Err(TimeoutError::TimedOut) if !*locked(&self.stopped) => {}
                answer => return answer.map(|_| ()),
            }
        }
    }

    /// Resets the event, unless the world has stopped.
    pub(crate) fn reset_event(&self) {
        let stopped = locked(&self.stopped);
        if !*stopped {
            self.event.reset();
        }
    }

    /// The current request is a region that `caller` has called, until the answer is dropped.
    pub(crate) fn enter_region(&self, caller: u64) -> InRegion<'_> {
        let id = Request::current().map(|region| region.id());
        if let Some(id) = id {
            locked(&self.regions).insert(id, caller);
        }
        InRegion(self, id)
    }

    /// The caller of the region with this number, if there is one.
    pub(crate) fn caller_of_region(&self, region: RequestId) -> Option<u64> {
        locked(&self.regions).get(&region).copied()
    }

    pub(crate) fn leaks(&self) {
        self.may_leak.store(true, Ordering::Release);
    }
}

/// See [`World::enter_region`].
#[derive(Debug)]
pub(crate) struct InRegion<'a>(&'a World, Option<RequestId>);

impl Drop for InRegion<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.1 {
            locked(&self.0.regions).remove(&id);
        }
    }
}

fn call_hook(world: &std::sync::Weak<World>, body: Option<&Body>) {
    if let (Some(world), Some(body)) = (world.upgrade(), body) {
        let _ = act(&world, body);
    }
}

/// Runs a body on a plain thread; a panic ends there.
pub(crate) fn attempt(world: &Arc<World>, body: &Body) {
    // A look has the runtime know this thread. A cycle through what a thread took before is not found.
    let _ = Event::new().wait_timeout(Duration::ZERO);
    let _ = catch_unwind(AssertUnwindSafe(|| act(world, body)));
}

//! What a world has besides requests, locks and ordinary channels: a watch channel, one-shot channels, a manual clock, and a plain pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use forebear::channel::{oneshot, watch};
use forebear::pool::{FifoQueue, Job, ThreadPool};
use forebear::time::{ManualClock, Subscription};

use super::{World, call_hook, locked};
use crate::program::{Body, ONE_SHOTS, Program};
use crate::value::{Value, violation};

type WatchEnds = (watch::Sender<Value>, watch::Receiver<Value>);
pub(crate) type PlainPool = ThreadPool<FifoQueue<Job>>;

/// Both ends of a one-shot channel, each taken by whoever uses it.
#[derive(Default)]
struct OneShot {
    sender: Mutex<Option<oneshot::Sender<Value>>>,
    receiver: Mutex<Option<oneshot::Receiver<Value>>>,
}

pub(crate) struct Beside {
    watch: Mutex<Option<WatchEnds>>,
    one_shots: Vec<OneShot>,
    pub(crate) clock: ManualClock,
    subscription: Mutex<Option<Subscription>>,
    pool: Mutex<Option<Arc<PlainPool>>>,
}

impl Beside {
    pub(super) fn new(world: &Weak<World>, program: &Program) -> Beside {
        Beside {
            watch: Mutex::default(),
            one_shots: (0..ONE_SHOTS).map(|_| OneShot::default()).collect(),
            clock: ManualClock::new(),
            subscription: Mutex::default(),
            pool: Mutex::new(program.pool.as_ref().map(|hooks| start_pool(world, hooks))),
        }
    }
}

fn start_pool(world: &Weak<World>, hooks: &[Option<Body>; 3]) -> Arc<PlainPool> {
    let hook = |number: usize| {
        let (world, body) = (world.clone(), hooks[number].clone());
        move || call_hook(&world, body.as_ref())
    };
    let (panicked, left, stopped) = (hook(0), hook(1), hook(2));
    let pool = ThreadPool::builder()
        .workers(2)
        .queue(FifoQueue::<Job>::new())
        .name_prefix("hostile pool ")
        .on_panic(move |_| panicked())
        .on_leftover(move |tasks| {
            left();
            drop(tasks);
        })
        .on_stop(move |_| stopped())
        .build();
    Arc::new(pool.unwrap_or_else(|error| violation(format_args!("no pool: {error}"))))
}

impl World {
    /// Puts something in its place, unless the world has stopped. What is not there afterwards is dropped outside all locks.
    fn put<T>(&self, place: &Mutex<Option<T>>, new: Option<T>) {
        let before = {
            let mut place = locked(place);
            if *locked(&self.stopped) { new } else { std::mem::replace(&mut *place, new) }
        };
        drop(before);
    }

    /// The ends of the watch channel. The first to ask makes it, with this value; later values are dropped.
    pub(crate) fn watch(&self, first: impl FnOnce() -> Value) -> Option<WatchEnds> {
        let made = locked(&self.beside.watch).is_some();
        if !made {
            let new = watch::channel(first());
            let mut place = locked(&self.beside.watch);
            // Another thread may have made one meanwhile, whose ends this drops: with a value that has no body.
            let late = place.is_some() || *locked(&self.stopped);
            let unused = if late { Some(new) } else { place.replace(new) };
            drop(place);
            drop(unused);
        }
        locked(&self.beside.watch).as_ref().map(|ends| (ends.0.clone(), ends.1.clone()))
    }

    pub(crate) fn put_one_shot(&self, number: u8) {
        let (sender, receiver) = oneshot::channel();
        let place = &self.beside.one_shots[usize::from(number)];
        self.put(&place.sender, Some(sender));
        self.put(&place.receiver, Some(receiver));
    }

    pub(crate) fn take_once(&self, number: u8) -> Option<oneshot::Sender<Value>> {
        locked(&self.beside.one_shots[usize::from(number)].sender).take()
    }

    pub(crate) fn take_receiver_once(&self, number: u8) -> Option<oneshot::Receiver<Value>> {
        locked(&self.beside.one_shots[usize::from(number)].receiver).take()
    }

    /// Puts the receiver back, for the next.
    pub(crate) fn give_receiver_once(&self, number: u8, receiver: oneshot::Receiver<Value>) {
        self.put(&self.beside.one_shots[usize::from(number)].receiver, Some(receiver));
    }

    pub(crate) fn put_subscription(&self, subscription: Option<Subscription>) {
        self.put(&self.beside.subscription, subscription);
    }

    pub(crate) fn plain_pool(&self) -> Option<Arc<PlainPool>> {
        locked(&self.beside.pool).clone()
    }

    pub(crate) fn take_plain_pool(&self) -> Option<Arc<PlainPool>> {
        locked(&self.beside.pool).take()
    }

    /// Moves the manual clock until the world is over, if the runtimes are on it. This thread calls no body.
    pub(super) fn start_ticker(self: &Arc<World>) -> Option<JoinHandle<()>> {
        let world = self.clone();
        let tick = Duration::from_millis(1);
        let ticker = move || {
            TICKS.with(|ticks| ticks.set(true));
            while !world.over.load(std::sync::atomic::Ordering::Acquire) {
                world.beside.clock.advance(tick);
                std::thread::park_timeout(tick);
            }
        };
        self.program.manual.then(|| std::thread::spawn(ticker))
    }

    /// Leaves no wait for any of this that nobody can end. Each end goes on a thread of its own: the values run bodies.
    pub(super) fn stop_beside(self: &Arc<World>) {
        let ends = locked(&self.beside.watch).take();
        World::aside(move || drop(ends));
        for place in &self.beside.one_shots {
            let (sender, receiver) = (locked(&place.sender).take(), locked(&place.receiver).take());
            World::aside(move || drop(sender));
            World::aside(move || drop(receiver));
        }
        let subscription = locked(&self.beside.subscription).take();
        World::aside(move || drop(subscription));
    }

    /// Waits for the threads of the plain pool, when nothing is left that its tasks could wait for.
    pub(super) fn end_plain_pool(&self) {
        if let Some(pool) = self.take_plain_pool() {
            // What it has not run is dropped here, and the captures may panic in their destructors.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(pool.stop())));
        }
    }
}

thread_local! {
    static TICKS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether this is the thread that moves the clock by itself.
pub(crate) fn is_ticker() -> bool {
    TICKS.with(std::cell::Cell::get)
}

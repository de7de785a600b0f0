//! The actors of a program as it really runs: what each does with an order, and what it tells.
//!
//! Orders come by a channel of each actor's own. A request listens by waiting, as any request may, for one of another
//! runtime that blocks in `recv`: so it really suspends, a cancel finds it there, and no worker of its own is held up.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebear::time::{Clock, ManualClock};
use forebear::{
    AnyRequest, CancelReason, Error, Failure, Outcome, Request, Runtime, WaitError, is_cancelled, shield,
    spawn, try_spawn,
};

use super::program::{Call, Ending, How, Id, Leaf, Make, Order, REQUESTS, THREADS};
use super::support::Kind;

/// From the end of one timed wait to that of the next.
const A_LONG_TIME: Duration = Duration::from_secs(1_000);

/// One program's run.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    /// Whether no request runs on a waiter's stack.
    own_stacks: bool,
    clock: ManualClock,
    /// When the last timed wait ends, and when the last of each actor does.
    ends: Mutex<(Instant, Vec<Instant>)>,
    told: Arc<Mutex<Vec<String>>>,
    /// By number; the handles that any actor may use.
    table: Mutex<Vec<Vec<Request<Value>>>>,
    /// The same without a count, for those who look on.
    looks: Mutex<Vec<AnyRequest>>,
    orders: Mutex<Vec<Sender<Order>>>,
    ears: Vec<Arc<Mutex<Receiver<Order>>>>,
    called: Mutex<Vec<usize>>,
}

/// What a request returns, and what its callable captures: tells of its drop.
pub(crate) struct Value(Id, #[expect(dead_code, reason = "dropped")] Probe);

struct Probe {
    told: Arc<Mutex<Vec<String>>>,
    line: String,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.told.lock().unwrap().push(std::mem::take(&mut self.line));
    }
}

/// The runtime whose workers listen for the requests that are idle.
fn listeners() -> &'static Runtime {
    static LISTENERS: OnceLock<Runtime> = OnceLock::new();
    LISTENERS
        .get_or_init(|| Runtime::builder().workers(REQUESTS + THREADS).name("listeners").build().unwrap())
}

impl World {
    pub(crate) fn new(kind: Kind, own_stacks: bool) -> Arc<World> {
        let (clock, told) = (ManualClock::new(), Arc::new(Mutex::new(Vec::new())));
        let hook = Arc::clone(&told);
        let builder = match kind {
            // It has a clock of its own.
            Kind::Seeded(_) => kind.builder(),
            _ => kind.builder().clock(clock.clone()),
        };
        let runtime = builder
            .on_unhandled_failure(move |failure| {
                let line = match path(failure).pop() {
                    Some(id) => format!("{id}: its failure is reported"),
                    None => "a leaf's failure is reported".to_owned(),
                };
                hook.lock().unwrap().push(line);
            })
            .build()
            .unwrap();
        let (orders, ears) = (0..THREADS + REQUESTS)
            .map(|_| {
                let (order, ear) = channel();
                (order, Arc::new(Mutex::new(ear)))
            })
            .unzip();
        Arc::new(World {
            runtime,
            own_stacks,
            ends: Mutex::new((clock.now(), vec![clock.now(); THREADS + REQUESTS])),
            clock,
            told,
            table: Mutex::new((0..THREADS).map(|_| Vec::new()).collect()),
            looks: Mutex::default(),
            orders: Mutex::new(orders),
            ears,
            called: Mutex::new(vec![0; THREADS + REQUESTS]),
        })
    }

    pub(crate) fn order(&self, actor: Id, order: Order) {
        self.orders.lock().unwrap()[actor].send(order).unwrap();
    }

    /// Lets time pass up to the end of this actor's timed wait.
    pub(crate) fn pass(&self, actor: Id) {
        let end = self.ends.lock().unwrap().1[actor];
        self.clock.set(end);
    }

    /// For how long the actor's timed wait that begins now is to wait: beyond all others.
    fn timeout(&self, actor: Id) -> Duration {
        let (last, each) = &mut *self.ends.lock().unwrap();
        *last += A_LONG_TIME;
        each[actor] = *last;
        last.saturating_duration_since(self.runtime.now())
    }

    /// Nobody gets another order.
    pub(crate) fn dismiss(&self) {
        self.orders.lock().unwrap().clear();
    }

    /// All that was told since the last time.
    pub(crate) fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    pub(crate) fn look(&self, id: Id) -> AnyRequest {
        self.looks.lock().unwrap()[id - THREADS].clone()
    }

    pub(crate) fn all(&self) -> Vec<AnyRequest> {
        self.looks.lock().unwrap().clone()
    }

    fn tell(&self, line: String) {
        self.told.lock().unwrap().push(line);
    }

    fn probe(&self, line: String) -> Probe {
        Probe { told: Arc::clone(&self.told), line }
    }

    /// What a foreign thread does.
    pub(crate) fn thread(self: &Arc<World>, me: Id) {
        let mut actor = Actor { world: Arc::clone(self), me, held: None, answer: None };
        self.runtime.enter(|| while actor.obey().is_some() {});
    }

    fn handle(&self, id: Id) -> Request<Value> {
        self.table.lock().unwrap()[id].last().unwrap().clone()
    }

    fn handle_out(&self, id: Id) -> Request<Value> {
        self.table.lock().unwrap()[id].pop().unwrap()
    }

    fn call(&self, id: Id, call: Call, outcome: &str) {
        let mut called = self.called.lock().unwrap();
        called[id] += 1;
        self.tell(format!("{id}: callback {} is {call:?}, told {outcome}", called[id]));
    }
}

/// What came of carrying out orders.
enum Came {
    Closed,
    Ended(Ending),
}

struct Actor {
    world: Arc<World>,
    me: Id,
    /// The handle that its last wait went by.
    held: Option<Request<Value>>,
    /// What its last wait answered, if that can be handed on.
    answer: Option<WaitError>,
}

impl Actor {
    /// The next order. `None`: there will be none. A thread listens by waiting as well: it may be one that drives requests.
    fn listen(&self) -> Option<Order> {
        let ear = Arc::clone(&self.world.ears[self.me]);
        let listens = Request::builder().detached().on(listeners());
        let heard = listens.spawn(move || ear.lock().unwrap().recv().ok());
        // Not `wait`: a foreign thread might run it itself, and would block where nobody finds it.
        match heard.watch() {
            Ok(order) => *order,
            Err(WaitError::Cancelled) => {
                self.world.tell(format!("{} takes shelter", self.me));
                shield(|| heard.watch().ok().copied().flatten())
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Carries out orders, up to the one that closes the region or ends the request. `None`: there are no more.
    fn obey(&mut self) -> Option<Came> {
        loop {
            let order = self.listen()?;
            self.held = None;
            match order {
                Order::Open => match shield(|| self.obey())? {
                    Came::Closed => {}
                    ended => return Some(ended),
                },
                Order::Close => return Some(Came::Closed),
                Order::End(ending) => return Some(Came::Ended(ending)),
                order => self.carry_out(order),
            }
        }
    }

    fn carry_out(&mut self, order: Order) {
        let (world, me) = (Arc::clone(&self.world), self.me);
        match order {
            Order::Make(make) => self.make(make),
            Order::Leaf(leaf, ending) => self.leaf(leaf, ending),
            Order::Submit(id) => _ = world.handle(id).submit(),
            Order::Wait(id, how) => self.wait(id, how),
            Order::Clone(id) => {
                let one_more = world.handle(id);
                world.table.lock().unwrap()[id].push(one_more);
            }
            Order::Drop(id) => drop(world.handle_out(id)),
            Order::Cancel(id) => {
                let came = world.look(id).cancel();
                world.tell(format!("{me}: cancel of {id} answers {came:?}"));
            }
            Order::Abort(id, why) => {
                let came = world.look(id).abort(CancelReason::Other(why));
                world.tell(format!("{me}: abort of {id} answers {came:?}"));
            }
            Order::Subscribe(id, call) => {
                let request = world.handle(id);
                let subscribed = catch_unwind(AssertUnwindSafe(|| subscribe(&world, &request, id, call)));
                if subscribed.is_err() {
                    world.tell(format!("{me}: a callback's panic came out"));
                }
            }
            Order::Look(id) => {
                let outcome = outcome(&world.handle(id));
                world.tell(format!("{me}: outcome of {id} is {outcome}"));
            }
            Order::Open | Order::Close | Order::End(_) | Order::Pass => unreachable!("not carried out here"),
        }
    }

    fn make(&self, make: Make) {
        let id = self.world.table.lock().unwrap().len();
        let captured = self.world.probe(format!("{id} drops what it captured"));
        let world = Arc::clone(&self.world);
        let body = move || {
            world.tell(format!("{id} runs"));
            let _captured = captured;
            let mut actor = Actor { world, me: id, held: None, answer: None };
            let ending = match actor.obey() {
                Some(Came::Ended(ending)) => ending,
                _ => Ending::Value,
            };
            let value = || Value(id, actor.world.probe(format!("{id}: its value is dropped")));
            match (ending, actor.answer.take()) {
                (Ending::Error, _) => Err(Error::other("an error")),
                (Ending::Panic, _) => resume_unwind(Box::new("a panic")),
                (Ending::HandOn, Some(error)) => Err(error.into()),
                _ => Ok(value()),
            }
        };
        let mut builder = Request::builder().name(id.to_string());
        if self.world.own_stacks || make == Make::OwnStack {
            builder = builder.own_stack();
        }
        if make == Make::Detached {
            builder = builder.detached();
        }
        let request = builder.try_build(body);
        self.world.looks.lock().unwrap().push(request.to_untyped());
        self.world.table.lock().unwrap().push(vec![request.clone()]);
        if make == Make::Spawned {
            request.submit();
        }
    }

    fn leaf(&self, leaf: Leaf, ending: Ending) {
        let world = &self.world;
        let captured = world.probe("a leaf drops what it captured".to_owned());
        let told = Arc::clone(&world.told);
        let value = move || Probe { told, line: "a leaf's value is dropped".to_owned() };
        let request = match ending {
            Ending::Value | Ending::HandOn => spawn(move || {
                drop(captured);
                value()
            }),
            Ending::Error => try_spawn(move || {
                drop(captured);
                Err(Error::other("an error"))
            }),
            Ending::Panic => spawn(move || {
                drop(captured);
                resume_unwind(Box::new("a panic"))
            }),
        };
        let came = match leaf {
            Leaf::Forgotten => return,
            Leaf::Taken => request.take().map(drop),
            Leaf::WaitedFor => request.wait().map(|_| ()),
        };
        let came = match came {
            Ok(()) => "a value".to_owned(),
            Err(WaitError::Cancelled) => "cancelled".to_owned(),
            Err(WaitError::Failed(failure)) if path(&failure).is_empty() => "failed by a leaf".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        world.tell(format!("{}: wait for a leaf answers {came}", self.me));
    }

    fn wait(&mut self, id: Id, how: How) {
        let world = Arc::clone(&self.world);
        let called = || world.called.lock().unwrap()[id];
        let handle = if how == How::Take { world.handle_out(id) } else { world.handle(id) };
        let answer = match how {
            How::Wait => handle.wait().map(|value| value.0),
            How::Timed => handle.wait_timeout(world.timeout(self.me)).map(|value| value.0),
            How::Watch => handle.watch().map(|value| value.0),
            How::Take => {
                let came = handle.take();
                let answer = came.as_ref().map(|value| value.0).map_err(Clone::clone);
                self.tell_answer(id, how, &answer, called());
                drop(came);
                self.answer = answer.err().filter(can_be_handed_on);
                return;
            }
        };
        self.tell_answer(id, how, &answer, called());
        self.answer = answer.err().filter(can_be_handed_on);
        self.held = Some(handle);
    }

    fn tell_answer(&self, id: Id, how: How, answer: &Result<Id, WaitError>, called: usize) {
        let what = match answer {
            Ok(value) => format!("value {value}, after {called} callbacks"),
            Err(WaitError::Failed(failure)) => {
                format!("failed along {:?}, after {called} callbacks", path(failure))
            }
            Err(WaitError::TargetCancelled(why)) => format!("{}, after {called} callbacks", for_reason(*why)),
            Err(WaitError::Cancelled) => "cancelled".to_owned(),
            Err(WaitError::TimedOut) => "timed out".to_owned(),
            Err(WaitError::CircularWait(_)) => "circular".to_owned(),
            Err(WaitError::Shared) => "shared".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        self.world.tell(format!("{}: {how:?} for {id} answers {what}", self.me));
        if self.me >= THREADS && matches!(answer, Err(WaitError::Cancelled)) != is_cancelled() {
            self.world.tell(format!("{}: is_cancelled() says something else", self.me));
        }
    }
}

fn subscribe(world: &Arc<World>, request: &Request<Value>, id: Id, call: Call) {
    let to = Arc::clone(world);
    match call {
        Call::Finished => request.on_finished(move |v| to.call(id, call, &format!("value {}", v.0))),
        Call::FinishedPanics => request.on_finished(move |v| {
            to.call(id, call, &format!("value {}", v.0));
            resume_unwind(Box::new("a callback's panic"));
        }),
        Call::Failed => request.on_failed(move |f| to.call(id, call, &format!("failed along {:?}", path(f)))),
        Call::Cancelled => request.on_cancelled(move || to.call(id, call, "nothing")),
        Call::Done => request.on_done(move |o| to.call(id, call, &told(&o))),
    };
}

fn outcome(request: &Request<Value>) -> String {
    request.outcome().map_or("none".to_owned(), |outcome| told(&outcome))
}

fn told(outcome: &Outcome<'_, Value>) -> String {
    match outcome {
        Outcome::Finished(value) => format!("value {}", value.0),
        Outcome::Failed(failure) => format!("failed along {:?}", path(failure)),
        Outcome::Cancelled(why) => for_reason(*why),
    }
}

/// The reasons that a program gives itself are told; which of the others it was may depend on who came first.
fn for_reason(why: CancelReason) -> String {
    match why {
        CancelReason::Other(why) => format!("cancelled for reason {why}"),
        _ => "cancelled".to_owned(),
    }
}

/// What cannot be told from a value is not handed on: that a target was cancelled.
fn can_be_handed_on(error: &WaitError) -> bool {
    !matches!(error, WaitError::TargetCancelled(_))
}

/// The numbers of the requests it came along.
fn path(failure: &Failure) -> Vec<Id> {
    failure.path().filter_map(|name| name.parse().ok()).collect()
}

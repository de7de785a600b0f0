//! What is armed, what is due, and the sleep of the thread that keeps the time. Shipped: `Shards`, which has the locks, the words
//! and the wheel, and a foreign context's wait.
//!
//! Time does not pass in a model, and a sleep with a limit does not end by itself. So each thread has a clock of its own: who arms sees
//! the start, and the timer thread a time at which what was armed is due; it must not sleep through that.
#![cfg(loom)]

use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use forebear_context::context::{Cause, Context, ForeignContext, Reason, Ticket, unpark};
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_loom_tests::{exhaust, explore};
use forebear_runtime::model::alarms::{self, DueWhen, Fire, Fired, Refused, Shards, Standing};

/// So many seconds after the start.
fn at(seconds: u64) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_secs(seconds)
}

/// Without owners.
fn shards<E: alarms::TimerEntry>(count: usize) -> Arc<Shards<E>> {
    Arc::new(Shards::new(count, at(0), None))
}

/// All but the last have owners, who have a second.
fn owned<E: alarms::TimerEntry>(count: usize) -> Arc<Shards<E>> {
    Arc::new(Shards::new(count, at(0), Some(Duration::from_secs(1))))
}

/// What `Deadlines::arm` does with an entry at the start of time, beyond the clock. If the shard has an owner, it is the caller.
fn arm<E: alarms::TimerEntry>(
    shards: &Shards<E>,
    shard: usize,
    seconds: u64,
    entry: E,
) -> Result<u64, Refused<E>> {
    // SAFETY: as said.
    let armed = unsafe { shards.insert(shard, at(seconds), entry, || at(0), || ())? };
    if armed.first {
        shards.tell(shard, at(seconds));
    }
    Ok(armed.number)
}

/// An entry that has a name and nothing to do.
#[derive(Debug)]
struct Name(u32);

// SAFETY: it stands nowhere.
unsafe impl alarms::TimerEntry for Name {}

/// What came out.
#[derive(Default)]
struct Log(Vec<u32>);

impl Fire<Name> for Log {
    fn fire(&mut self, Name(name): Name) -> Option<Name> {
        self.0.push(name);
        None
    }
}

/// The timer thread: what came out until so many had, or all was over.
fn keep(shards: &Shards<Name>, now: Instant, most: usize) -> Vec<u32> {
    keep_until(shards, now, |came| came.len() >= most)
}

fn keep_until(shards: &Shards<Name>, now: Instant, done: impl Fn(&[u32]) -> bool) -> Vec<u32> {
    let mut log = Log::default();
    while !done(&log.0) && shards.rest(|| now) {
        for shard in 0..shards.count() {
            while shards.is_neglected(shard, now)
                && !matches!(shards.fire(shard, now, 1, &mut log), Fired::All)
            {}
        }
    }
    log.0
}

/// The owner.
fn fire_own(shards: &Shards<Name>, shard: usize, now: Instant) -> Vec<u32> {
    let mut log = Log::default();
    while shards.may_be_due(shard, now) {
        // SAFETY: its owner calls.
        if let Fired::All = unsafe { shards.fire_own(shard, now, 1, &mut log) } {
            break;
        }
    }
    log.0
}

#[test]
fn the_first_entry_reaches_a_timer_thread_that_goes_to_sleep() {
    exhaust(&[], |_| {
        let shards = shards(1);
        let there = shards.clone();
        let timer_thread = thread::spawn(move || keep(&there, at(1), 1));
        arm(&shards, 0, 1, Name(7)).unwrap();
        assert_eq!(timer_thread.join().unwrap(), [7]);
    });
}

#[test]
fn an_earlier_entry_reaches_a_timer_thread_that_sleeps_for_a_later_one() {
    exhaust(&[], |_| {
        let shards = shards(2);
        arm(&shards, 0, 60, Name(8)).unwrap();
        let there = shards.clone();
        let timer_thread = thread::spawn(move || keep(&there, at(1), 1));
        arm(&shards, 1, 1, Name(7)).unwrap();
        assert_eq!(timer_thread.join().unwrap(), [7]);
    });
}

/// Two workers arm in shards of their own.
#[test]
fn entries_of_two_shards_reach_the_timer_thread() {
    explore(&["one", "two"], |answers| {
        let shards = shards(2);
        let there = shards.clone();
        let other = thread::spawn(move || drop(arm(&there, 1, 1, Name(2))));
        let there = shards.clone();
        let timer_thread = thread::spawn(move || keep(&there, at(1), 2));
        arm(&shards, 0, 1, Name(1)).unwrap();
        other.join().unwrap();
        let came = timer_thread.join().unwrap();
        answers.note(if came[0] == 1 { "one" } else { "two" });
        assert_eq!(came[0] + came[1], 3);
    });
}

/// While the shard's word is written anew.
#[test]
fn what_is_armed_while_others_fire_is_not_forgotten() {
    exhaust(&[], |_| {
        let shards = shards(1);
        arm(&shards, 0, 1, Name(1)).unwrap();
        let there = shards.clone();
        let timer_thread = thread::spawn(move || keep(&there, at(2), 2));
        arm(&shards, 0, 2, Name(2)).unwrap();
        assert_eq!(timer_thread.join().unwrap(), [1, 2]);
    });
}

/// What it arms next comes due on it when it looks no more.
#[test]
fn what_an_owner_neglects_comes_from_the_timer_thread_and_all_comes_once() {
    explore(&["owner", "timer thread"], |answers| {
        let shards = owned(2);
        arm(&shards, 0, 1, Name(7)).unwrap();
        let there = shards.clone();
        let timer_thread = thread::spawn(move || keep_until(&there, at(3), |came| came.contains(&8)));
        let own = fire_own(&shards, 0, at(1));
        arm(&shards, 0, 2, Name(8)).unwrap();
        let came = timer_thread.join().unwrap();
        assert_eq!([own.as_slice(), &came].concat(), [7, 8]);
        answers.note(if own.is_empty() { "timer thread" } else { "owner" });
        assert!(!shards.is_neglected(0, at(60)), "the word says so");
    });
}

#[test]
fn the_timer_thread_leaves_to_an_owner_what_has_just_come_due() {
    exhaust(&[], |_| {
        let shards = owned(2);
        let there = shards.clone();
        let timer_thread = thread::spawn(move || keep(&there, at(1), 1));
        arm(&shards, 0, 1, Name(7)).unwrap();
        // The last shard has no owner.
        arm(&shards, 1, 1, Name(8)).unwrap();
        assert_eq!(timer_thread.join().unwrap(), [8]);
        assert_eq!(fire_own(&shards, 0, at(1)), [7]);
    });
}

#[test]
fn the_timer_thread_leaves_an_owner_alone_that_has_just_looked() {
    exhaust(&[], |_| {
        let shards = owned(2);
        arm(&shards, 0, 1, Name(7)).unwrap();
        shards.sees(0, at(3));
        let there = shards.clone();
        let timer_thread = thread::spawn(move || keep(&there, at(3), 1));
        arm(&shards, 1, 3, Name(8)).unwrap();
        assert_eq!(timer_thread.join().unwrap(), [8]);
        assert_eq!(fire_own(&shards, 0, at(3)), [7]);
    });
}

#[test]
fn the_end_reaches_a_timer_thread_that_goes_to_sleep() {
    exhaust(&["fired", "given up"], |answers| {
        let shards = shards(1);
        arm(&shards, 0, 1, Name(7)).unwrap();
        let there = shards.clone();
        let timer_thread = thread::spawn(move || keep(&there, at(1), 2));
        let mut left = Vec::new();
        shards.close(|entry| left.push(entry.0));
        let came = timer_thread.join().unwrap();
        assert_eq!(came.len() + left.len(), 1);
        answers.note(if left.is_empty() { "fired" } else { "given up" });
        assert!(matches!(arm(&shards, 0, 1, Name(8)), Err(Refused::Closed(Name(8)))));
    });
}

/// A thread that waits, and what goes with it when it does.
struct Waiter {
    foreign: ForeignContext,
    body: UnsafeCell<u32>,
}

// SAFETY: a context is made for others to wake; that the body is touched by one at a time is what loom shows.
unsafe impl Send for Waiter {}
// SAFETY: as above.
unsafe impl Sync for Waiter {}

impl Waiter {
    fn new() -> Arc<Waiter> {
        Arc::new(Waiter { foreign: ForeignContext::new(), body: UnsafeCell::new(0) })
    }

    fn context(&self) -> &Context {
        self.foreign.context()
    }

    fn begin(&self) -> Ticket {
        // SAFETY: C2: by the thread that stands for its stack; C4: for nothing that is followed.
        unsafe { self.context().begin(Reason::Sleep, ptr::null_mut()) }
    }

    fn wake(&self, ticket: Ticket, cause: Cause) -> bool {
        // SAFETY: C1: the model keeps it.
        unsafe { unpark(NonNull::from(self.context()), ticket, cause) }
    }

    /// Waits, takes the alarm back, and goes: its memory is somebody else's from then on.
    fn wait(&self, ticket: Ticket, shards: &Shards<TimerEntry>, number: u64) -> Cause {
        let _ = ticket;
        // SAFETY: on the thread that began.
        let cause = unsafe { self.context().park(None) };
        // SAFETY: it has no owner.
        unsafe { shards.remove(0, number) };
        // SAFETY: whoever has disarmed is rid of the timer; loom says if not.
        self.body.with_mut(|body| unsafe { *body += 1 });
        cause
    }
}

/// A wait's entry, as `Deadlines` has it.
struct TimerEntry(Arc<Waiter>, Ticket);

// SAFETY: it stands nowhere.
unsafe impl alarms::TimerEntry for TimerEntry {}

/// Ends waits, and looks at the waiter afterwards, as a timer that was not done with it might.
struct Timer(bool);

impl Fire<TimerEntry> for Timer {
    fn fire(&mut self, TimerEntry(waiter, ticket): TimerEntry) -> Option<TimerEntry> {
        self.0 = waiter.wake(ticket, Cause::TimedOut);
        // SAFETY: T3: it has not gone.
        waiter.body.with(|body| unsafe { assert_eq!(*body, 0, "it has gone") });
        None
    }
}

fn tick(shards: &Shards<TimerEntry>) -> bool {
    let mut timer = Timer(false);
    shards.fire(0, at(1), 1, &mut timer);
    timer.0
}

#[test]
fn who_has_taken_its_alarm_back_is_rid_of_the_timer() {
    exhaust(&["timed out", "in time"], |answers| {
        let (shards, waiter) = (shards(1), Waiter::new());
        let ticket = waiter.begin();
        let number = arm(&shards, 0, 1, TimerEntry(waiter.clone(), ticket)).unwrap_or(0);
        let there = shards.clone();
        let timer = thread::spawn(move || tick(&there));
        // It ends its wait itself.
        waiter.wake(ticket, Cause::Woken);
        let cause = waiter.wait(ticket, &shards, number);
        assert_eq!(timer.join().unwrap(), cause == Cause::TimedOut);
        answers.note(if cause == Cause::TimedOut { "timed out" } else { "in time" });
    });
}

#[test]
fn a_wait_that_is_woken_as_its_time_comes_ends_once() {
    explore(&["timed out", "in time"], |answers| {
        let (shards, waiter) = (shards(1), Waiter::new());
        let ticket = waiter.begin();
        let number = arm(&shards, 0, 1, TimerEntry(waiter.clone(), ticket)).unwrap_or(0);
        let there = shards.clone();
        let timer = thread::spawn(move || tick(&there));
        let woken = waiter.clone();
        let waker = thread::spawn(move || woken.wake(ticket, Cause::Woken));
        let cause = waiter.wait(ticket, &shards, number);
        assert_eq!(timer.join().unwrap(), cause == Cause::TimedOut);
        assert_eq!(waker.join().unwrap(), cause == Cause::Woken);
        answers.note(if cause == Cause::TimedOut { "timed out" } else { "in time" });
        assert_eq!(shards.armed(), 0, "it leaves no trace");
    });
}

/// Beside whom it is for, as in a coroutine's control block.
struct Stands(Standing);

// SAFETY: the owner of the shard touches it, and whoever has its lock.
unsafe impl Send for Stands {}
// SAFETY: as above.
unsafe impl Sync for Stands {}

/// The entry of one who arms again and again: one wait after the other, each with a name.
enum Stays {
    Armed(u32, Instant, Arc<Stands>),
    Rests,
}

// SAFETY: an entry keeps what it stands beside.
unsafe impl alarms::TimerEntry for Stays {
    fn when(&self) -> DueWhen {
        match self {
            Stays::Armed(_, at, _) => DueWhen::At(*at),
            Stays::Rests => DueWhen::Rests,
        }
    }

    fn rest(&mut self) {
        *self = Stays::Rests;
    }

    fn standing(&self) -> Option<NonNull<Standing>> {
        match self {
            Stays::Armed(_, _, stands) => Some(NonNull::from(&stands.0)),
            Stays::Rests => None,
        }
    }
}

/// Who came, and when by the clock of who fired. Everybody looks, so it is no lock of the model's.
type Came = std::sync::Mutex<Vec<(u32, u64)>>;

/// Fires at a time.
struct At<'a>(u64, &'a Came);

impl Fire<Stays> for At<'_> {
    fn fire(&mut self, entry: Stays) -> Option<Stays> {
        match entry {
            Stays::Armed(name, ..) => self.1.lock().unwrap().push((name, self.0)),
            Stays::Rests => panic!("what rests has come out"),
        }
        None
    }
}

/// What `Deadlines::arm_own` does, by the owner of shard 0.
fn arm_own(shards: &Shards<Stays>, stands: &Arc<Stands>, seconds: u64, name: u32) -> u64 {
    let entry = || Stays::Armed(name, at(seconds), stands.clone());
    // SAFETY: the owner calls.
    let again = unsafe { shards.arm_again(0, &stands.0, at(seconds), entry) };
    again.unwrap_or_else(|| match arm(shards, 0, seconds, entry()) {
        Ok(number) => number,
        Err(_) => panic!("it was not due"),
    })
}

/// The timer thread, which looks at one time and sleeps at another until that name has come.
fn keep_for(shards: &Shards<Stays>, came: &Came, looks: u64, sleeps: u64, last: u32) {
    let look = |time: u64| {
        while shards.is_neglected(0, at(time))
            && !matches!(shards.fire(0, at(time), 1, &mut At(time, came)), Fired::All)
        {}
    };
    look(looks);
    while !has_come(came, last) && shards.rest(|| at(sleeps)) {
        look(sleeps);
    }
}

fn has_come(came: &Came, name: u32) -> bool {
    came.lock().unwrap().iter().any(|(other, _)| *other == name)
}

/// Three waits with one alarm, of which the first two end before their time, while the timer thread looks at what is neglected.
#[test]
fn an_alarm_that_stays_fires_for_the_wait_it_was_armed_for_last_and_not_before_its_time() {
    explore(&["in time", "timed out", "timed out late"], |answers| {
        let (shards, stands) = (owned(2), Arc::new(Stands(Standing::default())));
        let came = std::sync::Arc::new(Came::default());
        let first = arm_own(&shards, &stands, 1, 1);
        let (there, comes) = (shards.clone(), came.clone());
        // With the grace: at two the first is due, and at seven the last.
        let timer_thread = thread::spawn(move || keep_for(&there, &comes, 2, 7, 3));
        // Taken back, or else it has come already.
        let rest = |number, name| {
            // SAFETY: the owner calls.
            let in_time = unsafe { shards.put_to_rest(0, &stands.0, number) };
            assert_eq!(in_time, !has_come(&came, name));
            in_time
        };
        let mut late = Vec::new();
        if !rest(first, 1) {
            late.push(1);
        }
        let second = arm_own(&shards, &stands, 4, 2);
        if !rest(second, 2) {
            late.push(2);
        }
        arm_own(&shards, &stands, 6, 3);
        late.push(3);
        timer_thread.join().unwrap();
        let came = came.lock().unwrap();
        assert!(came.iter().map(|(name, _)| *name).eq(late.iter().copied()));
        assert!(came.iter().all(|(name, when)| *name == 1 || *when == 7), "not before its time");
        answers.note(match late.as_slice() {
            [3] => "in time",
            [1, 3] => "timed out",
            _ => "timed out late",
        });
        assert_eq!(shards.armed(), 0);
    });
}

/// What rests is not waited for; so who arms it again says so, though it is filed already.
#[test]
fn an_alarm_that_rested_while_nothing_was_armed_reaches_the_timer_thread() {
    exhaust(&[], |_| {
        let (shards, stands) = (owned(2), Arc::new(Stands(Standing::default())));
        let other = Arc::new(Stands(Standing::default()));
        let number = arm_own(&shards, &stands, 5, 1);
        arm_own(&shards, &other, 1, 2);
        // SAFETY: the owner calls.
        assert!(unsafe { shards.put_to_rest(0, &stands.0, number) });
        let came = std::sync::Arc::new(Came::default());
        // SAFETY: as above.
        assert!(matches!(unsafe { shards.fire_own(0, at(1), 2, &mut At(1, &came)) }, Fired::All));
        assert!(has_come(&came, 2) && !shards.has_some(0));
        let (there, comes) = (shards.clone(), came.clone());
        let timer_thread = thread::spawn(move || keep_for(&there, &comes, 7, 7, 3));
        arm_own(&shards, &stands, 6, 3);
        timer_thread.join().unwrap();
        assert_eq!(*came.lock().unwrap(), [(2, 1), (3, 7)]);
    });
}

/// What `Deadlines::arm_due` does on a worker that keeps the deadlines of its requests: by the owner of shard 0, whose requests share a place.
fn arm_limit(shards: &Shards<Stays>, stands: &Arc<Stands>, seconds: u64, name: u32) -> u64 {
    let entry = || Stays::Armed(name, at(seconds), stands.clone());
    // SAFETY: the owner calls.
    let again = unsafe { shards.arm_in_place(0, &stands.0, at(seconds), entry) };
    again.unwrap_or_else(|| match arm(shards, 0, seconds, entry()) {
        Ok(number) => number,
        Err(_) => panic!("it was not due"),
    })
}

/// What `Deadlines::disarm_due` does, by the owner or another.
fn take_back(shards: &Shards<Stays>, owns: bool, stands: &Stands, number: u64, name: u32) -> bool {
    let is_it = |entry: &Stays| matches!(entry, Stays::Armed(of, ..) if *of == name);
    // SAFETY: as the caller says.
    unsafe { shards.take_back(0, owns, &stands.0, number, is_it) }
}

/// Whose owner leaves what is due there to the timer thread.
fn prompt() -> Arc<Shards<Stays>> {
    Arc::new(Shards::new(2, at(0), Some(Duration::from_secs(1))).prompt_from(0))
}

/// Deadlines of two requests of one worker, the second armed when the first may have come.
#[test]
fn a_deadline_that_is_taken_back_is_the_requests_own_also_where_another_stands() {
    explore(&["in time", "timed out"], |answers| {
        let (shards, stands) = (prompt(), Arc::new(Stands(Standing::default())));
        let came = std::sync::Arc::new(Came::default());
        let first = arm_limit(&shards, &stands, 1, 1);
        let (there, comes) = (shards.clone(), came.clone());
        // Without a grace.
        let timer_thread = thread::spawn(move || keep_for(&there, &comes, 1, 3, 2));
        arm_limit(&shards, &stands, 3, 2);
        let in_time = take_back(&shards, true, &stands, first, 1);
        assert_eq!(in_time, !has_come(&came, 1));
        timer_thread.join().unwrap();
        let second = *came.lock().unwrap().last().unwrap();
        assert_eq!(second, (2, 3));
        assert_eq!(came.lock().unwrap().len(), 1 + usize::from(!in_time));
        answers.note(if in_time { "in time" } else { "timed out" });
        assert_eq!(shards.armed(), 0);
    });
}

/// A request ends on another thread than its maker's, which goes on to arm the deadline of the next.
#[test]
fn a_deadline_that_another_thread_takes_back_leaves_the_owners_next_alone() {
    explore(&["the first place", "another"], |answers| {
        let (shards, stands) = (prompt(), Arc::new(Stands(Standing::default())));
        let first = arm_limit(&shards, &stands, 5, 1);
        let (there, place) = (shards.clone(), stands.clone());
        let visitor = thread::spawn(move || assert!(take_back(&there, false, &place, first, 1)));
        let second = arm_limit(&shards, &stands, 6, 2);
        answers.note(if first == second { "the first place" } else { "another" });
        assert!(take_back(&shards, true, &stands, second, 2));
        visitor.join().unwrap();
        assert!(!take_back(&shards, true, &stands, first, 1));
        assert_eq!(shards.armed(), 0);
    });
}

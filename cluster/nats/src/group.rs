//! [`Group`]: processes on several machines, mostly agents, that form a group over a server, form it anew when one is lost, and wait for each other at the exit.
//!
//! ```no_run
//! use forebear_cluster_nats::group::{Exit, Group, GroupOptions};
//! use std::time::Duration;
//!
//! // Two to four machines, of which this one has eight workers.
//! let options = GroupOptions::new("tls://queue.example.org", "training").credentials("agent.creds");
//! let group = Group::join(options.members(2, 4).size(8))?;
//! loop {
//!     let round = group.form()?;
//!     println!("round {}: number {} of {}", round.number, round.own, round.members.len());
//!     // ... the work of this round, which ends early if `group.wait_changed(&round)` returns ...
//!     match group.finish(&round, Duration::from_secs(300))? {
//!         Exit::Changed => continue,
//!         Exit::Without(names) => println!("they have not come to the end: {names:?}"),
//!         _ => {}
//!     }
//!     break;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A member says that it is there every sixth of a lease. One that says nothing for a lease is lost, and the round is over: the others form the next one if they are enough. A member that is
//! killed and started again joins as a new one. The members say so in one entry of a bucket on the server, so a group is for some dozens of members. While the server is away nobody is lost.

mod form;
mod roll;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use async_nats::jetstream::kv::{self, Operation};
use forebear::sync::{Condvar, Event, Mutex};
use forebear::{Cancelled, Request, TimeoutError, shield};
use forebear_cluster::ClusterError;
use forebear_cluster::engine::start_error;
use tokio::sync::Notify;

pub use self::form::FormError;
use self::roll::{Roll, RollEntry, Rules, Wants, Watch};
use crate::access::{Access, ONE_TRY, Tls, Who};
use crate::nats::random;
use crate::store::{PAUSE, Store, while_electing};
use crate::wire::{Names, decode, encode};

/// How a process joins a group: which server, as whom, and what kind of group.
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct GroupOptions {
    access: Access,
    group: String,
    name: String,
    size: usize,
    replicas: usize,
    rules: Rules,
    form_timeout: Duration,
}

impl GroupOptions {
    /// A member of the group of this name on that server. All members give the same [`members`](Self::members), [`lease`](Self::lease) and [`gather`](Self::gather).
    pub fn new(server: &str, group: &str) -> GroupOptions {
        GroupOptions {
            access: Access::new(server),
            group: group.to_owned(),
            name: format!("member-{:016x}", random()),
            size: 1,
            replicas: 1,
            rules: Rules {
                least: 1,
                most: 1,
                lease: Duration::from_secs(15),
                gather: Duration::from_secs(30),
            },
            form_timeout: Duration::from_secs(600),
        }
    }

    /// A round has at least `least` members, and at most `most`. An agent that comes when there are `most` waits for a place. By default both are one.
    pub fn members(mut self, least: usize, most: usize) -> GroupOptions {
        (self.rules.least, self.rules.most) = (least.max(1), most.max(least).max(1));
        self
    }

    /// The name by which others know this member. It is another one each time if not told otherwise.
    pub fn name(mut self, name: &str) -> GroupOptions {
        self.name = name.to_owned();
        self
    }

    /// How many workers it brings. 1 if not told otherwise.
    pub fn size(mut self, workers: usize) -> GroupOptions {
        self.size = workers;
        self
    }

    /// So many servers of a cluster keep what the group knows, as [`Nats::replicas`](crate::Nats::replicas) says. 1 if not told otherwise. The first member's number counts.
    pub fn replicas(mut self, replicas: usize) -> GroupOptions {
        self.replicas = replicas.max(1);
        self
    }

    /// A member that says nothing for so long is lost. 15 s if not told otherwise, and at least 100 ms.
    pub fn lease(mut self, lease: Duration) -> GroupOptions {
        self.rules.lease = lease.max(Duration::from_millis(100));
        self
    }

    /// The first round, and one after there were too few, waits so long for more members when there are enough. 30 s if not told otherwise.
    pub fn gather(mut self, time: Duration) -> GroupOptions {
        self.rules.gather = time;
        self
    }

    /// How long [`form`](Group::form) waits while there are too few members, the server is away, or the others are in a round that has no place for this member.
    /// Ten minutes if not told otherwise. A spare member, which waits for a place for as long as the others work, gives `Duration::MAX`: that is without a limit.
    pub fn form_timeout(mut self, timeout: Duration) -> GroupOptions {
        self.form_timeout = timeout;
        self
    }

    /// Authenticates by a token.
    pub fn token(mut self, token: &str) -> GroupOptions {
        self.access.who = Who::Token(token.to_owned());
        self
    }

    /// Authenticates by a name and a password.
    pub fn user(mut self, name: &str, password: &str) -> GroupOptions {
        self.access.who = Who::User { name: name.to_owned(), password: password.to_owned() };
        self
    }

    /// Authenticates by a file with a JWT and a key.
    pub fn credentials(mut self, file: impl AsRef<Path>) -> GroupOptions {
        self.access.who = Who::File(file.as_ref().to_owned());
        self
    }

    /// Connects by TLS. The server's certificate is signed by what is in that file.
    pub fn tls(mut self, authority: impl AsRef<Path>) -> GroupOptions {
        self.access.tls = Some(Tls { authority: authority.as_ref().to_owned(), own: None });
        self
    }

    /// Connects without credentials to another machine, too.
    pub fn without_authentication(mut self) -> GroupOptions {
        self.access.open = true;
        self
    }
}

/// Those who work together until one of them is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Round {
    /// Its number. Each round of a group has a higher one.
    pub number: u64,
    /// In an order that is the same for all of them.
    pub members: Vec<Member>,
    /// Which of them this process is.
    pub own: usize,
}

/// A member, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its name.
    pub name: String,
    /// How many workers it brings.
    pub size: usize,
    id: u64,
}

/// What became of a round at its exit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// All members are done.
    All,
    /// Those are lost, or were not done in time.
    Without(Vec<String>),
    /// The round was over before, and counts for nothing: [`Group::form`] tells the next one.
    Changed,
}

/// A member of a group. Cheap to clone. With the last handle it leaves.
///
/// The drop of that handle waits until the server knows, which takes a moment, and two seconds at most if the server does not answer. In a request it suspends, and a cancel does not end the wait. It does not wait
/// where a request unwinds, or must not suspend. What it has not waited for goes on while the process lives.
#[derive(Clone)]
pub struct Group(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    begun: Arc<Begun>,
}

struct Shared {
    id: u64,
    state: Mutex<State>,
    /// The state has changed.
    changed: Condvar,
    /// This member wants something.
    wants: Notify,
    /// Nobody has a handle any more.
    leaves: AtomicBool,
    least: usize,
    most: usize,
    form_timeout: Duration,
}

#[derive(Default)]
struct State {
    roll: Roll,
    wants: Wants,
    /// Why the roll could not be read or written the last time.
    trouble: Option<String>,
}

impl Group {
    /// Joins, and says from now on that this process is there, from a thread of its own.
    ///
    /// Servers that are a cluster may have no leader yet: it waits for that, a [lease](GroupOptions::lease) at most.
    ///
    /// Suspends.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Start`]: there is no connection, the servers have no leader, or the group's name is none. [`ClusterError::Cancelled`].
    pub fn join(options: GroupOptions) -> Result<Group, ClusterError> {
        let names = Names::new(&options.group)
            .ok_or_else(|| start_error(format_args!("`{}` is no name of a group", options.group)))?;
        let id = random();
        let (state, changed) = (Mutex::new(State::default()), Condvar::new());
        let (Rules { least, most, .. }, form_timeout) = (options.rules, options.form_timeout);
        let (wants, leaves) = (Notify::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { id, state, changed, wants, leaves, least, most, form_timeout });
        let (its, begun) = (shared.clone(), Arc::new(Begun::default()));
        let ends = Ends(begun.clone());
        let thread = thread::Builder::new().name("cluster: group".into()).spawn(move || {
            let tell = &ends.0;
            let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match tokio {
                Ok(tokio) => {
                    tokio.block_on(run(&options, &names, &its, tell));
                    // The runtime's own end may wait for the name of a server to be looked up.
                    tell.ended.set();
                }
                Err(error) => tell.tell(Err(error.to_string())),
            }
        });
        thread.map_err(start_error)?;
        let group = Group(Arc::new(Handle { shared, begun: begun.clone() }));
        begun.told.wait()?;
        let answer = begun.answer.lock().take();
        answer.unwrap_or_else(|| Err("the thread of the group has ended".into())).map_err(start_error)?;
        Ok(group)
    }

    /// Waits until this process is in a round, as long as the [limit](GroupOptions::form_timeout) says.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`FormError`]. This process stays a member, so it may be repeated.
    pub fn form(&self) -> Result<Round, FormError> {
        self.0.shared.form()
    }

    /// Whether the round is over, since a member was lost, or came, or asked for another one.
    #[must_use]
    pub fn has_changed(&self, round: &Round) -> bool {
        let shared = &self.0.shared;
        !shared.state.lock().roll.is_in(shared.id, round.number)
    }

    /// Waits until the round is over.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    pub fn wait_changed(&self, round: &Round) -> Result<(), Cancelled> {
        let shared = &self.0.shared;
        let mut state = shared.state.lock_or_cancelled()?;
        while state.roll.is_in(shared.id, round.number) {
            shared.changed.wait(&mut state)?;
        }
        Ok(())
    }

    /// Has the next round begin, for all: something has failed here. Nothing happens if the round is over already.
    pub fn begin_anew(&self, round: &Round) {
        self.0.shared.want(|wants| wants.anew = Some(round.number));
    }

    /// Says that this process is done, and waits until all others of the round are, so that no member leaves while others need it.
    /// From here on the loss of a member begins no other round: the answer names that member.
    ///
    /// An exit that is not complete is no error: what this process has done is done.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    pub fn finish(&self, round: &Round, timeout: Duration) -> Result<Exit, Cancelled> {
        let shared = &self.0.shared;
        shared.want(|wants| wants.done = Some(round.number));
        let mut state = shared.state.lock_or_cancelled()?;
        let end = forebear::time::now().checked_add(timeout);
        loop {
            let roll = &state.roll;
            if !roll.is_in(shared.id, round.number) {
                return Ok(Exit::Changed);
            }
            let is_done = |member: &&Member| roll.done.contains(&member.id);
            let is_there = |member: &Member| roll.members.iter().any(|entry| entry.id == member.id);
            let missing: Vec<&Member> = round.members.iter().filter(|member| !is_done(member)).collect();
            let own = roll.done.contains(&shared.id);
            if own && missing.is_empty() {
                return Ok(Exit::All);
            }
            let without = || Exit::Without(missing.iter().map(|member| member.name.clone()).collect());
            if own && !missing.iter().any(|member| is_there(member)) {
                return Ok(without());
            }
            let left = end.map(|end| end.saturating_duration_since(forebear::time::now()));
            if left == Some(Duration::ZERO) {
                return Ok(without());
            }
            // It is looked at once more after the time.
            let waited = match left {
                None => shared.changed.wait(&mut state).map_err(|_| TimeoutError::Cancelled),
                Some(left) => shared.changed.wait_timeout(&mut state, left),
            };
            if waited == Err(TimeoutError::Cancelled) {
                forebear::check_cancelled()?;
            }
        }
    }
}

impl Shared {
    /// The newest round, if this member is in it.
    fn round(&self, roll: &Roll) -> Option<Round> {
        if !roll.is_in(self.id, roll.round) {
            return None;
        }
        let member =
            |entry: &RollEntry| Member { name: entry.name.clone(), size: entry.size as usize, id: entry.id };
        let members: Vec<Member> = roll.formed.iter().map(member).collect();
        let own = members.iter().position(|member| member.id == self.id)?;
        Some(Round { number: roll.round, members, own })
    }

    fn want(&self, want: impl FnOnce(&mut Wants)) {
        want(&mut self.state.lock().wants);
        self.wants.notify_one();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // No lock: a drop may come where its request must not suspend.
        self.shared.leaves.store(true, Ordering::Release);
        self.shared.wants.notify_one();
        // A request that unwinds cannot suspend: see `docs/pinning.md`. The thread ends by itself.
        let unwinds = thread::panicking() && Request::current().is_some();
        if unwinds || self.begun.ended.is_set() {
            return;
        }
        // In a region that must not suspend the wait panics, and a drop must not.
        let _ = catch_unwind(AssertUnwindSafe(|| shield(|| self.begun.ended.wait_timeout(FAREWELL))));
    }
}

/// Whether the thread has a connection, and whether it has ended.
#[derive(Default)]
struct Begun {
    told: Event,
    ended: Event,
    answer: Mutex<Option<Result<(), String>>>,
}

impl Begun {
    /// The first answer counts.
    fn tell(&self, answer: Result<(), String>) {
        self.answer.lock().get_or_insert(answer);
        self.told.set();
    }
}

/// The thread has ended, by a panic perhaps: nobody waits for its answer.
struct Ends(Arc<Begun>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.tell(Err("the thread of the group has ended".into()));
        self.0.ended.set();
    }
}

/// The key of the roll.
const ROLL: &str = "roll";

/// A member that leaves tries for so long to tell a server that does not answer, and the drop of its last handle waits no longer.
const FAREWELL: Duration = Duration::from_secs(2);

async fn run(options: &GroupOptions, names: &Names, shared: &Shared, begun: &Begun) {
    let opened = async {
        let client = tokio::select! {
            client = options.access.connect(ONE_TRY, ONE_TRY, |_| ()) => client?,
            // Before it has joined it wants nothing else.
            () = shared.wants.notified() => return Err("the join was cancelled".into()),
        };
        let store = Store::new(&client, names, options.replicas, options.rules.lease);
        let bucket = while_electing(options.rules.lease, async || store.group().await).await?;
        Ok::<_, String>((bucket, store))
    };
    let (mut bucket, store) = match opened.await {
        Ok(opened) => opened,
        Err(why) => return begun.tell(Err(why)),
    };
    begun.tell(Ok(()));
    let mut watch = Watch::new(shared.id, options.name.clone(), options.size as u64, options.rules);
    let mut left: Option<Instant> = None;
    loop {
        let wants = Wants { leave: shared.leaves.load(Ordering::Acquire), ..shared.state.lock().wants };
        let turned = turn(&bucket, &mut watch, wants).await;
        if wants.leave {
            let since = *left.get_or_insert_with(Instant::now);
            match turned {
                // The last one takes the roll with it.
                Ok(Some(roll)) if roll.members.is_empty() => return store.remove_group().await,
                Ok(Some(_)) => return,
                _ if since.elapsed() > FAREWELL => return,
                _ => {}
            }
        }
        match turned {
            Ok(Some(roll)) => {
                let mut state = shared.state.lock();
                (state.roll, state.trouble) = (roll, None);
                drop(state);
                shared.changed.notify_all();
                let beat = (options.rules.lease / 6).min(Duration::from_secs(5));
                let _ = tokio::time::timeout(beat, shared.wants.notified()).await;
            }
            // Somebody else was faster.
            Ok(None) => tokio::time::sleep(Duration::from_millis(1 + random() % 10)).await,
            Err(why) => {
                shared.state.lock().trouble = Some(why);
                shared.changed.notify_all();
                tokio::time::sleep(PAUSE).await;
                // The server may have come back with an empty store.
                if let Ok(opened) = store.group().await {
                    bucket = opened;
                }
            }
        }
    }
}

/// Reads the roll, and writes it as this member would have it. `None`: somebody has written it meanwhile.
async fn turn(bucket: &kv::Store, watch: &mut Watch, wants: Wants) -> Result<Option<Roll>, String> {
    let entry = bucket.entry(ROLL).await.map_err(|error| error.to_string())?;
    let entry = entry.filter(|entry| entry.operation == Operation::Put);
    // What cannot be read was written by another holder of the credentials, and is no roll.
    let before = entry.as_ref().and_then(|entry| decode::<Roll>(&entry.value).ok()).unwrap_or_default();
    let roll = watch.turn(before, wants, Instant::now());
    let bytes = encode(&roll)?.into();
    let written = match entry {
        Some(entry) => bucket.update(ROLL, bytes, entry.revision).await.is_ok(),
        None => bucket.create(ROLL, bytes).await.is_ok(),
    };
    if written {
        watch.written();
    }
    Ok(written.then_some(roll))
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.shared.state.lock();
        f.debug_struct("Group")
            .field("round", &state.roll.round)
            .field("members", &state.roll.members.len())
            .finish_non_exhaustive()
    }
}

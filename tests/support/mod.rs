//! What the behaviour suite shares: runtimes of several kinds, a watchdog, and ways to wait that need no sleep.
//!
//! Nothing here is ordered by time. What must be so before a test goes on is waited for: by a channel, a barrier, or
//! [`until`], which yields. A lost wake-up shows as a hang, so every body runs under a [`Watchdog`].

#![allow(dead_code, reason = "every test program uses a part of it")]

pub(crate) mod locked;
pub(crate) mod order;
pub(crate) mod random;

use std::cell::Cell;
use std::io::Write;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebear::{Request, Runtime, RuntimeBuilder, shield, spawn, yield_now};

#[allow(unused_imports, reason = "every test program uses a part of it")]
pub(crate) use self::random::{Random, mix};

/// A kind of runtime that promises are tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// So many worker threads.
    Workers(usize),
    /// None: the synchronous mode.
    Synchronous,
    /// The seeded mode.
    Seeded(u64),
}

const KINDS: [Kind; 6] = [
    Kind::Workers(1),
    Kind::Workers(2),
    Kind::Workers(4),
    Kind::Synchronous,
    Kind::Seeded(1),
    Kind::Seeded(0x5eed),
];

impl Kind {
    /// A description of a runtime of this kind.
    pub(crate) fn builder(self) -> RuntimeBuilder {
        let builder = Runtime::builder().name("test");
        match self {
            Kind::Workers(workers) => builder.workers(workers),
            Kind::Synchronous => builder.workers(0),
            Kind::Seeded(seed) => builder.seeded(seed),
        }
    }

    /// Such a runtime.
    pub(crate) fn build(self) -> Runtime {
        let runtime = self.builder().build().expect("a small runtime can be built");
        if let Kind::Seeded(_) = self {
            // It belongs to this thread, and not to one that the test starts and that exits.
            runtime.enter(|| ());
        }
        runtime
    }

    fn is(self, modes: Modes) -> bool {
        match self {
            Kind::Workers(_) => false,
            Kind::Synchronous => modes != Modes::Seeded,
            Kind::Seeded(_) => modes != Modes::Synchronous,
        }
    }
}

/// The modes without worker threads, of which some tests are nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Modes {
    Synchronous,
    Seeded,
    Both,
}

thread_local! {
    /// Requests of this thread run while it waits or yields, and only then.
    static DRIVES: Cell<bool> = const { Cell::new(false) };
    static EXCLUDED: Cell<Option<Modes>> = const { Cell::new(None) };
}

/// While this is held, tests on this thread leave a mode out.
#[must_use = "it is over when this is dropped"]
pub(crate) struct NotOn(Option<Modes>);

/// The test does not hold in these modes, for this reason. To be held until its end.
pub(crate) fn not_on(modes: Modes, reason: &str) -> NotOn {
    println!("not on {modes:?}: {reason}");
    NotOn(EXCLUDED.replace(Some(modes)))
}

impl Drop for NotOn {
    fn drop(&mut self) {
        EXCLUDED.set(self.0);
    }
}

/// The kinds of runtimes that the calling test is for. `FOREBEAR_KIND` leaves only those whose name it begins, to look for
/// what fails.
pub(crate) fn kinds() -> impl Iterator<Item = Kind> {
    let only = std::env::var("FOREBEAR_KIND").unwrap_or_default();
    let excluded = EXCLUDED.get();
    let kinds = KINDS.into_iter().filter(move |kind| {
        format!("{kind:?}").starts_with(&only) && !excluded.is_some_and(|modes| kind.is(modes))
    });
    kinds.inspect(|kind| DRIVES.set(!matches!(kind, Kind::Workers(_))))
}

/// How long a test body may take: far above what the slowest needs on a busy machine.
fn patience() -> Duration {
    Duration::from_secs(if soaking() { 3_600 } else { 120 })
}

/// Whether the long forms are asked for, by `FOREBEAR_SOAK=1`.
pub(crate) fn soaking() -> bool {
    std::env::var_os("FOREBEAR_SOAK").is_some()
}

/// So many, or under a sanitizer (`cfg(forebear_sanitizer)`, which its lane sets) a tenth: there each takes several times its
/// memory, and the lanes limit it. docs/sanitizers.md says which tests are made smaller so.
pub(crate) const fn fitting(n: usize) -> usize {
    if cfg!(forebear_sanitizer) { n / 10 } else { n }
}

/// Aborts the process, with the name and place of the test, if it is not dropped in time.
pub(crate) struct Watchdog {
    /// Dropped to call it off.
    _leash: mpsc::Sender<()>,
    what: String,
}

impl Watchdog {
    /// Watches the calling test from now on.
    #[track_caller]
    pub(crate) fn new(detail: impl std::fmt::Display) -> Watchdog {
        Watchdog::start(detail, None)
    }

    /// The same for a test of this runtime: the message shows what the runtime's requests wait for.
    #[track_caller]
    pub(crate) fn over(runtime: &Runtime, detail: impl std::fmt::Display) -> Watchdog {
        Watchdog::start(detail, Some(runtime.clone()))
    }

    #[track_caller]
    fn start(detail: impl std::fmt::Display, runtime: Option<Runtime>) -> Watchdog {
        let thread = std::thread::current();
        let what = format!("{} ({}, {detail})", thread.name().unwrap_or("a test"), Location::caller());
        let (leash, dog) = mpsc::channel::<()>();
        let told = what.clone();
        std::thread::spawn(move || {
            if dog.recv_timeout(patience()) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Not `eprintln!`, which the harness would capture and lose.
                let _ =
                    writeln!(std::io::stderr(), "\nwatchdog: {told} has not ended after {:?}", patience());
                if let Some(runtime) = runtime {
                    let _ = writeln!(std::io::stderr(), "{}", runtime.dump());
                }
                std::process::abort();
            }
        });
        Watchdog { _leash: leash, what }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in {}", self.what);
        }
    }
}

/// A runtime with so many workers, for a test.
pub(crate) fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).name("test").build().expect("a small runtime can be built")
}

/// Runs the test, on the foreign thread that calls this, against runtimes of every [`Kind`].
#[track_caller]
pub(crate) fn on_each(test: impl Fn(&Runtime)) {
    for kind in kinds() {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.build();
        test(&runtime);
    }
}

/// As [`on_each`], for what is about so many worker threads.
#[track_caller]
pub(crate) fn on_each_of(sizes: &[usize], test: impl Fn(&Runtime)) {
    for &workers in sizes {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let runtime = runtime(workers);
        test(&runtime);
    }
}

/// Runs the test as a request of runtimes of every [`Kind`].
#[track_caller]
pub(crate) fn inside_each(test: impl Fn() + Sync) {
    for kind in kinds() {
        let _dog = Watchdog::new(format_args!("inside, {kind:?}"));
        kind.build().run(&test);
    }
}

/// Runs the test twice against runtimes of every kind: on a foreign thread that has entered the runtime, and as a
/// request of it. For what must be the same in both worlds.
#[track_caller]
pub(crate) fn in_both_worlds(test: impl Fn() + Sync) {
    for kind in kinds() {
        let _dog = Watchdog::new(format_args!("foreign, {kind:?}"));
        kind.build().enter(&test);
    }
    inside_each(test);
}

/// Has every worker run a request at once. A worker frees the requests that it made and other threads ended when it next
/// looks for work; one that sleeps does so only when a request wakes it, and [`settle`] may wake the same other one each time.
pub(crate) fn visit_workers(runtime: &Runtime) {
    if runtime.workers() > 0 {
        hold_workers(runtime).release();
    }
    settle(runtime);
}

/// Lets everything that is ready go on.
pub(crate) fn settle(runtime: &Runtime) {
    for _ in 0..20 {
        runtime.run(|| yield_now().unwrap());
    }
}

/// Yields until `so` is true, also in a request that was cancelled: it would keep its worker from the others otherwise.
pub(crate) fn until(so: impl Fn() -> bool) {
    while !so() {
        let_others();
    }
}

fn let_others() {
    if yield_now().is_err() {
        let _ = shield(yield_now);
    }
}

/// Keeps this thread, worker or not, and gives nothing else on it a chance until `so` is true.
pub(crate) fn hold_thread_until(mut so: impl FnMut() -> bool) {
    while !so() {
        assert!(!DRIVES.get(), "this thread is held, which alone could go on: the test is not for this kind");
        std::thread::yield_now();
    }
}

/// Receiving where the requests of this thread may have to go on first.
pub(crate) trait Come<T> {
    /// As `recv`; yields meanwhile if this thread is to drive.
    fn come(&self) -> Result<T, mpsc::RecvError>;

    /// As `iter`, in the same way.
    fn all(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.come().ok())
    }
}

impl<T> Come<T> for mpsc::Receiver<T> {
    fn come(&self) -> Result<T, mpsc::RecvError> {
        if !DRIVES.get() {
            return self.recv();
        }
        loop {
            match self.try_recv() {
                Ok(value) => return Ok(value),
                Err(mpsc::TryRecvError::Disconnected) => return Err(mpsc::RecvError),
                Err(mpsc::TryRecvError::Empty) => let_others(),
            }
        }
    }
}

/// Joining where the requests of this thread may have to go on first.
pub(crate) trait Joined<T>: Sized {
    /// As `join`; yields meanwhile if this thread is to drive.
    fn joined(self) -> std::thread::Result<T>;
}

impl<T> Joined<T> for std::thread::JoinHandle<T> {
    fn joined(self) -> std::thread::Result<T> {
        if DRIVES.get() {
            until(|| self.is_finished());
        }
        self.join()
    }
}

impl<T> Joined<T> for std::thread::ScopedJoinHandle<'_, T> {
    fn joined(self) -> std::thread::Result<T> {
        if DRIVES.get() {
            until(|| self.is_finished());
        }
        self.join()
    }
}

/// Joins threads one by one, and has the requests of this thread go on meanwhile, if it is to drive them. `std::thread::scope` waits for its threads by itself, but in a way that ThreadSanitizer cannot
/// see; it knows joins.
pub(crate) fn join_all<'scope>(threads: impl IntoIterator<Item = std::thread::ScopedJoinHandle<'scope, ()>>) {
    let threads: Vec<_> = threads.into_iter().collect();
    for thread in threads {
        if let Err(payload) = thread.joined() {
            std::panic::resume_unwind(payload);
        }
    }
}

/// Something that happens once. Clones are the same event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flag(Arc<AtomicBool>);

impl Flag {
    pub(crate) fn new() -> Flag {
        Flag::default()
    }

    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Yields until it is up.
    pub(crate) fn wait(&self) {
        until(|| self.is_up());
    }
}

/// An error whose destructor waits, and is not called by an unwind.
#[derive(Debug)]
pub(crate) struct WaitsInDrop(pub Count);

impl std::fmt::Display for WaitsInDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("waits in drop")
    }
}

impl std::error::Error for WaitsInDrop {}

impl Drop for WaitsInDrop {
    fn drop(&mut self) {
        assert!(!std::thread::panicking(), "it is not dropped by an unwind");
        (0..3).for_each(|_| let_others());
        self.0.up();
    }
}

/// A count that tests share. Clones are the same count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn new() -> Count {
        Count::default()
    }

    /// Counts one; answers how many there were before.
    pub(crate) fn up(&self) -> usize {
        self.0.fetch_add(1, Ordering::AcqRel)
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Yields until it has come to `n`.
    pub(crate) fn wait_for(&self, n: usize) {
        until(|| self.get() >= n);
    }

    /// A value whose drop is counted here.
    pub(crate) fn probe(&self) -> Probe {
        Probe(self.clone())
    }
}

/// Counts its drop.
#[derive(Debug)]
pub(crate) struct Probe(Count);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.up();
    }
}

/// Requests that keep every worker of a runtime busy, and let nothing else run, until this is dropped.
pub(crate) struct Held {
    free: Flag,
    holders: Vec<Request<()>>,
}

/// Keeps all workers of `runtime` busy. Returns when they are.
pub(crate) fn hold_workers(runtime: &Runtime) -> Held {
    assert!(runtime.workers() > 0, "there is nothing to be held: the test is not for this kind");
    let (free, started) = (Flag::new(), Count::new());
    let holders = (0..runtime.workers())
        .map(|_| {
            let (free, started) = (free.clone(), started.clone());
            runtime.spawn(move || {
                started.up();
                hold_thread_until(|| free.is_up());
            })
        })
        .collect();
    hold_thread_until(|| started.get() == runtime.workers());
    Held { free, holders }
}

impl Held {
    /// Lets the workers go on.
    pub(crate) fn release(self) {}
}

impl Drop for Held {
    fn drop(&mut self) {
        self.free.raise();
        for holder in self.holders.drain(..) {
            let _ = holder.wait();
        }
    }
}

/// Spawns a request that nobody can run but a worker, and returns its handle once it has started; it ends when `free`
/// is raised, and yields meanwhile.
pub(crate) fn spawn_running(free: &Flag) -> Request<()> {
    let (free, started) = (free.clone(), Flag::new());
    let up = started.clone();
    let request = spawn(move || {
        up.raise();
        free.wait();
    });
    started.wait();
    request
}

/// Resident memory of this process, in bytes.
#[cfg(target_os = "linux")]
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages: usize =
        statm.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("statm has two numbers");
    pages * 4096
}

/// Runs this very test once more in a child process, with `mark` set in its environment and, by the shell, after the
/// commands `limits`. Answers what it wrote and whether it succeeded.
///
/// The test asks [`is_child`] which of the two it is.
pub(crate) fn again_in_child(test: &str, mark: (&str, &str), limits: &str) -> (bool, String) {
    let this = std::env::current_exe().expect("a test knows its program");
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("{limits} exec \"$0\" \"$@\"")])
        .arg(this)
        // One thread: so the test runs on the main thread, whose stack is the one that the shell limits.
        .args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(CHILD, test)
        .env(mark.0, mark.1)
        .output()
        .expect("sh can be run");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success() && text.contains("1 passed"), text)
}

const CHILD: &str = "FOREBEAR_TEST_CHILD";

/// Whether this process is the child that [`again_in_child`] has started for `test`.
pub(crate) fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|name| name == test)
}

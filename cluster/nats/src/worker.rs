//! The worker's side: [`run`] makes a program a worker of a job, [`entry`] one that the coordinator has started.
//!
//! # A session
//!
//! A worker asks to join, and is a *member* until it leaves or is lost. A session is what happens in between. One thread, with a small tokio runtime, has the session; the tasks run on forebear's
//! runtime, so one that computes for long never holds up a beat.
//!
//! ```text
//!   message taken --claim--> claimed --Start--> running --Answer--> recording --recorded--> acknowledged
//!                               +-------Later, Drop: given back, taken out
//! ```
//!
//! * A *slot* takes one message from the queue, and the next one when its task has a result, or when the server has the record of its failure. Nothing is taken in advance, so nothing waits behind a long task. All slots that are free ask by one request; see `slots`.
//! * A message that is held is kept by progress acknowledgements, one in each beat. It is acknowledged after its record is stored: what dies before the record is run again.
//!   The acknowledgements of a burst go out with what the session says next.
//! * *Orders* are followed in their numbers. After a gap the session asks for what is missing.
//!
//! # When a session is lost
//!
//! The coordinator may be dead, or may consider this worker dead. So a session ends itself when it has received no
//! pulse of the coordinator for a lease, or when it finds that it was stopped for a lease. It cancels all tasks that
//! run, waits until they have ended, and asks to join anew. If a task does not end within the grace, the process ends:
//! nothing else makes sure that the task does not continue.

mod session;
mod signals;
mod slots;

use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::client::RequestErrorKind;
use forebear::Runtime;
use forebear_cluster::engine::{MAX_SLOTS, Refused, start_error};
use forebear_cluster::{ClusterError, Tasks};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};
use tokio::sync::watch;

use self::session::{End, Session};
use self::signals::listen;
use crate::access::{Access, ONE_TRY, Tls, Who};
use crate::complaints::Complaints;
use crate::launch::{handover, say_farewell};
use crate::nats::random;
use crate::store::PAUSE;
use crate::wire::{Hello, Names, Terms, Welcome, decode, encode};

/// A worker that cannot join now asks again after so long.
const AGAIN: Duration = Duration::from_millis(250);

/// A worker of a job: which server, as whom, and how much it runs at once.
///
/// ```
/// use forebear_cluster_nats::worker::WorkerOptions;
/// use std::time::Duration;
///
/// let options = WorkerOptions::new("tls://queue.example.org", "render")
///     .credentials("/etc/render/worker.creds")
///     .slots(4)
///     .patience(Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct WorkerOptions {
    access: Access,
    job: String,
    name: Option<String>,
    slots: u32,
    patience: Duration,
    cache: u64,
    launch: Option<u64>,
}

impl WorkerOptions {
    /// A worker for the job of this name on that server; see [`Nats::new`](crate::Nats::new).
    pub fn new(server: &str, job: &str) -> WorkerOptions {
        WorkerOptions {
            access: Access::new(server),
            job: job.to_owned(),
            name: None,
            slots: 1,
            patience: Duration::from_secs(60),
            cache: 256 << 20,
            launch: None,
        }
    }

    /// Its name. Each process has another one if not told otherwise. A worker takes the place of one of its name that is not heard any more. While that one is heard, it waits, at most for its
    /// [patience](Self::patience). A name of a worker that the coordinator's process [starts](crate::Nats::workers) itself is refused.
    pub fn name(mut self, name: &str) -> WorkerOptions {
        self.name = Some(name.to_owned());
        self
    }

    /// It runs so many tasks at once. 1 if not told otherwise, and at least; at most [`MAX_SLOTS`].
    pub fn slots(mut self, slots: usize) -> WorkerOptions {
        self.slots = slots.clamp(1, MAX_SLOTS) as u32;
        self
    }

    /// It looks for so long for a server at the start, and then asks for so long whether there is a coordinator, there and when it has lost it. Then it ends. 60 s if not told otherwise.
    pub fn patience(mut self, patience: Duration) -> WorkerOptions {
        self.patience = patience;
        self
    }

    /// It keeps so many bytes of [`Stored`](forebear_cluster::Stored) values that it has read. 256 MiB if not told otherwise.
    pub fn cache(mut self, bytes: u64) -> WorkerOptions {
        self.cache = bytes;
        self
    }

    /// Authenticates by a token.
    pub fn token(mut self, token: &str) -> WorkerOptions {
        self.access.who = Who::Token(token.to_owned());
        self
    }

    /// Authenticates by a name and a password.
    pub fn user(mut self, name: &str, password: &str) -> WorkerOptions {
        self.access.who = Who::User { name: name.to_owned(), password: password.to_owned() };
        self
    }

    /// Authenticates by a file with a JWT and a key.
    pub fn credentials(mut self, file: impl AsRef<Path>) -> WorkerOptions {
        self.access.who = Who::File(file.as_ref().to_owned());
        self
    }

    /// Connects by TLS. The server's certificate is signed by what is in that file.
    pub fn tls(mut self, authority: impl AsRef<Path>) -> WorkerOptions {
        self.access.tls = Some(Tls { authority: authority.as_ref().to_owned(), own: None });
        self
    }

    /// Connects without credentials to another machine, too. Any peer that reaches that server can run the program's tasks.
    pub fn without_authentication(mut self) -> WorkerOptions {
        self.access.open = true;
        self
    }
}

/// Runs tasks of a job until the coordinator ends it, this process is asked to leave, or there is no coordinator for as long as the [patience](WorkerOptions::patience) says.
///
/// The tasks run on the runtime of the thread that calls this. SIGTERM has the worker end what it has and leave; a second one ends the process at once, also when this has
/// returned. While no worker runs, SIGTERM ends the process, unless the program had a handler of its own before the first call, or ignored it. A task that does not heed a cancel, or the end of its own time, within
/// the coordinator's grace ends the process, too. Blocks the thread: do not call it in a request.
///
/// ```no_run
/// use forebear_cluster::{ClusterError, TaskFn, tasks};
/// use forebear_cluster_nats::worker::{self, WorkerOptions};
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// fn main() -> Result<(), ClusterError> {
///     worker::run(WorkerOptions::new("nats://127.0.0.1:4222", "squares"), tasks![SQUARE])
/// }
/// ```
///
/// # Errors
///
/// [`ClusterError::Start`]: no connection, no coordinator, or it has refused this worker, for instance since it has other tasks, or since another process has its name.
pub fn run(options: WorkerOptions, tasks: Tasks) -> Result<(), ClusterError> {
    let (tell, outside) = watch::channel(Outside::Work);
    let _listening = listen(tell).map_err(start_error)?;
    follow(options, tasks, outside)
}

/// Makes this process a worker, if a coordinator has started it as one (see [`Nats::workers`](crate::Nats::workers)): then it does not return. In any other process this does nothing.
///
/// The first line of `main`, before threads and before a runtime. SIGTERM has the worker end what it has and leave; a second one ends it at once.
///
/// ```
/// use forebear_cluster::{TaskFn, tasks};
/// use forebear_cluster_nats::worker;
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// fn main() {
///     worker::entry(tasks![SQUARE]);
///     println!("this is no worker");
/// }
/// ```
pub fn entry(tasks: Tasks) {
    let Some(told) = handover() else { return };
    let ended = told.map_err(start_error).and_then(|(told, mut socket)| {
        let grace = told.grace;
        let farewell = socket.try_clone().map_err(start_error)?;
        end_with_parent(socket.try_clone().map_err(start_error)?)?;
        let (tell, outside) = watch::channel(Outside::Work);
        let _listening = listen(tell.clone()).map_err(start_error)?;
        // The socket ends when the coordinator lets this worker go, or is dead.
        let thread = thread::Builder::new().name("cluster: socket".into()).spawn(move || {
            let _ = socket.read(&mut [0]);
            tell.send_modify(|now| *now = Outside::Leave);
            // What heeds no cancel ends with the process.
            let (_open, never) = mpsc::channel::<()>();
            let _ = never.recv_timeout(grace);
            process::exit(0);
        });
        thread.map_err(start_error)?;
        let options = WorkerOptions {
            access: told.access,
            job: told.job,
            name: Some(told.name),
            slots: told.slots,
            patience: Duration::from_secs(60),
            cache: told.cache,
            launch: Some(told.launch),
        };
        follow(options, tasks, outside)?;
        let _ = Runtime::current().finish(grace);
        say_farewell(&farewell);
        Ok(())
    });
    match ended {
        Ok(()) => process::exit(0),
        Err(error) => {
            eprintln!("forebear-cluster: a worker cannot continue: {error}");
            process::exit(1)
        }
    }
}

/// The socket ends when the coordinator is dead, also if another process holds the other end; and a worker that stands still goes on then. Decision 0099 has the reasons.
fn end_with_parent(socket: UnixStream) -> Result<(), ClusterError> {
    let _ = set_parent_process_death_signal(Some(Signal::CONT));
    let Ok(parent) = getppid().ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return Ok(());
    };
    let watch = move || {
        while poll(&mut [PollFd::new(&parent, PollFlags::IN)], None) == Err(Errno::INTR) {}
        let _ = socket.shutdown(Shutdown::Both);
    };
    thread::Builder::new().name("cluster: coordinator".into()).spawn(watch).map(drop).map_err(start_error)
}

/// What the outside wants of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outside {
    Work,
    /// To end what it has, and to leave.
    Drain,
    /// To cancel all, and to leave.
    Leave,
}

/// Sessions, until the worker has left.
fn follow(
    options: WorkerOptions,
    tasks: Tasks,
    outside: watch::Receiver<Outside>,
) -> Result<(), ClusterError> {
    let names = Names::new(&options.job)
        .ok_or_else(|| start_error(format_args!("`{}` is no name of a job", options.job)))?;
    let runtime = Runtime::current();
    let thread = thread::Builder::new().name("cluster: nats".into()).spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let tokio = tokio.map_err(|error| error.to_string())?;
        tokio.block_on(sessions(&options, &names, &tasks, &runtime, outside))
    });
    match thread.map_err(start_error)?.join() {
        Ok(ended) => ended.map_err(start_error),
        Err(_) => Err(start_error("the thread of the worker has panicked")),
    }
}

async fn sessions(
    options: &WorkerOptions,
    names: &Names,
    tasks: &Tasks,
    runtime: &Runtime,
    mut outside: watch::Receiver<Outside>,
) -> Result<(), String> {
    let (reconnected, connections) = watch::channel(0_u64);
    let complaints = Complaints::default();
    let hears = complaints.clone();
    let on_event = move |event| {
        hears.hear(&event);
        if matches!(event, async_nats::Event::Connected) {
            reconnected.send_modify(|times| *times += 1);
        }
    };
    // One that the coordinator's process has started is started again if it finds no server.
    let patience = if options.launch.is_some() { Duration::ZERO } else { options.patience };
    let client = tokio::select! {
        client = options.access.connect(patience, ONE_TRY, on_event) => client?,
        _ = outside.wait_for(|outside| *outside != Outside::Work) => return Ok(()),
    };
    let (line, process) = (Line { client, connections, complaints }, random());
    loop {
        let terms = join(&line, options, process, names, tasks, &mut outside).await?;
        let Some(terms) = terms else { return Ok(()) };
        let session = Session::begin(&line, names, tasks, runtime, options, terms).await?;
        match session.run(&mut outside).await {
            End::Left => return Ok(()),
            End::Lost => {}
            End::Barred(why) => {
                return Err(format!(
                    "the server refuses what each worker needs: {why}. Give its user the permissions that the page of the crate forebear-cluster-nats names"
                ));
            }
        }
    }
}

/// The connection to the server.
struct Line {
    client: Client,
    /// How often it was made anew.
    connections: watch::Receiver<u64>,
    complaints: Complaints,
}

/// Asks to join. `None`: it is to leave instead.
async fn join(
    line: &Line,
    options: &WorkerOptions,
    process: u64,
    names: &Names,
    tasks: &Tasks,
    outside: &mut watch::Receiver<Outside>,
) -> Result<Option<Terms>, String> {
    let nonce = random();
    let hello = Hello {
        name: options.name.clone().unwrap_or_else(|| format!("worker-{process:016x}")),
        slots: options.slots,
        launch: options.launch,
        nonce,
        process,
        tasks: tasks.signatures().map(|(name, types)| (name.to_owned(), types.to_owned())).collect(),
    };
    let bytes = encode(&hello)?;
    let (begun, mut later, mut failed) = (Instant::now(), None, String::new());
    while *outside.borrow() == Outside::Work {
        let asked =
            async_nats::Request::new().payload(bytes.clone().into()).timeout(Some(Duration::from_secs(1)));
        let pause = match line.client.send_request(names.hello(), asked).await {
            Ok(answer) => match decode::<Welcome>(&answer.payload) {
                Ok(Welcome::Come(terms)) => {
                    let times = terms.times.check();
                    times.map_err(|unfit| {
                        format!("the coordinator's answer cannot be followed: it names {unfit}")
                    })?;
                    return Ok(Some(terms));
                }
                Ok(Welcome::Refused { why }) => {
                    return Err(format!("the coordinator has refused this worker: {why}"));
                }
                Ok(Welcome::Later { why }) => {
                    later = Some(why);
                    AGAIN
                }
                Err(Refused::Version { theirs, ours }) => {
                    return Err(format!(
                        "the coordinator has version {theirs} of the messages, and this worker {ours}: build both with the same forebear-cluster-nats"
                    ));
                }
                Err(refused) => return Err(format!("the coordinator's answer cannot be read: {refused}")),
            },
            Err(error) => {
                match error.kind() {
                    RequestErrorKind::MaxPayloadExceeded => {
                        return Err(format!(
                            "the request to join takes {} bytes with the names and types of {} tasks, and the server takes messages of {} bytes: raise its `max_payload`, or give tasks shorter names",
                            bytes.len(),
                            hello.tasks.len(),
                            line.client.max_payload(),
                        ));
                    }
                    RequestErrorKind::TimedOut | RequestErrorKind::NoResponders => {}
                    _ => failed = format!(" (the newest request has failed: {error})"),
                }
                PAUSE
            }
        };
        if begun.elapsed() > options.patience {
            let (job, patience) = (&options.job, options.patience);
            return Err(match later {
                Some(why) => format!("the coordinator has refused this worker for {patience:?}: {why}"),
                None => line.complaints.beside(format!(
                    "no coordinator of the job `{job}` has answered in {patience:?}{failed}"
                )),
            });
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = outside.changed() => if changed.is_err() { return Ok(None) },
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_one_slot_at_least_and_no_more_than_the_most() {
        let slots = [0, 3, usize::MAX].map(|slots| WorkerOptions::new("localhost", "job").slots(slots).slots);
        assert_eq!(slots, [1, 3, MAX_SLOTS as u32]);
    }
}

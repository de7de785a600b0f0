//! Worker processes: roles, how they are started, and what they and the server tell.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{env, hint, process, thread};

use forebear::timer::local::{ENVIRONMENT, LocalEvent, LocalTimerHandle, LocalTimerServer, LocalWorker};
use forebear::timer::{Reaper, TimerEvent};

/// Set in a worker, to its role.
const ROLE: &str = "FOREBEAR_TEST_ROLE";
/// A worker that hangs is killed by this clock of its own (SIGALRM).
const SECONDS: u32 = 60;
/// Longer than any test lasts.
pub(crate) const LONG: Duration = Duration::from_secs(3_600);
/// Nothing that is waited for takes as long.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(50);

/// In the workers, the part that they play. In the test run itself there is none.
#[test]
fn a_worker() {
    let Ok(role) = env::var(ROLE) else { return };
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is valid for the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) }, 0);
    end_in_time();
    crate::groups::play(&role);
    crate::ends::play(&role);
    crate::servers::play(&role);
    crate::reapers::play(&role);
    crate::strangers::play(&role);
    crate::unsent::play(&role);
    panic!("there is no role {role}");
}

/// In a worker or a fork of it: it is killed if it hangs.
pub(crate) fn end_in_time() {
    // SAFETY: asks nothing of its caller.
    unsafe { libc::alarm(SECONDS) };
}

/// In a worker: the part is over.
pub(crate) fn leave() -> ! {
    process::exit(0)
}

/// In a worker: says something to the test.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "> {text}").unwrap();
    out.flush().unwrap();
}

/// In a worker: waits until the test says something, or hangs up.
pub(crate) fn wait_for_word() {
    std::io::stdin().read_exact(&mut [0]).ok();
}

/// In a worker: waits for an instant that the server is to find past.
pub(crate) fn wait_until(instant: Instant) {
    #[allow(clippy::disallowed_methods, reason = "that the time is over is what the server finds")]
    thread::sleep(instant.saturating_duration_since(Instant::now()));
}

/// In a worker: every thread is stuck in a computation.
pub(crate) fn get_stuck() -> ! {
    thread::spawn(|| spin());
    spin()
}

fn spin() -> ! {
    loop {
        hint::spin_loop();
    }
}

/// A process that ends with this value, if it has not before.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing happens to one that was waited for.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A worker that was started, as the test sees it.
pub(crate) struct Worker {
    child: Running,
    word: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one that knows where the server is.
    pub(crate) fn start(role: &str, server: &Server) -> Worker {
        let mut command = Worker::command(role);
        server.handle.pass_to(&mut command);
        Worker::spawn(command)
    }

    /// Starts a server in a process of its own, and waits until it is there.
    pub(crate) fn serve(path: &Path) -> Worker {
        let mut command = Worker::command("serves");
        command.env("PATH_OF_SERVER", path);
        let mut server = Worker::spawn(command);
        server.expect("ready");
        server
    }

    /// A worker of the server at this path.
    pub(crate) fn start_at(role: &str, path: &Path) -> Worker {
        let mut command = Worker::command(role);
        command.env(ENVIRONMENT, path);
        let mut worker = Worker::spawn(command);
        worker.expect("connected");
        worker
    }

    pub(crate) fn command(role: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "worker::a_worker", "--nocapture"]).env(ROLE, role);
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command
    }

    pub(crate) fn spawn(mut command: Command) -> Worker {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Worker { word: child.stdin.take(), child: Running(child), says }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// The next thing it says.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.says.read_line(&mut line).unwrap(), 0, "it has ended: {:?}", self.child.0.wait());
            // The test harness may have written something before it on the line.
            if let Some((_, said)) = line.split_once("> ") {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Waits until it says this.
    #[track_caller]
    pub(crate) fn expect(&mut self, what: &str) {
        assert_eq!(self.hear(), what);
    }

    /// Lets it go on.
    pub(crate) fn word(&mut self) {
        self.word.as_ref().unwrap().write_all(b".").unwrap();
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: asks nothing of its caller. The child was not waited for, so the number is its own.
        assert_eq!(unsafe { libc::kill(self.pid() as libc::pid_t, signal) }, 0);
    }

    /// Makes it stand still, until it is sent SIGCONT.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        let pid = self.pid() as libc::pid_t;
        // Its threads stop one after the other; this tells when all have.
        // SAFETY: the child's number, and a place for the answer. It is not waited for to its end.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
    }

    /// Waits until it ends.
    pub(crate) fn end(mut self) -> ExitStatus {
        drop(self.word.take());
        let status = self.child.0.wait().unwrap();
        // What is left to be read is for whoever looks for the reason.
        let mut rest = String::new();
        self.says.read_to_string(&mut rest).unwrap();
        if status.code().is_some_and(|code| code != 0) {
            panic!("{status}: {rest}");
        }
        status
    }

    /// Waits until it has ended, while a fork of it goes on.
    pub(crate) fn wait_and_keep_its_fork(mut self) -> (ExitStatus, Fork) {
        (self.child.0.wait().unwrap(), Fork { word: self.word.take().unwrap(), _says: self.says })
    }

    #[track_caller]
    pub(crate) fn ends_well(self) {
        let status = self.end();
        assert!(status.success(), "{status}");
    }

    #[track_caller]
    pub(crate) fn dies_by(self, signal: libc::c_int) {
        let status = self.end();
        assert_eq!(status.signal(), Some(signal), "{status}");
    }
}

/// A server that stands still, in a process of its own, and a worker that goes on meanwhile.
pub(crate) struct StandingStill {
    pub(crate) server: Worker,
    pub(crate) worker: Worker,
    pub(crate) _around: tempfile::TempDir,
}

impl StandingStill {
    /// The worker is connected before the server is stopped, and told to go on afterwards.
    pub(crate) fn with(role: &str) -> StandingStill {
        let around = tempfile::tempdir().unwrap();
        let path = around.path().join("timers");
        let server = Worker::serve(&path);
        let mut worker = Worker::start_at(role, &path);
        server.stop();
        worker.word();
        StandingStill { server, worker, _around: around }
    }

    /// The worker releases in time what it has, but for its probe, and waits until the rest would have expired. The server kills nobody
    /// then.
    pub(crate) fn kills_nobody(self) {
        let StandingStill { mut server, mut worker, _around } = self;
        worker.expect("released");
        worker.expect("past");
        server.signal(libc::SIGCONT);
        // It has looked, and found nothing but what was not released.
        server.expect("probe");
        worker.word();
        worker.ends_well();
        server.word();
        server.ends_well();
    }
}

/// A fork of a worker that has ended. It ends when this is dropped.
pub(crate) struct Fork {
    word: ChildStdin,
    _says: BufReader<ChildStdout>,
}

impl Fork {
    /// Lets it go on.
    pub(crate) fn word(&mut self) {
        self.word.write_all(b".").unwrap();
    }
}

/// A child that does nothing, and has copies of the descriptors of the process whose it is. It ends when this is dropped.
pub(crate) struct Copies(libc::pid_t);

impl Copies {
    pub(crate) fn of_this_process() -> Copies {
        // SAFETY: the child calls nothing but what may be called in a signal handler.
        match unsafe { libc::fork() } {
            -1 => panic!("no fork"),
            0 => {
                end_in_time();
                loop {
                    // SAFETY: asks nothing of its caller.
                    unsafe { libc::pause() };
                }
            }
            child => Copies(child),
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // SAFETY: nobody else waits for the child, so the number is its own.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// What a server has told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Expired(u32, String),
    Reaped(u32, String),
    Gone(u32),
    Warned(u32),
    ReapFailed(u32),
    ReaperPanicked(u32),
    Orphaned(u32, usize),
    Joined(u32),
    Closed(u32),
    Ended(u32, bool),
    Survives(u32, i32),
    Refused(Option<u32>, String),
    Other(String),
}

/// A server that is running, and what it tells.
pub(crate) struct Server {
    pub(crate) handle: LocalTimerHandle,
    told: Receiver<Told>,
    pub(crate) all: Vec<Told>,
}

impl Server {
    /// One with nothing special.
    pub(crate) fn start() -> Server {
        Server::of(LocalTimerServer::bind().unwrap())
    }

    pub(crate) fn of<R: Reaper<LocalWorker>>(server: LocalTimerServer<R>) -> Server {
        let (tell, told) = channel();
        let tell_too: Sender<Told> = tell.clone();
        let server = server.name("test").on_event(move |event| drop(tell.send(timer_event(event))));
        let server = server.on_process(move |event| drop(tell_too.send(process_event(event))));
        Server { handle: server.start().unwrap(), told, all: Vec::new() }
    }

    /// Waits until it has told this.
    #[track_caller]
    pub(crate) fn expect(&mut self, what: &Told) {
        self.expect_some(|told| told == what, &format!("{what:?}"));
    }

    #[track_caller]
    pub(crate) fn expect_some(&mut self, wanted: impl Fn(&Told) -> bool, what: &str) {
        let until = Instant::now() + WATCHDOG;
        while !self.all.iter().any(&wanted) {
            let left = until.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(told) => self.all.push(told),
                Err(error) => panic!("{error} waiting for {what}; told were {:#?}", self.all),
            }
        }
    }

    /// Waits until so many requests were counted.
    #[track_caller]
    pub(crate) fn counts(&self, requests: u64) {
        let until = Instant::now() + WATCHDOG;
        while self.handle.stats().requests < requests {
            assert!(Instant::now() < until, "{:?}", self.handle.stats());
            thread::yield_now();
        }
        assert_eq!(self.handle.stats().requests, requests);
    }

    /// All it tells until its end.
    pub(crate) fn stop(mut self) -> Vec<Told> {
        self.handle.stop().unwrap();
        self.all.extend(self.told.iter());
        self.all
    }
}

fn timer_event(event: &TimerEvent<'_, LocalWorker>) -> Told {
    match event {
        TimerEvent::Expired { worker, timer, .. } => {
            Told::Expired(worker.pid(), timer.scope.name().to_owned())
        }
        TimerEvent::Reaped { worker, timer, .. } => Told::Reaped(worker.pid(), timer.scope.name().to_owned()),
        TimerEvent::Gone { worker, .. } => Told::Gone(worker.pid()),
        TimerEvent::Warned { worker, .. } => Told::Warned(worker.pid()),
        TimerEvent::ReapFailed { worker, .. } => Told::ReapFailed(worker.pid()),
        TimerEvent::ReaperPanicked { worker, .. } => Told::ReaperPanicked(worker.pid()),
        TimerEvent::Orphaned { worker, timers, .. } => Told::Orphaned(worker.pid(), timers.len()),
        other => Told::Other(other.to_string()),
    }
}

fn process_event(event: &LocalEvent<'_>) -> Told {
    match event {
        LocalEvent::Joined { worker, .. } => Told::Joined(worker.pid()),
        LocalEvent::Closed { worker, .. } => Told::Closed(worker.pid()),
        LocalEvent::Ended { worker, after, .. } => Told::Ended(worker.pid(), after.is_some()),
        LocalEvent::Survives { worker, signal, .. } => Told::Survives(worker.pid(), *signal),
        LocalEvent::Refused { pid, why, .. } => Told::Refused(*pid, format!("{why:?}")),
        other => Told::Other(other.to_string()),
    }
}

//! The servers of the tests: the one that `ci/nats` has started, and those that a test starts itself, kills and starts again.
#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod process;
pub(crate) mod proxy;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebear::time::sleep;
use rustix::process::{Pid, Signal, kill_process};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run these tests by ci/nats"))
}

/// The server of `ci/nats`.
pub(crate) fn shared_url() -> String {
    variable("FOREBEAR_NATS_URL")
}

pub(crate) fn token() -> String {
    variable("FOREBEAR_NATS_TOKEN")
}

/// The name of a job that no other test has.
pub(crate) fn job() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Waits until that holds.
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        sleep(Duration::from_millis(1)).unwrap();
    }
}

/// A server with a store of its own.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    port: u16,
    /// What its configuration says about who may connect, and how.
    access: String,
    child: Child,
}

impl Server {
    pub(crate) fn start() -> Server {
        let access = format!("authorization {{ token: \"{}\" }}", token());
        Server::start_as(tempfile::tempdir().unwrap(), access)
    }

    /// One in that directory, with these lines of a configuration in place of the token.
    pub(crate) fn start_as(dir: tempfile::TempDir, access: String) -> Server {
        let mut child = run(&dir, -1, &access);
        let ports = dir.path().join(format!("nats-server_{}.ports", child.id()));
        let mut port = None;
        until(|| {
            let text = fs::read_to_string(&ports).unwrap_or_default();
            let digits =
                text.split("127.0.0.1:").nth(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
            port = digits.flatten().and_then(|digits| digits.parse().ok());
            if child.try_wait().unwrap().is_some() {
                panic!("the server has ended: {}", fs::read_to_string(dir.path().join("said")).unwrap());
            }
            port.is_some()
        });
        Server { dir, port: port.unwrap(), access, child }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// It stands still, or goes on.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, with what it had stored.
    pub(crate) fn restart(&mut self) {
        self.child = run(&self.dir, i32::from(self.port), &self.access);
    }

    /// Ends it after it has written down how far all consumers are.
    pub(crate) fn end(&mut self) {
        self.signal(Signal::TERM);
        self.child.wait().unwrap();
    }

    /// The messages of this stream are gone, and that there were any.
    pub(crate) fn empty(&mut self, stream: &str) {
        let messages = self.store().join("jetstream/$G/streams").join(stream).join("msgs");
        for file in fs::read_dir(&messages).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }

    /// What it has stored is gone.
    pub(crate) fn forget(&mut self) {
        fs::remove_dir_all(self.store()).unwrap();
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }
}

fn run(dir: &tempfile::TempDir, port: i32, access: &str) -> Child {
    let at = dir.path();
    let config = at.join("config");
    let text = format!(
        "listen: \"127.0.0.1:{port}\"\nports_file_dir: \"{0}\"\njetstream {{ store_dir: \"{0}/store\" }}\n{1}\n",
        at.display(),
        access
    );
    fs::write(&config, text).unwrap();
    Command::new(variable("FOREBEAR_NATS_SERVER"))
        .arg("-c")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(at.join("said")).unwrap())
        .spawn()
        .unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

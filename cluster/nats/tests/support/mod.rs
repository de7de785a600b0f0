//! The servers of the tests: the one that `ci/nats` has started, and those that a test starts itself, kills and starts again.
#![allow(dead_code, reason = "each test program uses some of it")]

mod port;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod sieve;
pub(crate) mod trio;
#[path = "../../../tests/support/until.rs"]
mod until;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forebear::time::sleep;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use self::until::until;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run these tests by ci/nats"))
}

/// The server of `ci/nats`.
pub(crate) fn shared_url() -> String {
    variable("FOREBEAR_NATS_URL")
}

/// The port of loopback at which it listens.
pub(crate) fn shared_port() -> u16 {
    let url = shared_url();
    url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("its URL ends with its port")
}

pub(crate) fn token() -> String {
    variable("FOREBEAR_NATS_TOKEN")
}

/// The name of a job that no other test has.
pub(crate) fn job() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A server with a store of its own. If it dies by itself it is started again, as systemd does by `forebear-nats.service`: 2.9.10 ends
/// with a nil pointer when a message is read from a stream that it is just making, which happens where clients come back to an empty store.
pub(crate) struct Server {
    place: Arc<Place>,
    port: u16,
    /// `None` while it is not to run.
    running: Arc<Mutex<Option<Child>>>,
}

/// Where a server keeps what it has.
struct Place {
    dir: tempfile::TempDir,
    /// What its configuration says about who may connect, and how.
    access: String,
}

impl Server {
    pub(crate) fn start() -> Server {
        let access = format!("authorization {{ token: \"{}\" }}", token());
        Server::start_as(tempfile::tempdir().unwrap(), access)
    }

    /// One in that directory, with these lines of a configuration in place of the token.
    pub(crate) fn start_as(dir: tempfile::TempDir, access: String) -> Server {
        let place = Arc::new(Place { dir, access });
        let mut child = place.run(-1);
        let ports = place.dir.path().join(format!("nats-server_{}.ports", child.id()));
        let mut port: Option<u16> = None;
        until(|| {
            let text = fs::read_to_string(&ports).unwrap_or_default();
            let digits =
                text.split("127.0.0.1:").nth(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
            port = digits.flatten().and_then(|digits| digits.parse().ok());
            if child.try_wait().unwrap().is_some() {
                panic!(
                    "the server has ended: {}",
                    fs::read_to_string(place.dir.path().join("said")).unwrap()
                );
            }
            port.is_some()
        });
        let (port, running) = (port.unwrap(), Arc::new(Mutex::new(Some(child))));
        let (watched, here) = (Arc::downgrade(&running), place.clone());
        thread::spawn(move || {
            while let Some(running) = watched.upgrade() {
                if let Some(child) = running.lock().unwrap().as_mut()
                    && child.try_wait().unwrap().is_some()
                {
                    eprintln!("a server has ended by itself and is started again");
                    *child = here.run(port.into());
                }
                drop(running);
                sleep(Duration::from_millis(20)).unwrap();
            }
        });
        Server { place, port, running }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// It stands still, or goes on.
    pub(crate) fn signal(&self, signal: Signal) {
        let running = self.running.lock().unwrap();
        kill_process(Pid::from_child(running.as_ref().expect("it runs")), signal).unwrap();
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        self.end_by(Signal::KILL);
    }

    /// Ends it after it has written down how far all consumers are.
    pub(crate) fn end(&mut self) {
        self.end_by(Signal::TERM);
    }

    fn end_by(&self, signal: Signal) {
        if let Some(mut child) = self.running.lock().unwrap().take() {
            kill_process(Pid::from_child(&child), signal).unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again, with what it had stored.
    pub(crate) fn restart(&mut self) {
        *self.running.lock().unwrap() = Some(self.place.run(self.port.into()));
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
        self.place.dir.path().join("store")
    }
}

impl Place {
    fn run(&self, port: i32) -> Child {
        let at = self.dir.path();
        let config = at.join("config");
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\nports_file_dir: \"{0}\"\njetstream {{ store_dir: \"{0}/store\" }}\n{1}\n",
            at.display(),
            self.access
        );
        fs::write(&config, text).unwrap();
        let said = fs::OpenOptions::new().create(true).append(true).open(at.join("said")).unwrap();
        Command::new(variable("FOREBEAR_NATS_SERVER"))
            .arg("-c")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_by(Signal::KILL);
    }
}

//! Processes that a test starts, and kills with itself: its own program, with one test alone.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebear_cluster::Tasks;
use forebear_cluster_nats::worker::{self, WorkerOptions};
use rustix::process::{Pid, Signal, kill_process};

/// The name and the password at servers that know users.
pub(crate) const USER: (&str, &str) = ("me", "a secret");

/// A process that is killed with its test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Runs the test `lone_worker` of this program, which calls [`lone_worker`].
    pub(crate) fn worker(url: &str, job: &str, name: &str) -> Process {
        Process::start("lone_worker", &[("URL", url), ("JOB", job), ("NAME", name)])
    }

    pub(crate) fn start(test: &str, settings: &[(&str, &str)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::null());
        command.envs(settings.iter().map(|(name, value)| (format!("FOREBEAR_TEST_{name}"), value)));
        Process(command.spawn().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker from elsewhere, if this process was started as one. It writes into a file why it has ended, if one is named.
pub(crate) fn lone_worker(tasks: Tasks) {
    let Ok(url) = std::env::var("FOREBEAR_TEST_URL") else { return };
    let [job, name] = ["FOREBEAR_TEST_JOB", "FOREBEAR_TEST_NAME"].map(|name| std::env::var(name).unwrap());
    let options = WorkerOptions::new(&url, &job).name(&name);
    let file = |name: &str| std::env::var_os(format!("FOREBEAR_TEST_{name}"));
    let options = match (file("AUTHORITY"), file("CREDENTIALS")) {
        (Some(authority), _) => options.user(USER.0, USER.1).tls(authority),
        (None, Some(credentials)) => options.credentials(Path::new(&credentials)),
        (None, None) => options.token(&super::token()),
    };
    let options = match std::env::var("FOREBEAR_TEST_PATIENCE") {
        Ok(seconds) => options.patience(Duration::from_secs(seconds.parse().unwrap())),
        Err(_) => options,
    };
    if let (Err(error), Some(file)) = (worker::run(options, tasks), file("ERROR")) {
        std::fs::write(file, error.to_string()).unwrap();
    }
}

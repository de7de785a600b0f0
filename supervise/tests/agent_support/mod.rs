//! What the tests of the local agent share: workers that are shell scripts, and ways to wait for processes and files that need no sleep.

#![allow(dead_code, reason = "every test program uses a part of it")]

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::yield_now;
use std::time::Duration;

use forebear_supervise::agent::{AgentEvent, LocalAgent, LocalAgentBuilder};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The program of this crate, which is the launcher of the tests' agents too: a test's `main` is not ours.
pub(crate) const FOREBEAR_AGENT: &str = env!("CARGO_BIN_EXE_forebear-agent");

/// An agent whose workers are this script. They write to files below `dir`; restarts follow at once.
pub(crate) fn shell(script: &str, dir: &Path) -> LocalAgentBuilder {
    LocalAgent::builder("sh")
        .args(["-c", script])
        .launcher(FOREBEAR_AGENT)
        .env("DIR", dir)
        .current_dir(dir)
        .logs(dir.join("logs"))
        .backoff(Duration::ZERO, Duration::ZERO)
}

/// The lines that a hook has been told.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    pub(crate) fn hook(&self) -> impl FnMut(&AgentEvent<'_>) + Send + 'static {
        let lines = self.0.clone();
        move |event| lines.lock().unwrap().push(event.to_string())
    }

    pub(crate) fn count(&self, part: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(part)).count()
    }
}

/// An agent that its own hook can use, until this is dropped.
pub(crate) struct Hooked(LocalAgent, Arc<Mutex<Option<LocalAgent>>>);

/// An agent whose hook is given the agent.
pub(crate) fn with_hook(
    builder: LocalAgentBuilder,
    mut hook: impl FnMut(&LocalAgent, &AgentEvent<'_>) + Send + 'static,
) -> Hooked {
    let itself = Arc::new(Mutex::new(None));
    let for_hook: Arc<Mutex<Option<LocalAgent>>> = itself.clone();
    let hook = move |event: &AgentEvent<'_>| {
        let agent = for_hook.lock().unwrap().clone();
        hook(&agent.unwrap(), event);
    };
    let agent = builder.on_event(hook).build().unwrap();
    *itself.lock().unwrap() = Some(agent.clone());
    Hooked(agent, itself)
}

impl std::ops::Deref for Hooked {
    type Target = LocalAgent;

    fn deref(&self) -> &LocalAgent {
        &self.0
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        // The hook would keep the agent, and with it its timer server.
        drop(self.1.lock().unwrap().take());
    }
}

/// Waits until a file has something in it, and answers that.
pub(crate) fn written(file: &Path) -> String {
    loop {
        match fs::read_to_string(file) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => yield_now(),
        }
    }
}

/// A process, by the number that it has written to a file, held so that the number cannot come to mean another.
pub(crate) struct Process(Option<rustix::fd::OwnedFd>);

impl Process {
    pub(crate) fn of(file: &Path) -> Process {
        Process::open(written(file).parse().unwrap())
    }

    pub(crate) fn open(pid: i32) -> Process {
        match pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
            Ok(fd) => Process(Some(fd)),
            Err(Errno::SRCH) => Process(None),
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until it has ended.
    pub(crate) fn ended(&self) {
        if let Some(fd) = &self.0 {
            while poll(&mut [PollFd::new(fd, PollFlags::IN)], None) == Err(Errno::INTR) {}
        }
    }
}

/// Waits until these processes have ended, be it that nobody has reaped them.
pub(crate) fn all_ended(pids: &[u32]) {
    pids.iter().for_each(|pid| Process::open(i32::try_from(*pid).unwrap()).ended());
}

/// Whether this process ignores a signal, as what it starts does then.
pub(crate) fn ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(bits.trim(), 16).unwrap() & (1 << (signal - 1)) != 0
}

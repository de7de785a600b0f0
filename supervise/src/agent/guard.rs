//! The guard of a worker's process group: it ends what the worker has forked if the agent ends without having done that.
//!
//! The parent-death signal ([`super::launch`]) ends the worker alone. The guard is a second process of the agent's program, a child of the agent and a member of the
//! worker's process group. It waits for the end of the agent, and then sends SIGKILL to its own group.
//!
//! While the agent lives the guard does nothing. An attempt ends by SIGKILL to each group, which ends the guard, too; the agent reaps it.
//!
//! # Invariants
//!
//! * **AG1** The guard names no process by a number: it signals the group that it is a member of. A group that has a member keeps its number, so it hits no other process, whichever
//!   members were reaped before.
//! * **AG2** The guard is in the group, and has its handlers, before the worker's program is executed. So nothing that the worker forks is older than the guard.
//! * **AG3** The guard waits for the end of its parent by a pidfd. It reads its parent's id again after it has opened
//!   the pidfd. So either the pidfd is the agent's, or the agent has ended already.
//! * **AG4** Signals to the group (the agent's SIGTERM, a worker's `kill 0`) do not end the guard, except SIGKILL, which ends the whole group.
//! * **AG5** A guard that is stopped continues when the agent ends: SIGCONT is its own parent-death signal, and comes from the kernel. So SIGSTOP to the group holds nothing back.
//!
//! # What it does not reach
//!
//! See the table in [`super`]: processes that have left the group, and the group of a guard that some process has killed by its number.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, kill_current_process_group, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal,
};
use signal_hook::consts::FORBIDDEN;

use super::launch;
use super::worker::reap_some_time;

/// The number of the agent's process, in the guard's environment.
pub(super) const GUARD: &str = "FOREBEAR_AGENT_GUARD";
const READY: u8 = b'R';
/// The numbers of signals end before this.
const SIGNALS: i32 = 65;
/// The longest wait for a guard that was sent SIGKILL.
const LONGEST: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The whole life of a guard.
pub(super) fn be_guard(agent: &OsString) -> ! {
    // An error leaves the worker without a guard; the agent finds that, and does not continue.
    let _ = wait_for_the_end_of(agent);
    process::exit(1);
}

fn wait_for_the_end_of(agent: &OsString) -> io::Result<()> {
    let mut says = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let flag = Arc::new(AtomicBool::new(false));
    for signal in (1..SIGNALS).filter(|signal| !FORBIDDEN.contains(signal)) {
        // AG4. Some numbers are the C library's own, and refused.
        let _ = signal_hook::flag::register(signal, flag.clone());
    }
    set_parent_process_death_signal(Some(Signal::CONT))?; // AG5
    let parent = getppid().map(|parent| pidfd_open(parent, PidfdFlags::empty())).transpose();
    // AG3
    if launch::parent_is(agent) {
        let Some(pidfd) = parent? else { return Ok(()) };
        says.write_all(&[READY])?;
        while poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).is_err() {}
    }
    Ok(kill_current_process_group(Signal::KILL)?) // AG1
}

/// A guard, in the agent. Dropping ends it.
#[derive(Debug)]
pub(super) struct Guard {
    child: Option<Child>,
    pidfd: OwnedFd,
}

impl Guard {
    /// Starts the guard of this group, whose leader was not reaped. Answers where it says that it is ready.
    pub(super) fn start(named: Option<&Path>, group: Pid) -> io::Result<(Guard, UnixStream)> {
        let (hears, says) = UnixStream::pair()?;
        let mut command = Command::new(launch::launcher(named));
        command.arg0("forebear: guard of a worker").env(GUARD, process::id().to_string()).current_dir("/");
        command.process_group(group.as_raw_nonzero().get());
        command.stdin(OwnedFd::from(says)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| launch::refused(&command, error))?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok((Guard { child: Some(child), pidfd }, hears)),
            Err(error) => {
                let _ = child.kill();
                reap_some_time(child);
                Err(error.into())
            }
        }
    }

    /// Waits until it guards, until `until` at most (AG2).
    pub(super) fn settle(hears: &mut UnixStream, until: Instant) -> io::Result<()> {
        match launch::is_ready(hears, until)? {
            true => Ok(()),
            false => Err(io::Error::other("the guard of the worker's process group could not be started")),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let ended = loop {
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&LONGEST)) {
                Err(Errno::INTR) => {}
                ended => break ended.is_ok_and(|ended| ended > 0),
            }
        };
        match self.child.take() {
            // It has ended, so this does not wait.
            Some(mut child) if ended => drop(child.wait()),
            Some(child) => reap_some_time(child),
            None => {}
        }
    }
}

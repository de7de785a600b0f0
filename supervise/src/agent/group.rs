//! The workers of one attempt: started together, watched together, ended together.
//!
//! # How it ends
//!
//! [`Group::stop`] is called once for each group, however its attempt went. Workers that still run get the signal (SIGTERM, or what this process was sent), and SIGCONT, so
//! that a stopped process handles it. A worker that still runs after the first limit gets SIGKILL. One that still runs after the second limit is reported by pid, and the agent does not wait for it.
//! At last SIGKILL goes to what the ended workers have left in their process groups, and they are reaped.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::inbox::{Inbox, Mail};
use super::worker::{Lost, Worker};

/// The longest that one `poll` waits: only an upper bound, since every end and every message wakes it.
const LONGEST: Duration = Duration::from_secs(30);

/// See the module head.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) workers: Vec<Worker>,
}

/// The processes that have survived SIGKILL, by their numbers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unkillable(pub(super) Vec<u32>);

/// What a stop reports on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupStep {
    /// So many workers were sent this signal.
    Asked(i32, usize),
    /// So many were sent SIGKILL.
    Killed(usize),
}

impl Group {
    pub(super) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(Worker::pid).collect()
    }

    fn running(&self) -> usize {
        self.workers.iter().filter(|worker| worker.is_running()).count()
    }

    /// Whether all have exited with 0.
    pub(super) fn succeeded(&self) -> bool {
        self.workers.iter().all(|worker| worker.end().is_some_and(|(end, _)| end.success()))
    }

    /// Whether a worker has ended with a failure.
    pub(super) fn failed(&self) -> bool {
        self.workers.iter().any(|worker| worker.end().is_some_and(|(end, _)| !end.success()))
    }

    /// Notes which worker this timer concerns, and answers its rank.
    pub(super) fn expired(&mut self, expired: &super::inbox::Expired) -> Option<usize> {
        let leads = |worker: &&mut Worker| {
            worker.pid() == expired.pid || expired.leader.is_some_and(|g| worker.leads(g))
        };
        let worker = self.workers.iter_mut().find(leads)?;
        if expired.ends && worker.expired.is_none() {
            worker.expired = Some(expired.scope.clone());
        }
        Some(worker.env.ranks.rank)
    }

    /// Looks which workers have ended. The error names those that were reaped by other code, by rank and number.
    pub(super) fn look(&mut self) -> Result<(), (usize, u32, Lost)> {
        for worker in &mut self.workers {
            let (rank, pid) = (worker.env.ranks.rank, worker.pid());
            worker.look().map_err(|lost| (rank, pid, lost))?;
        }
        Ok(())
    }

    /// Waits until a worker ends, there is mail, or it is `until`; a worker whose end was seen before does not count.
    pub(super) fn wait(&self, inbox: &Inbox, until: Option<Instant>) -> io::Result<()> {
        let running = self.workers.iter().filter(|worker| worker.is_running()).map(AsFd::as_fd);
        let fds = running.chain([inbox.as_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let left =
            until.map_or(LONGEST, |until| until.saturating_duration_since(Instant::now()).min(LONGEST));
        let limit = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// See the module head. `limits` are those of SIGTERM and SIGKILL. `mail` is given what comes meanwhile, and answers whether to pass on to SIGKILL at once.
    pub(super) fn stop(
        &mut self,
        inbox: &Inbox,
        signal: Signal,
        limits: (Duration, Duration),
        mail: &mut dyn FnMut(&mut Group, Mail) -> bool,
        report: &mut dyn FnMut(GroupStep),
    ) -> Result<(), Unkillable> {
        self.look_at_all();
        if self.running() > 0 {
            report(GroupStep::Asked(signal.as_raw(), self.running()));
            self.signal(&[signal, Signal::CONT]);
            self.wait_for_ends(inbox, limits.0, mail);
        }
        if self.running() > 0 {
            report(GroupStep::Killed(self.running()));
            self.signal(&[Signal::KILL]);
            self.wait_for_ends(inbox, limits.1, &mut |group, received| {
                mail(group, received);
                false
            });
        }
        self.workers.iter_mut().for_each(Worker::bury);
        let left = self.workers.iter().filter(|worker| worker.is_running()).map(Worker::pid);
        let left: Vec<u32> = left.collect();
        if left.is_empty() { Ok(()) } else { Err(Unkillable(left)) }
    }

    /// As [`look`](Self::look), for a group that is being stopped: a worker that other code has reaped has ended.
    fn look_at_all(&mut self) {
        while self.look().is_err() {}
    }

    fn signal(&self, signals: &[Signal]) {
        for worker in self.workers.iter().filter(|worker| worker.is_running()) {
            signals.iter().for_each(|signal| worker.signal_group(*signal));
        }
    }

    /// Waits until all have ended, the time has passed, or `mail` says so.
    fn wait_for_ends(
        &mut self,
        inbox: &Inbox,
        limit: Duration,
        mail: &mut dyn FnMut(&mut Group, Mail) -> bool,
    ) {
        let until = Instant::now().checked_add(limit);
        loop {
            self.look_at_all();
            let late = until.is_some_and(|until| Instant::now() >= until);
            if self.running() == 0 || late || self.wait(inbox, until).is_err() {
                return;
            }
            let received = inbox.take();
            if mail(self, received) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::environment::WorkerEnv;
    use super::super::ranks::{Node, assign_ranks};
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    /// A shell that has come so far that it has said so.
    fn worker(script: &str) -> Worker {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "at work\n");
        let env = WorkerEnv {
            ranks: assign_ranks(&[Node::new("test", 1)], 0).unwrap()[0],
            role: "test".into(),
            run_id: "run".into(),
            restart_count: 0,
            max_restarts: 0,
            result_file: "/nowhere".into(),
            error_file: "/nowhere".into(),
        };
        Worker::new(env, child).unwrap()
    }

    fn stop(group: &mut Group, limits: (Duration, Duration)) -> (Result<(), Unkillable>, Vec<GroupStep>) {
        let mut steps = Vec::new();
        let inbox = Inbox::new().unwrap();
        let stopped =
            group.stop(&inbox, Signal::TERM, limits, &mut |_, _| false, &mut |step| steps.push(step));
        (stopped, steps)
    }

    /// Row 42 of the study's agent: no wait for a killed process lacks a bound.
    #[test]
    fn who_cannot_be_killed_is_told_by_pid_and_not_waited_for() {
        let mut group = Group { workers: vec![worker("echo at work; exec sleep 1000")] };
        group.workers[0].deaf = true;
        let pids = group.pids();
        let (stopped, steps) = stop(&mut group, (Duration::ZERO, Duration::ZERO));
        assert_eq!(stopped, Err(Unkillable(pids)));
        assert_eq!(steps, [GroupStep::Asked(15, 1), GroupStep::Killed(1)]);
        group.workers[0].deaf = false;
        assert_eq!(stop(&mut group, (Duration::from_secs(60), Duration::ZERO)).0, Ok(()));
        assert!(!group.workers[0].is_running());
    }

    #[test]
    fn who_is_stopped_hears_sigterm_and_no_sigkill_follows() {
        let mut group = Group { workers: vec![worker("echo at work; exec sleep 1000")] };
        group.signal(&[Signal::STOP]);
        let (stopped, steps) = stop(&mut group, (Duration::from_secs(60), Duration::from_secs(60)));
        assert_eq!((stopped, steps), (Ok(()), vec![GroupStep::Asked(15, 1)]));
    }
}

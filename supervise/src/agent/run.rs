//! A run: attempts one after another, until the group has succeeded, was stopped, or has used up its budget.
//!
//! All of it happens on one thread, which starts the workers and ends after them: their parent-death signal follows this thread (AL1 in [`launch`]). It
//! waits in one place, `Group::wait`: for ends, for mail, and for the next instant at which something is due.
//!
//! # Order
//!
//! The timer server reports a timer before it kills for it. The thread looks at the ends first, and takes the mail then; so when it sees such an end, the
//! mail has the reason.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::process::Signal;

use super::environment::WorkerEnv;
use super::error::AgentError;
use super::event::AgentEvent;
use super::group::{Group, GroupStep, Unkillable};
use super::inbox::Mail;
use super::launch;
use super::outcome::{GroupState, RunResult, WorkerFailure};
use super::places::Places;
use super::ranks::assign_ranks;
use super::shared::AgentShared;
use super::worker::Worker;

/// See the module head.
pub(super) struct Run<'a> {
    shared: &'a AgentShared,
    places: Places,
    /// The number of the attempt, and of restarts before.
    attempt: u32,
    /// Restarts that are left.
    left: u32,
    /// How many workers the next attempt has.
    size: usize,
    /// What was asked for from outside.
    asked: Asked,
}

#[derive(Debug, Default)]
struct Asked {
    stop: bool,
    /// The first signal, and how many there were.
    signal: Option<i32>,
    signals: usize,
}

/// How an attempt went.
enum Over {
    Succeeded,
    Failed(Vec<WorkerFailure>),
    Stopped,
    Resized,
}

impl<'a> Run<'a> {
    pub(super) fn new(shared: &'a AgentShared) -> Result<Run<'a>, AgentError> {
        let settings = &shared.settings;
        let places = Places::new(settings.logs.as_deref(), &settings.run_id)?;
        let left = settings.max_restarts;
        Ok(Run { shared, places, attempt: 0, left, size: shared.size(), asked: Asked::default() })
    }

    /// Until it is over.
    pub(super) fn run(&mut self) -> Result<RunResult, AgentError> {
        self.shared.set_state(GroupState::Init);
        self.shared.set_restarts(self.attempt, self.left);
        self.note(&mut Group::default(), self.shared.inbox.take());
        if self.is_stopped() {
            return Ok(self.result(GroupState::Stopped));
        }
        loop {
            let mut group = self.start()?;
            let watched = self.watch(&mut group);
            let stopped = self.stop(&mut group);
            self.shared.set_pids(Vec::new());
            let over = watched?;
            if let Err(Unkillable(pids)) = stopped {
                return Err(AgentError::Unkillable { pids });
            }
            match over {
                Over::Succeeded => return self.succeeded(&group),
                Over::Stopped => return Ok(self.result(GroupState::Stopped)),
                Over::Failed(failures) if self.left == 0 => return Ok(self.failed(failures)),
                _ if self.is_stopped() => return Ok(self.result(GroupState::Stopped)),
                Over::Failed(_) => {
                    self.left -= 1;
                    self.attempt += 1;
                    self.shared.count(|metrics| metrics.restarts += 1);
                    self.shared.set_restarts(self.attempt, self.left);
                    if !self.pause()? {
                        return Ok(self.result(GroupState::Stopped));
                    }
                }
                Over::Resized => {
                    self.shared.count(|metrics| metrics.resizes += 1);
                    self.shared.tell(&AgentEvent::Resized { workers: self.size });
                }
            }
        }
    }

    /// Starts all workers of an attempt. If one cannot be started, the agent stops those that it has started.
    fn start(&mut self) -> Result<Group, AgentError> {
        let mut group = Group::default();
        match self.start_all(&mut group) {
            Ok(()) => {
                let pids = group.pids();
                self.shared.set_pids(pids.clone());
                self.shared.set_state(GroupState::Healthy);
                self.shared.tell(&AgentEvent::Started { attempt: self.attempt, pids: &pids });
                Ok(group)
            }
            Err(error) => {
                // The hook names unkillable workers; the error is why there was no start.
                let _ = self.stop(&mut group);
                Err(error)
            }
        }
    }

    fn start_all(&self, group: &mut Group) -> Result<(), AgentError> {
        let settings = &self.shared.settings;
        let mut nodes = settings.nodes.clone();
        nodes[settings.own].workers = self.size;
        let ranks = assign_ranks(&nodes, settings.own).unwrap_or_default();
        self.places.begin(self.attempt, self.size)?;
        let until = Instant::now() + settings.start_timeout.min(Duration::from_secs(24 * 60 * 60));
        let mut launched = Vec::new();
        for ranks in ranks {
            let place = self.places.worker(self.attempt, ranks.local_rank);
            let env = WorkerEnv {
                ranks,
                role: nodes[settings.own].role.clone(),
                run_id: settings.run_id.clone(),
                restart_count: self.attempt,
                max_restarts: settings.max_restarts,
                result_file: place.join("result"),
                error_file: place.join("error.json"),
            };
            let failed = |source| AgentError::Start {
                program: settings.program.clone().into(),
                rank: ranks.rank,
                source,
            };
            let mut command = launch::command(settings.launcher.as_deref(), &settings.program);
            command.args(&settings.args).envs(settings.envs.iter().map(|(name, value)| (name, value)));
            env.pass_to(&mut command);
            if let Some(timers) = &self.shared.timers {
                timers.pass_to(&mut command);
            }
            if let Some(dir) = &settings.dir {
                command.current_dir(dir);
            }
            let (out, err) = self.places.output(self.attempt, ranks.local_rank).map_err(failed)?;
            command.stdout(out).stderr(err);
            let (child, hears) = launch::launch(command).map_err(failed)?;
            let mut worker = Worker::new(env, child).map_err(failed)?;
            let guarded = worker.start_guard(settings.launcher.as_deref());
            group.workers.push(worker);
            launched.push((ranks.rank, hears, guarded.map_err(failed)?));
        }
        let settle = |rank, of: &mut dyn FnMut() -> io::Result<()>| {
            of().map_err(|source| AgentError::Start {
                program: settings.program.clone().into(),
                rank,
                source,
            })
        };
        for (rank, launcher, guard) in &mut launched {
            settle(*rank, &mut || launch::go(launcher, guard, until))?;
        }
        for (rank, launcher, _) in &mut launched {
            settle(*rank, &mut || launch::settle(launcher, until))?;
        }
        Ok(())
    }

    /// Waits until the attempt is over.
    fn watch(&mut self, group: &mut Group) -> Result<Over, AgentError> {
        let settings = &self.shared.settings;
        let mut refill = settings.refill_after.and_then(|healthy| Instant::now().checked_add(healthy));
        let size = self.size;
        loop {
            if let Err((rank, pid, lost)) = group.look() {
                self.shared.set_state(GroupState::Unknown);
                return Err(AgentError::Unknown { rank, pid, source: lost.source });
            }
            let mail = self.shared.inbox.take();
            self.note(group, mail);
            if group.succeeded() {
                return Ok(Over::Succeeded);
            }
            if self.is_stopped() {
                return Ok(Over::Stopped);
            }
            if group.failed() {
                self.shared.set_state(GroupState::Unhealthy);
                let failures = self.failures(group);
                failures.iter().for_each(|failure| self.shared.tell(&AgentEvent::Failed(failure)));
                return Ok(Over::Failed(failures));
            }
            if self.size != size {
                return Ok(Over::Resized);
            }
            if refill.is_some_and(|at| Instant::now() >= at) {
                refill = None;
                if self.left < settings.max_restarts {
                    self.left = settings.max_restarts;
                    self.shared.set_restarts(self.attempt, self.left);
                    self.shared.tell(&AgentEvent::Refilled);
                }
            }
            group.wait(&self.shared.inbox, refill)?;
        }
    }

    /// Takes note of mail. Answers whether it is urgent: a second signal.
    fn note(&mut self, group: &mut Group, mail: Mail) -> bool {
        self.asked.stop |= mail.stop;
        self.asked.signal = self.asked.signal.or(mail.signals.first().copied());
        self.asked.signals += mail.signals.len();
        self.size = mail.resize.unwrap_or(self.size);
        self.shared.tell_of_timers(&mail.timers_failed);
        for expired in mail.expired {
            let rank = group.expired(&expired);
            let event = AgentEvent::Expired { rank, pid: expired.pid, scope: &expired.scope };
            self.shared.tell(&event);
            if expired.ends {
                self.shared.count(|metrics| metrics.expired += 1);
            }
        }
        self.asked.signals > 1
    }

    fn is_stopped(&self) -> bool {
        self.asked.stop || self.asked.signal.is_some()
    }

    /// The workers that have failed by themselves, as far as was seen.
    fn failures(&self, group: &Group) -> Vec<WorkerFailure> {
        let failed = group.workers.iter().filter_map(|worker| {
            let (end, seen) = worker.end().filter(|(end, _)| !end.success())?;
            let ranks = worker.env.ranks;
            let (message, written) = self.places.error(self.attempt, ranks.local_rank);
            Some(WorkerFailure {
                rank: ranks.rank,
                local_rank: ranks.local_rank,
                pid: worker.pid(),
                end,
                expired: worker.expired.clone(),
                message,
                at: written.filter(|written| *written < seen).unwrap_or(seen),
            })
        });
        failed.collect()
    }

    /// Once for each group, however its attempt went.
    fn stop(&mut self, group: &mut Group) -> Result<(), Unkillable> {
        let (shared, limits) = (self.shared, self.shared.settings.stop_timeouts);
        let signal = self.asked.signal.and_then(Signal::from_named_raw).unwrap_or(Signal::TERM);
        let mut report = |step| match step {
            GroupStep::Asked(signal, workers) => shared.tell(&AgentEvent::Stopping { signal, workers }),
            GroupStep::Killed(workers) => {
                shared.count(|metrics| metrics.killed += workers as u64);
                shared.tell(&AgentEvent::Killed { workers });
            }
        };
        let stopped =
            group.stop(&shared.inbox, signal, limits, &mut |group, mail| self.note(group, mail), &mut report);
        if let Err(Unkillable(pids)) = &stopped {
            shared.tell(&AgentEvent::Unkillable { pids });
        }
        stopped
    }

    /// The pause before a restart. `false`: the run was stopped meanwhile.
    fn pause(&mut self) -> Result<bool, AgentError> {
        let settings = &self.shared.settings;
        let used = (settings.max_restarts - self.left).saturating_sub(1);
        let (first, most) = settings.backoff;
        let pause = first.checked_mul(2_u32.saturating_pow(used)).map_or(most, |pause| pause.min(most));
        let event = AgentEvent::Restarting { attempt: self.attempt, left: self.left, pause };
        self.shared.tell(&event);
        let until = Instant::now().checked_add(pause);
        let mut nobody = Group::default();
        loop {
            let mail = self.shared.inbox.take();
            self.note(&mut nobody, mail);
            if self.is_stopped() {
                return Ok(false);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(true);
            }
            nobody.wait(&self.shared.inbox, until)?;
        }
    }

    fn succeeded(&self, group: &Group) -> Result<RunResult, AgentError> {
        let mut result = self.result(GroupState::Succeeded);
        for worker in &group.workers {
            let ranks = worker.env.ranks;
            let limit = self.shared.settings.result_limit;
            let bytes = self.places.result(self.attempt, ranks.local_rank, limit);
            let bytes = bytes.map_err(|source| AgentError::Result { rank: ranks.rank, source })?;
            result.results.insert(ranks.rank, bytes);
        }
        Ok(result)
    }

    fn failed(&self, failures: Vec<WorkerFailure>) -> RunResult {
        let mut result = self.result(GroupState::Failed);
        result.failures = failures.into_iter().map(|failure| (failure.rank, failure)).collect();
        if let (Some(file), Some(first)) = (&self.shared.settings.error_file, result.first_failure())
            && let Err(error) = fs::write(file, first.json())
        {
            // The caller is still given the failures.
            self.shared.tell(&AgentEvent::ErrorFile { path: file, error: &error });
        }
        result
    }

    fn result(&self, state: GroupState) -> RunResult {
        RunResult {
            state,
            results: BTreeMap::new(),
            failures: BTreeMap::new(),
            restarts: self.attempt,
            restarts_left: self.left,
            max_restarts: self.shared.settings.max_restarts,
            signal: self.asked.signal,
            logs: self.places.kept().map(Into::into),
        }
    }
}

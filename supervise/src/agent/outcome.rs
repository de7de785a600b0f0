//! The outcome of a run: state, results, failures; and the counts of an agent over its runs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;

use super::error::AgentError;
use super::worker::End;

/// The states of a group of workers.
///
/// ```
/// use forebear_supervise::agent::GroupState;
/// assert!(GroupState::Healthy.is_running() && !GroupState::Succeeded.is_running());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupState {
    /// The group was not started yet, or could not be started.
    Init,
    /// All its workers run, or have succeeded.
    Healthy,
    /// A worker has failed. The agent stops the group, and restarts it if the budget allows that.
    Unhealthy,
    /// It was stopped: by [`request_stop`](super::LocalAgent::request_stop), by a signal, or since the run was cancelled.
    Stopped,
    /// All its workers have exited with 0.
    Succeeded,
    /// A worker has failed, and the budget of restarts was used up.
    Failed,
    /// The system and the agent disagree about which workers there are.
    Unknown,
}

impl GroupState {
    /// Whether workers run in it: healthy or unhealthy.
    ///
    /// ```
    /// assert!(!forebear_supervise::agent::GroupState::Init.is_running());
    /// ```
    #[must_use]
    pub fn is_running(self) -> bool {
        matches!(self, GroupState::Healthy | GroupState::Unhealthy)
    }
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupState::Init => "not started",
            GroupState::Healthy => "healthy",
            GroupState::Unhealthy => "unhealthy",
            GroupState::Stopped => "stopped",
            GroupState::Succeeded => "succeeded",
            GroupState::Failed => "failed",
            GroupState::Unknown => "unknown",
        })
    }
}

/// The failure of a worker. A worker that the agent has stopped has not failed.
///
/// `Display` is a line for a log.
///
/// ```no_run
/// use forebear_supervise::agent::{self, End, LocalAgent};
///
/// agent::entry();
/// let result = LocalAgent::builder("./worker").workers(4).logs("logs").build()?.run()?;
/// for (rank, failure) in &result.failures {
///     match failure.end {
///         End::Signal(9) => eprintln!("worker {rank} was killed: is there enough memory?"),
///         _ => eprintln!("{failure}"),
///     }
/// }
/// # Ok::<(), agent::AgentError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerFailure {
    /// Its number among all workers.
    pub rank: usize,
    /// Its number among the workers of this agent.
    pub local_rank: usize,
    /// The number its process had.
    pub pid: u32,
    /// How it has ended.
    pub end: End,
    /// The scope of an expiration timer of it, or of what it has forked, that had expired before, if one had.
    pub expired: Option<String>,
    /// What it has written into its error file, or else the end of its log of the standard error.
    pub message: Option<String>,
    /// When it has failed: the time of its error file, or when its end was seen.
    pub at: SystemTime,
}

impl WorkerFailure {
    /// As torchelastic writes it into an error file.
    pub(super) fn json(&self) -> String {
        let seconds = self.at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let message = self.message.clone().unwrap_or_else(|| self.to_string());
        let code = match self.end {
            End::Exit(code) => code,
            End::Signal(number) => -number,
        };
        let expired = self.expired.as_deref().map_or("null".into(), quoted);
        format!(
            "{{\"message\": {{\"message\": {}, \"errorCode\": {code}, \"extraInfo\": {{\"rank\": {}, \
             \"local_rank\": {}, \"pid\": {}, \"expired\": {expired}, \"timestamp\": \"{seconds}\"}}}}}}\n",
            quoted(&message),
            self.rank,
            self.local_rank,
            self.pid
        )
    }
}

/// A string as JSON has it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if u32::from(char) < 0x20 => quoted += &format!("\\u{:04x}", u32::from(char)),
            char => quoted.push(char),
        }
    }
    quoted + "\""
}

impl fmt::Display for WorkerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} (process {}) has ended with {}", self.rank, self.pid, self.end)?;
        if let Some(scope) = &self.expired {
            write!(f, ", after its timer {scope} had expired")?;
        }
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}

/// How a run went. A group that has failed is a result too, and no error.
///
/// ```
/// use forebear_supervise::agent::{GroupState, LocalAgent};
///
/// let agent = LocalAgent::builder("./worker").launcher("/usr/bin/forebear-agent").build()?;
/// agent.request_stop(); // so that the run starts no worker
/// let result = agent.run()?;
/// assert_eq!((result.state, result.restarts, result.signal), (GroupState::Stopped, 0, None));
/// assert!(result.results.is_empty() && result.failures.is_empty());
/// # Ok::<(), forebear_supervise::agent::AgentError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunResult {
    /// [`Succeeded`](GroupState::Succeeded), [`Failed`](GroupState::Failed) or [`Stopped`](GroupState::Stopped).
    pub state: GroupState,
    /// The results of this agent's workers, by rank: of all of them if the group has succeeded, else of none. A worker without a result has an empty one.
    pub results: BTreeMap<usize, Vec<u8>>,
    /// The workers that have failed in the last attempt, by rank, if the group has failed.
    pub failures: BTreeMap<usize, WorkerFailure>,
    /// How often the group was restarted because of a failure.
    pub restarts: u32,
    /// How many restarts were left.
    pub restarts_left: u32,
    /// The budget.
    pub max_restarts: u32,
    /// The signal to this process that has stopped the group, if one has.
    pub signal: Option<i32>,
    /// Where the logs are, if there are any.
    pub logs: Option<PathBuf>,
}

impl RunResult {
    /// The first failure by time: the cause of the others.
    ///
    /// ```no_run
    /// use forebear_supervise::agent::{self, AgentError, LocalAgent};
    ///
    /// agent::entry();
    /// let result = LocalAgent::builder("./worker").build()?.run()?;
    /// if let Some(first) = result.first_failure() {
    ///     eprintln!("{first}");
    /// }
    /// # Ok::<(), AgentError>(())
    /// ```
    #[must_use]
    pub fn first_failure(&self) -> Option<&WorkerFailure> {
        self.failures.values().min_by_key(|failure| (failure.at, failure.rank))
    }

    /// The result of a worker that has returned from [`run_worker`](super::run_worker). `None`: there is no result of this rank.
    ///
    /// # Errors
    ///
    /// [`AgentError::Decode`] if the bytes are no `R`.
    ///
    /// ```no_run
    /// use forebear_supervise::agent::{self, AgentError, LocalAgent};
    ///
    /// agent::entry();
    /// let result = LocalAgent::builder("./worker").workers(4).build()?.run()?;
    /// let sum: i64 = (0..4).filter_map(|rank| result.get::<i64>(rank).transpose()).sum::<Result<_, _>>()?;
    /// # Ok::<(), AgentError>(())
    /// ```
    pub fn get<R: DeserializeOwned>(&self, rank: usize) -> Result<Option<R>, AgentError> {
        let Some(bytes) = self.results.get(&rank) else { return Ok(None) };
        let wrong = |source| AgentError::Decode { rank, source };
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(Some(value)),
            Ok((_, rest)) => Err(wrong(format!("{} bytes are left over", rest.len()).into())),
            Err(error) => Err(wrong(error.into())),
        }
    }

    /// The used part of the budget, from 0 to 100: `100 - 100 (left + 1) / (max + 1)`, and 100 if the group has failed.
    ///
    /// ```no_run
    /// use forebear_supervise::agent::{self, AgentError, LocalAgent};
    ///
    /// agent::entry();
    /// let result = LocalAgent::builder("./worker").build()?.run()?;
    /// println!("flakiness: {} %", result.flakiness());
    /// # Ok::<(), AgentError>(())
    /// ```
    #[must_use]
    pub fn flakiness(&self) -> u32 {
        if self.state == GroupState::Failed {
            return 100;
        }
        let (left, max) = (u64::from(self.restarts_left) + 1, u64::from(self.max_restarts) + 1);
        100 - (100 * left / max).min(100) as u32
    }
}

/// The counts of an agent over its runs. From [`LocalAgent::metrics`](super::LocalAgent::metrics).
///
/// ```
/// use forebear_supervise::agent::LocalAgent;
///
/// let agent = LocalAgent::builder("./worker").launcher("/usr/bin/forebear-agent").build()?;
/// agent.request_stop(); // so that the run starts no worker
/// agent.run()?;
/// let metrics = agent.metrics();
/// assert_eq!((metrics.runs, metrics.stopped, metrics.restarts), (1, 1, 0));
/// # Ok::<(), forebear_supervise::agent::AgentError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentMetrics {
    /// Runs that have ended, however.
    pub runs: u64,
    /// Groups that have succeeded at the first attempt.
    pub succeeded_at_once: u64,
    /// Groups that have succeeded after restarts.
    pub succeeded_after_restarts: u64,
    /// Groups that have failed without a restart.
    pub failed_at_once: u64,
    /// Groups that have failed after restarts.
    pub failed_after_restarts: u64,
    /// Groups that were stopped.
    pub stopped: u64,
    /// Runs that have ended with an [`AgentError`].
    pub errors: u64,
    /// Restarts because of failures.
    pub restarts: u64,
    /// Restarts because of another number of workers.
    pub resizes: u64,
    /// Workers that were ended because their timer had expired.
    pub expired: u64,
    /// Workers that were sent SIGKILL because they did not end in time.
    pub killed: u64,
    /// Of the last run; see [`RunResult::flakiness`].
    pub flakiness: u32,
}

impl AgentMetrics {
    pub(super) fn count(&mut self, outcome: &Result<RunResult, AgentError>) {
        self.runs += 1;
        let Ok(result) = outcome else {
            self.errors += 1;
            self.flakiness = 100;
            return;
        };
        self.flakiness = result.flakiness();
        match (result.state, result.restarts) {
            (GroupState::Succeeded, 0) => self.succeeded_at_once += 1,
            (GroupState::Succeeded, _) => self.succeeded_after_restarts += 1,
            (GroupState::Failed, 0) => self.failed_at_once += 1,
            (GroupState::Failed, _) => self.failed_after_restarts += 1,
            _ => self.stopped += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_written_as_json() {
        let failure = WorkerFailure {
            rank: 3,
            local_rank: 1,
            pid: 7,
            end: End::Signal(9),
            expired: Some("a\\b".into()),
            message: Some("he said \"no\"\nü".into()),
            at: UNIX_EPOCH,
        };
        let json = failure.json();
        assert!(json.contains(r#""message": "he said \"no\"\u000aü", "errorCode": -9"#), "{json}");
        assert!(json.contains(r#""expired": "a\\b", "timestamp": "0""#), "{json}");
    }
}

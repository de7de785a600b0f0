//! The environment variables between an agent and its workers: how the agent sets them, and how a worker reads them.
//!
//! The names are those of torchelastic, so that its programs run unchanged. What it has no name for begins with `FOREBEAR_`.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

use super::ranks::Ranks;

/// Where a worker writes the bytes that are its result.
pub(super) const RESULT_FILE: &str = "FOREBEAR_RESULT_FILE";
/// Where a worker writes why it has failed.
pub(super) const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
const MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
const ROLE: &str = "ROLE_NAME";

/// A worker's identity, from its environment.
///
/// | variable | field |
/// |---|---|
/// | `RANK`, `WORLD_SIZE` | [`rank`](Ranks::rank), [`world_size`](Ranks::world_size) |
/// | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | [`local_rank`](Ranks::local_rank), [`local_world_size`](Ranks::local_world_size) |
/// | `ROLE_RANK`, `ROLE_WORLD_SIZE` | [`role_rank`](Ranks::role_rank), [`role_world_size`](Ranks::role_world_size) |
/// | `GROUP_RANK`, `GROUP_WORLD_SIZE` | [`group_rank`](Ranks::group_rank), [`group_world_size`](Ranks::group_world_size) |
/// | `ROLE_NAME` | [`role`](Self::role) |
/// | `TORCHELASTIC_RUN_ID` | [`run_id`](Self::run_id) |
/// | `TORCHELASTIC_RESTART_COUNT`, `TORCHELASTIC_MAX_RESTARTS` | [`restart_count`](Self::restart_count), [`max_restarts`](Self::max_restarts) |
/// | `TORCHELASTIC_ERROR_FILE` | where the worker writes why it fails |
/// | `FOREBEAR_RESULT_FILE` | where the worker writes its result |
/// | `FOREBEAR_TIMERS` | the socket of the [timer server](forebear::timer::local::ENVIRONMENT) |
///
/// ```
/// use forebear_supervise::agent::WorkerEnv;
///
/// match WorkerEnv::from_env() {
///     Some(me) => println!("worker {} of {}", me.ranks.rank, me.ranks.world_size),
///     None => println!("no agent has started this process"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerEnv {
    /// Its numbers.
    pub ranks: Ranks,
    /// What the workers of its agent do.
    pub role: String,
    /// The name of the run, the same in all its attempts.
    pub run_id: String,
    /// How often the group has been restarted because of a failure.
    pub restart_count: u32,
    /// How often it is restarted at most.
    pub max_restarts: u32,
    pub(super) result_file: PathBuf,
    pub(super) error_file: PathBuf,
}

impl WorkerEnv {
    /// Reads the environment of this process. `None`: no agent has started the process, or a variable is missing or malformed.
    ///
    /// ```
    /// assert!(forebear_supervise::agent::WorkerEnv::from_env().is_none());
    /// ```
    #[must_use]
    pub fn from_env() -> Option<WorkerEnv> {
        WorkerEnv::read(&|name| env::var_os(name))
    }

    fn read(var: &dyn Fn(&str) -> Option<OsString>) -> Option<WorkerEnv> {
        fn number<N: FromStr>(var: &dyn Fn(&str) -> Option<OsString>, name: &str) -> Option<N> {
            var(name)?.to_str()?.parse().ok()
        }
        let ranks = Ranks {
            rank: number(var, "RANK")?,
            world_size: number(var, "WORLD_SIZE")?,
            local_rank: number(var, "LOCAL_RANK")?,
            local_world_size: number(var, "LOCAL_WORLD_SIZE")?,
            role_rank: number(var, "ROLE_RANK")?,
            role_world_size: number(var, "ROLE_WORLD_SIZE")?,
            group_rank: number(var, "GROUP_RANK")?,
            group_world_size: number(var, "GROUP_WORLD_SIZE")?,
        };
        Some(WorkerEnv {
            ranks,
            role: var(ROLE)?.into_string().ok()?,
            run_id: var(RUN_ID)?.into_string().ok()?,
            restart_count: number(var, RESTART_COUNT)?,
            max_restarts: number(var, MAX_RESTARTS)?,
            result_file: var(RESULT_FILE)?.into(),
            error_file: var(ERROR_FILE)?.into(),
        })
    }

    /// Sets the environment of a process that will be started.
    pub(super) fn pass_to(&self, command: &mut Command) {
        let ranks = [
            ("RANK", self.ranks.rank),
            ("WORLD_SIZE", self.ranks.world_size),
            ("LOCAL_RANK", self.ranks.local_rank),
            ("LOCAL_WORLD_SIZE", self.ranks.local_world_size),
            ("ROLE_RANK", self.ranks.role_rank),
            ("ROLE_WORLD_SIZE", self.ranks.role_world_size),
            ("GROUP_RANK", self.ranks.group_rank),
            ("GROUP_WORLD_SIZE", self.ranks.group_world_size),
        ];
        command.envs(ranks.map(|(name, number)| (name, number.to_string())));
        command.env(ROLE, &self.role).env(RUN_ID, &self.run_id);
        command.env(RESTART_COUNT, self.restart_count.to_string());
        command.env(MAX_RESTARTS, self.max_restarts.to_string());
        command.env(RESULT_FILE, &self.result_file).env(ERROR_FILE, &self.error_file);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranks::{Node, assign_ranks};
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_worker_reads_what_the_agent_has_set_and_nothing_less() {
        let me = WorkerEnv {
            ranks: assign_ranks(&[Node::new("a", 2), Node::new("b", 3)], 1).unwrap()[2],
            role: "b".into(),
            run_id: "run".into(),
            restart_count: 2,
            max_restarts: 5,
            result_file: "/r".into(),
            error_file: "/e".into(),
        };
        let mut command = Command::new("x");
        me.pass_to(&mut command);
        let set: HashMap<String, OsString> = command
            .get_envs()
            .map(|(name, value)| (name.to_str().unwrap().to_owned(), value.unwrap().to_owned()))
            .collect();
        assert_eq!(WorkerEnv::read(&|name| set.get(name).cloned()), Some(me));
        for missing in set.keys() {
            let read = WorkerEnv::read(&|name| set.get(name).filter(|_| name != missing).cloned());
            assert_eq!(read, None, "{missing}");
        }
    }
}

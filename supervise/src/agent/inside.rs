//! The whole of a worker, for workers that are written with this crate.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use forebear::timer::TimerError;
use forebear::timer::local::configure_from_env;
use forebear::{Error, Failure};
use serde::Serialize;

use super::environment::WorkerEnv;
use crate::contain::print;

/// Runs `f` as the work of a worker process, and passes its outcome to the agent. A value goes to
/// [`RunResult::get`](super::RunResult::get); an error or panic becomes the message of a
/// [`WorkerFailure`](super::WorkerFailure). Before that it connects the timers of
/// [`expires`](forebear::timer::expires).
///
/// Returns what `main` should return: 0, or 1 after a failure. Without an agent it does not call `f`, and returns 2. In both cases it writes the reason to standard error,
/// since it is the whole of its process.
///
/// ```no_run
/// use forebear::timer::expires;
/// use forebear_supervise::agent::{WorkerEnv, run_worker};
/// use std::process::ExitCode;
/// use std::time::Duration;
///
/// fn main() -> ExitCode {
///     run_worker(|me: &WorkerEnv| {
///         let _timer = expires(Duration::from_secs(30))?; // stuck for longer: SIGKILL, and the group starts again
///         Ok((me.ranks.rank as i64..1_000).step_by(me.ranks.world_size).sum::<i64>())
///     })
/// }
/// ```
pub fn run_worker<R: Serialize>(f: impl FnOnce(&WorkerEnv) -> Result<R, Error>) -> ExitCode {
    let Some(env) = WorkerEnv::from_env() else {
        print("this is a worker, and no agent has started it: run it by `forebear-agent -- PROGRAM`");
        return ExitCode::from(2);
    };
    let name = format!("worker {}", env.ranks.rank);
    let work = || {
        match configure_from_env() {
            // An agent without timers.
            Err(TimerError::NotConfigured) => {}
            configured => configured?,
        }
        let value = f(&env)?;
        let bytes = postcard::to_stdvec(&value).map_err(Error::other)?;
        Ok(fs::write(&env.result_file, bytes)?)
    };
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => Failure::from_error(error, name, None),
        Err(payload) => Failure::from_panic(payload, name, None),
    };
    let text = format!("{failure:#}");
    print(&text);
    if let Err(error) = fs::write(&env.error_file, text) {
        print(format_args!("the agent gets no message of this failure: {error}"));
    }
    ExitCode::FAILURE
}

//! The same job in several processes, as the workers of an agent.
//!
//! Each worker begins with other colours, and has a directory of its own for its checkpoints. The agent's process does nothing but watch them, and takes the best of
//! their results.

use std::env;
use std::error::Error as StdError;
use std::process::ExitCode;
use std::time::Duration;

use forebear::Error;
use forebear_supervise::agent::{AgentEvent, GroupState, LocalAgent, WorkerEnv, run_worker};

use crate::Arguments;
use crate::job::{self, Ended, Part};
use crate::kmeans::Model;

/// Runs the workers, or is one of them. `None`: there are none, and this process does the whole.
pub(crate) fn run(arguments: &Arguments) -> Result<Option<ExitCode>, Box<dyn StdError>> {
    if WorkerEnv::from_env().is_some() {
        return Ok(Some(run_worker(|me| work(arguments, me))));
    }
    if arguments.workers == 1 {
        if arguments.stuck_at.is_some() {
            return Err("--stuck-at is for worker processes: add --workers 2".into());
        }
        return Ok(None);
    }
    watch(arguments).map(Some)
}

/// In a worker: its part, as it is at the last step.
fn work(arguments: &Arguments, me: &WorkerEnv) -> Result<(u64, Model), Error> {
    let (rank, last) = (me.ranks.rank, me.ranks.world_size - 1);
    let part = Part {
        dir: arguments.dir.join(format!("worker-{rank}")),
        start: rank,
        starts: me.ranks.world_size,
        step_limit: Some(Duration::from_millis(arguments.step_limit)),
        stuck_at: arguments.stuck_at.filter(|_| rank == last && me.restart_count == 0),
    };
    let ended = job::run(arguments, &part)?;
    if ended.is_complete {
        Ok((ended.step, ended.model))
    } else {
        // The group was stopped, or another worker has failed. What this one has done is saved.
        Err(Error::other(format!("stopped after step {}", ended.step)))
    }
}

/// In the agent.
fn watch(arguments: &Arguments) -> Result<ExitCode, Box<dyn StdError>> {
    let agent = LocalAgent::builder(env::current_exe()?)
        .args(env::args_os().skip(1))
        .workers(arguments.workers as usize)
        .pass_signals()
        .on_event(|event: &AgentEvent<'_>| eprintln!("{event}"))
        .build()?;
    let result = agent.run()?;
    match result.state {
        GroupState::Succeeded => {}
        GroupState::Stopped => {
            println!("stopped: start it again, and it goes on");
            return Ok(ExitCode::SUCCESS);
        }
        _ => return Ok(ExitCode::FAILURE),
    }
    let mut best: Option<Ended> = None;
    for rank in result.results.keys() {
        let Some((step, model)) = result.get::<(u64, Model)>(*rank)? else { continue };
        println!("worker {rank}: loss {}", model.loss);
        if best.as_ref().is_none_or(|best| model.loss < best.model.loss) {
            best = Some(Ended { is_complete: true, step, model });
        }
    }
    if let Some(best) = best {
        best.print();
    }
    Ok(ExitCode::SUCCESS)
}

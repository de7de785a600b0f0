//! The engines, in the rows `many`, `alone` and `growth`.
//!
//! A thread schedules the tasks and then fetches all results; it is no request, so it blocks in between. All workers are ready before the clock runs, and a tenth of the tasks has run.
//!
//! In `growth` the workers of `InProcess` are in the coordinator's process, and those of `LocalProcesses` are a process each. Those of `Nats` have
//! connections of their own to the server, all in one process beside the coordinator's ([`join`]): a machine does not have to start 1,000 processes
//! for it. Beside rate and latency the row has the processor time of coordinator, workers and server for each of the many tasks.

use std::time::{Duration, Instant};

use forebear_cluster::{ClusterCoordinator, InProcess, LocalProcesses};

use crate::Whether;
use crate::candidates::{SLOTS, WORKERS};
use crate::figures::{computed, one_by_one, print, rate};
use crate::tasks::{NOOP, known};

fn ready(engine: impl forebear_cluster::engine::Engine, workers: usize) -> Whether<ClusterCoordinator> {
    let builder = ClusterCoordinator::builder(engine).tasks(known()).min_workers(workers);
    Ok(builder.start_timeout(Duration::from_secs(120)).start()?)
}

fn start(engine: &str) -> Whether<ClusterCoordinator> {
    match engine {
        "InProcess" => ready(InProcess::new(WORKERS).slots(SLOTS), WORKERS),
        "LocalProcesses" => ready(LocalProcesses::new(WORKERS).slots(SLOTS), WORKERS),
        #[cfg(feature = "nats")]
        "Nats" => ready(nats()?.workers(WORKERS).slots(SLOTS), WORKERS),
        _ => Err(format!("no engine `{engine}`").into()),
    }
}

/// The engine on the server of this run, for a job of this process.
#[cfg(feature = "nats")]
pub(crate) fn nats() -> Whether<forebear_cluster_nats::Nats> {
    let (url, token) = server()?;
    Ok(forebear_cluster_nats::Nats::new(&url, &job()).token(&token))
}

#[cfg(feature = "nats")]
pub(crate) fn job() -> String {
    format!("bench-{}", std::process::id())
}

/// Where the server is, and its token.
#[cfg(feature = "nats")]
pub(crate) fn server() -> Whether<(String, String)> {
    Ok((std::env::var("FOREBEAR_NATS_URL")?, std::env::var("FOREBEAR_NATS_TOKEN")?))
}

/// Schedules n tasks and fetches their results.
fn do_many(cluster: &ClusterCoordinator, n: u64) -> Whether<()> {
    let values = (0..n).map(|i| cluster.schedule(&NOOP, i)).collect::<Result<Vec<_>, _>>()?;
    let sum: u64 = cluster.fetch(values)?.into_iter().sum();
    if sum != n * n.saturating_sub(1) / 2 {
        return Err("the results are wrong".into());
    }
    Ok(())
}

fn time_many(cluster: &ClusterCoordinator, n: u64) -> Whether<()> {
    do_many(cluster, n / 10)?;
    let begun = Instant::now();
    do_many(cluster, n)?;
    print("a second", rate(n, begun.elapsed()));
    Ok(())
}

fn time_alone(cluster: &ClusterCoordinator, n: u64) -> Whether<()> {
    one_by_one(n, |i| match cluster.schedule(&NOOP, i)?.fetch()? {
        back if back == i => Ok(()),
        _ => Err("the result is wrong".into()),
    })
}

pub(crate) fn many(engine: &str, n: u64) -> Whether<()> {
    let cluster = start(engine)?;
    time_many(&cluster, n)?;
    Ok(cluster.shutdown()?)
}

pub(crate) fn alone(engine: &str, n: u64) -> Whether<()> {
    let cluster = start(engine)?;
    time_alone(&cluster, n)?;
    Ok(cluster.shutdown()?)
}

/// A row of `growth`: that engine with so many workers of one slot.
pub(crate) fn grown(engine: &str, workers: usize, n: u64) -> Whether<()> {
    let begun = Instant::now();
    match engine {
        "InProcess" => measure(&ready(InProcess::new(workers), workers)?, begun, &[], n),
        "LocalProcesses" => measure(&ready(LocalProcesses::new(workers), workers)?, begun, &[], n),
        #[cfg(feature = "nats")]
        "Nats" => {
            let mut command = std::process::Command::new(std::env::current_exe()?);
            let (url, _) = server()?;
            let mut links = command.args(["join", &url, &job(), &workers.to_string()]).spawn()?;
            let pid = std::env::var("FOREBEAR_BENCH_SERVER")?.parse()?;
            let others = [("workers us each", links.id()), ("server us each", pid)];
            let measured = ready(nats()?, workers).and_then(|cluster| measure(&cluster, begun, &others, n));
            if measured.is_err() {
                links.kill()?;
            }
            links.wait()?;
            measured
        }
        _ => Err(format!("no engine `{engine}`").into()),
    }
}

fn measure(cluster: &ClusterCoordinator, begun: Instant, others: &[(&str, u32)], n: u64) -> Whether<()> {
    print("start s", begun.elapsed().as_secs_f64());
    do_many(cluster, n / 10)?;
    let its = |all: &[(&str, u32)]| all.iter().map(|(_, pid)| computed(*pid)).collect::<Vec<_>>();
    let mut all = vec![("coordinator us each", std::process::id())];
    all.extend(others);
    let (before, begun) = (its(&all), Instant::now());
    do_many(cluster, n)?;
    let (time, after) = (begun.elapsed(), its(&all));
    print("a second", rate(n, time));
    for ((name, _), (before, after)) in all.iter().zip(before.iter().zip(after)) {
        print(name, (after - before) * 1e6 / n as f64);
    }
    time_alone(cluster, (n / 50).max(100))?;
    Ok(cluster.shutdown()?)
}

/// So many workers of a job in this process, each with a link of its own, until the coordinator ends them.
#[cfg(feature = "nats")]
pub(crate) fn join(url: &str, job: &str, workers: &str) -> Whether<()> {
    use forebear_cluster_nats::worker::{self, WorkerOptions};

    let (workers, (_, token)): (usize, _) = (workers.parse()?, server()?);
    let ended: Vec<_> = std::thread::scope(|scope| {
        let one = |_| {
            let options = WorkerOptions::new(url, job).token(&token);
            scope.spawn(move || worker::run(options, known()))
        };
        let all: Vec<_> = (0..workers).map(one).collect();
        all.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    Ok(ended.into_iter().collect::<Result<_, _>>()?)
}

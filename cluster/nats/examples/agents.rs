//! One agent of several, on as many machines: `FOREBEAR_TOKEN=... agents SERVER GROUP NAME LEAST MOST WORKERS PROGRAM [ARGUMENT]...`
//!
//! The agents with the same group form rounds over the server, and their workers have consecutive ranks. If a worker fails, or an agent is lost or comes, the workers of all agents start anew,
//! with `ROUND` in their environment. An agent whose workers are done waits for the others.

use std::error::Error;
use std::time::Duration;

use forebear::spawn;
use forebear_cluster_nats::group::{Exit, Group, GroupOptions};
use forebear_supervise::agent::{self, GroupState, LocalAgent, Node};

/// An agent whose workers are done waits so long for the others.
const EXIT: Duration = Duration::from_secs(300);

fn main() -> Result<(), Box<dyn Error>> {
    agent::entry();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, group, name, least, most, workers, program, args @ ..] = &args[..] else {
        return Err("agents SERVER GROUP NAME LEAST MOST WORKERS PROGRAM [ARGUMENT]...".into());
    };
    let lease = std::env::var("FOREBEAR_LEASE_MS").map_or(Ok(15_000), |text| text.parse())?;
    let options = GroupOptions::new(server, group)
        .token(&std::env::var("FOREBEAR_TOKEN")?)
        .name(name)
        .members(least.parse()?, most.parse()?)
        .size(workers.parse()?)
        .lease(Duration::from_millis(lease));
    let group = Group::join(options)?;
    // So often all start anew since a worker of this agent has failed.
    let mut restarts = 3;
    loop {
        let round = group.form()?;
        let nodes = round.members.iter().map(|member| Node::new("worker", member.size));
        let agent = LocalAgent::builder(program)
            .args(args)
            .among(nodes, round.own)
            .env("ROUND", round.number.to_string())
            .max_restarts(0)
            .build()?;
        let (its, of, stopped) = (group.clone(), round.clone(), agent.clone());
        let watcher = spawn(move || {
            if its.wait_changed(&of).is_ok() {
                stopped.request_stop();
            }
        });
        let result = agent.run()?;
        watcher.cancel();
        match result.state {
            GroupState::Succeeded => {
                match group.finish(&round, EXIT)? {
                    Exit::Changed => continue,
                    Exit::Without(lost) => println!("{name}: done without {}", lost.join(", ")),
                    _ => println!("{name}: all are done"),
                }
                return Ok(());
            }
            GroupState::Failed if !group.has_changed(&round) => {
                if restarts == 0 {
                    return Err("the workers fail again and again".into());
                }
                restarts -= 1;
                group.begin_anew(&round);
                group.wait_changed(&round)?;
            }
            // The round is over.
            _ => {}
        }
    }
}

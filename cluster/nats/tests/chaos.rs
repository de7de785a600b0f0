//! Jobs over a nats-server while coordinators, workers, the server and the network fail at random. `ci/chaos` runs many seeds; `ci/nats` runs a few. Without a server each test is ignored, by name.

#[path = "../../tests/chaos/audit.rs"]
mod audit;
#[path = "../../tests/restart/job.rs"]
mod job;
#[path = "../../tests/chaos/plant.rs"]
mod plant;
mod support;
#[path = "../../tests/chaos/torment.rs"]
mod torment;

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster_nats::{Nats, worker};
use rustix::process::Signal;

use crate::support::proxy::{Proxy, Way};
use crate::support::trio::{are_current, three};
use crate::support::{Server, token, until};
use crate::torment::{Draw, Fault, Torment, Verdict, over_seeds};

/// Some who stand still do so for longer.
const LEASE: Duration = Duration::from_secs(2);
/// A server and a network are away for at most so many milliseconds.
const AWAY: u64 = 400;

#[test]
fn worker_process() {
    worker::entry(job::known());
}

/// The coordinator that is killed and stopped.
#[test]
fn coordinator_process() {
    let Some(dir) = std::env::var_os("FOREBEAR_TEST_DIR").map(PathBuf::from) else { return };
    let [url, job] = ["FOREBEAR_TEST_URL", "FOREBEAR_TEST_JOB"].map(|name| std::env::var(name).unwrap());
    let replicas = std::env::var("FOREBEAR_TEST_REPLICAS").map_or(1, |replicas| replicas.parse().unwrap());
    let engine = Nats::new(&url, &job)
        .token(&token())
        .replicas(replicas)
        .lease(LEASE)
        .workers(3)
        .args(["worker_process", "--exact", "--nocapture"])
        .restarts(1_000)
        .on_warning(|_| {});
    plant::run(&dir, engine);
}

fn torment(seed: u64, faults: u32) -> Verdict {
    let server = std::cell::RefCell::new(Server::start());
    let port = server.borrow().port();
    let proxy = Proxy::before(port);
    let (url, job) = (proxy.url(), support::job());
    let coordinator = |dir: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["coordinator_process", "--exact", "--nocapture"]).stdout(Stdio::null());
        command.envs([("FOREBEAR_TEST_URL", &url), ("FOREBEAR_TEST_JOB", &job)]);
        command.env("FOREBEAR_TEST_DIR", dir);
        command
    };
    let killed = |draw: &mut Draw| {
        let mut server = server.borrow_mut();
        server.kill();
        sleep(draw.millis(AWAY)).unwrap();
        server.restart();
        until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
    };
    let stopped = |draw: &mut Draw| {
        server.borrow().signal(Signal::STOP);
        sleep(draw.millis(AWAY)).unwrap();
        server.borrow().signal(Signal::CONT);
    };
    let away = |draw: &mut Draw| {
        let late = Duration::from_millis(1 + draw.below(20));
        proxy.set([Way::HalfOpen, Way::Cut, Way::Slow(late)][draw.below(3) as usize]);
        sleep(draw.millis(AWAY)).unwrap();
        proxy.set(Way::Open);
    };
    let more = vec![
        Fault { name: "servers killed", inflict: Box::new(killed) },
        Fault { name: "servers stopped", inflict: Box::new(stopped) },
        Fault { name: "networks broken", inflict: Box::new(away) },
    ];
    let still = LEASE + LEASE / 4;
    Torment { seed, faults, coordinator: &coordinator, still, exact: false, more }.run()
}

/// Over three servers, of which one at a time is killed or stands still. The next fault waits until it has caught up, if that does not take long.
fn torment_three(seed: u64, faults: u32) -> Verdict {
    let servers = std::cell::RefCell::new(three());
    let url = servers.borrow().each_ref().map(Server::url).join(",");
    let job = support::job();
    let coordinator = |dir: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["coordinator_process", "--exact", "--nocapture"]).stdout(Stdio::null());
        command.envs([("FOREBEAR_TEST_URL", &url), ("FOREBEAR_TEST_JOB", &job)]);
        command.env("FOREBEAR_TEST_REPLICAS", "3").env("FOREBEAR_TEST_DIR", dir);
        command
    };
    let catch_up = || {
        // A job without a coordinator has no streams.
        for _ in 0..20 {
            if are_current(&url, &job) {
                break;
            }
            sleep(Duration::from_millis(100)).unwrap();
        }
    };
    let killed = |draw: &mut Draw| {
        let mut servers = servers.borrow_mut();
        let server = &mut servers[draw.below(3) as usize];
        server.kill();
        sleep(draw.millis(AWAY)).unwrap();
        server.restart();
        until(|| TcpStream::connect(("127.0.0.1", server.port())).is_ok());
        catch_up();
    };
    let stopped = |draw: &mut Draw| {
        let servers = servers.borrow();
        let server = &servers[draw.below(3) as usize];
        server.signal(Signal::STOP);
        sleep(draw.millis(AWAY)).unwrap();
        server.signal(Signal::CONT);
        catch_up();
    };
    let more = vec![
        Fault { name: "servers killed", inflict: Box::new(killed) },
        Fault { name: "servers stopped", inflict: Box::new(stopped) },
    ];
    let still = LEASE + LEASE / 4;
    Torment { seed, faults, coordinator: &coordinator, still, exact: false, more }.run()
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn whatever_fails_of_three_servers_no_effect_is_lost_and_no_attempt_runs_twice() {
    over_seeds(1, 12, torment_three);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn whatever_fails_no_effect_is_lost_and_no_attempt_runs_twice() {
    over_seeds(2, 12, torment);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn when_nothing_fails_each_task_has_its_effect_exactly_once() {
    let verdict = torment(1, 0);
    assert!(verdict.findings.is_empty() && verdict.again == 0, "{verdict}");
}

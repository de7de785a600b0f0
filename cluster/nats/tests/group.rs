//! Groups over a real server: several members in one process, and several agents, of which some are killed. `ci/nats` runs it; without a server each test is ignored, by name.

mod support;

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use forebear::sync::Event;
use forebear::time::sleep;
use forebear::{Runtime, WaitError, no_suspend};
use forebear_cluster::ClusterError;
use forebear_cluster_nats::group::{Exit, FormError, Group, GroupOptions, Round};

use crate::support::sieve::Sieve;
use crate::support::{Server, job, shared_port, shared_url, token, until};

/// A lease that tests wait for.
const LEASE: Duration = Duration::from_millis(1_500);
/// No test waits for so long.
const LONG: Duration = Duration::from_secs(1_000);

fn options(url: &str, group: &str, name: &str) -> GroupOptions {
    GroupOptions::new(url, group).token(&token()).name(name).lease(LEASE).gather(LONG)
}

/// So many members of a group that has room for no more, and their round.
fn members<const N: usize>(group: &str) -> [(Group, Round); N] {
    let join = |n: usize| {
        let options = options(&shared_url(), group, &format!("member {n}")).members(1, N).size(n + 1);
        Group::join(options).unwrap()
    };
    let groups: [Group; N] = std::array::from_fn(join);
    groups.map(|group| {
        let round = group.form().unwrap();
        (group, round)
    })
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn all_members_of_a_round_know_it_in_the_same_way() {
    let all = members::<3>(&job());
    for (n, (_, round)) in all.iter().enumerate() {
        assert_eq!((round.number, &round.members), (1, &all[0].1.members));
        assert_eq!(round.members[round.own].name, format!("member {n}"));
        assert_eq!(round.members[round.own].size, n + 1);
    }
}

/// As while servers that are a cluster have no leader: the first requests for streams get no answer, for longer than one try to make a stream lasts.
#[test]
#[ignore = "needs a server: ci/nats"]
fn who_joins_waits_until_the_servers_have_a_leader() {
    let (group, sieve, mut asked) = (job(), Sieve::before(shared_port()), 0);
    sieve.lose(move |message| {
        let asks = message.contains("$JS.API.STREAM.");
        asked += u32::from(asks);
        asks && asked <= 7
    });
    let alone = Group::join(options(&sieve.url(), &group, "waits").lease(LONG).members(1, 1)).unwrap();
    assert_eq!(alone.form().unwrap().members.len(), 1);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r43_nobody_leaves_before_all_are_done_and_who_is_lost_is_named_and_no_error() {
    let all = members::<3>(&job());
    let [a, b, c] = all;
    let waits = |(group, round): &(Group, Round)| {
        let (group, round) = (group.clone(), round.clone());
        thread::spawn(move || group.finish(&round, LONG).unwrap())
    };
    // A member that is done after its round is over learns that as well.
    let early = a.0.finish(&a.1, Duration::ZERO).unwrap();
    assert!(matches!(&early, Exit::Without(names) if names.contains(&"member 2".into())), "{early:?}");
    let (first, second) = (waits(&a), waits(&b));
    assert_eq!(waits(&c).join().unwrap(), Exit::All);
    assert_eq!((first.join().unwrap(), second.join().unwrap()), (Exit::All, Exit::All));
    let [a, b] = members::<2>(&job());
    // Before it is known that one is done, a loss begins another round.
    until(|| a.0.finish(&a.1, Duration::ZERO).unwrap() == without(&["member 1"]));
    let first = waits(&a);
    drop(b);
    assert_eq!(first.join().unwrap(), without(&["member 1"]));
}

fn without(names: &[&str]) -> Exit {
    Exit::Without(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r44_a_round_is_over_when_a_member_leaves_comes_or_asks_for_it() {
    let name = job();
    let [a, b] = members::<2>(&name);
    drop(b);
    a.0.wait_changed(&a.1).unwrap();
    let second = a.0.form().unwrap();
    assert_eq!((second.number, second.members.len()), (2, 1));
    let options = options(&shared_url(), &name, "another").members(1, 2);
    let other = Group::join(options).unwrap();
    a.0.wait_changed(&second).unwrap();
    let third = a.0.form().unwrap();
    assert_eq!(other.form().unwrap().members, third.members);
    other.begin_anew(&third);
    a.0.wait_changed(&third).unwrap();
    assert!(a.0.has_changed(&third));
    let fourth = a.0.form().unwrap();
    assert_eq!((fourth.number, fourth.members.len()), (4, 2));
    assert_eq!(other.finish(&third, LONG).unwrap(), Exit::Changed);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn while_the_server_is_away_nobody_is_lost_also_if_its_store_is() {
    for forgets in [false, true] {
        let (mut server, name) = (Server::start(), job());
        let join = |member: &str| Group::join(options(&server.url(), &name, member).members(2, 2)).unwrap();
        let (a, b) = (join("a"), join("b"));
        let round = a.form().unwrap();
        assert_eq!(b.form().unwrap().members, round.members);
        server.kill();
        if forgets {
            server.forget();
        }
        // Nobody can be heard for more than a lease.
        sleep(LEASE * 2).unwrap();
        server.restart();
        if forgets {
            a.wait_changed(&round).unwrap();
        }
        let again = a.form().unwrap();
        assert_eq!(again.number, round.number + u64::from(forgets));
        let exit = thread::spawn(move || {
            loop {
                match b.finish(&b.form().unwrap(), LONG).unwrap() {
                    Exit::Changed => {}
                    exit => return exit,
                }
            }
        });
        assert_eq!(a.finish(&again, LONG).unwrap(), Exit::All);
        assert_eq!(exit.join().unwrap(), Exit::All);
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_group_that_stays_too_small_says_how_many_have_come_and_what_to_check() {
    let (mut server, name) = (Server::start(), job());
    let url = server.url();
    let join = |member: &str| {
        let options = options(&url, &name, member).members(3, 3);
        Group::join(options.form_timeout(Duration::from_millis(50))).unwrap()
    };
    let (a, b) = (join("a"), join("b"));
    for group in [&a, &b] {
        until(|| matches!(group.form(), Err(FormError::TimedOut { there: 2, least: 3, trouble: None, .. })));
    }
    let error = a.form().unwrap_err().to_string();
    assert!(error.starts_with("2 of at least 3 members have come in 50ms: see whether"), "{error}");
    server.kill();
    until(|| matches!(a.form(), Err(FormError::TimedOut { trouble: Some(_), .. })));
    server.restart();
    // It has stayed a member.
    let c = join("c");
    let mut round = None;
    until(|| {
        round = a.form().ok();
        round.is_some()
    });
    drop((b, c));
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_member_for_which_a_round_has_no_place_says_so_in_time_and_stays_a_member() {
    let name = job();
    let join = |member: &str, timeout: Duration| {
        let options = options(&shared_url(), &name, member).members(2, 2).form_timeout(timeout);
        Group::join(options).unwrap()
    };
    let (a, b) = (join("a", LONG), join("b", LONG));
    let round = a.form().unwrap();
    b.form().unwrap();
    let (late, patient) = (join("late", Duration::from_millis(50)), join("patient", Duration::MAX));
    // It has read what there is by then.
    until(|| matches!(late.form(), Err(FormError::NoPlace { taken: 2, most: 2, .. })));
    let error = late.form().unwrap_err().to_string();
    assert!(error.starts_with("the round of 2 members, of at most 2, had no place"), "{error}");
    assert!(error.contains("`members`") && error.contains("`form_timeout`"), "{error}");
    // One that is done has its place until it leaves.
    let exit = thread::spawn(move || a.finish(&round, LONG));
    assert!(matches!(late.form(), Err(FormError::NoPlace { .. })));
    let round = b.form().unwrap();
    assert_eq!(b.finish(&round, LONG).unwrap(), Exit::All);
    assert_eq!(exit.join().unwrap().unwrap(), Exit::All);
    drop(b);
    // It has stayed a member, and so has the one without a limit.
    let waits = patient.clone();
    let waits = thread::spawn(move || waits.form());
    let mut round = None;
    until(|| {
        round = late.form().ok();
        round.is_some()
    });
    assert_eq!(round.unwrap().members.len(), 2);
    assert_eq!(waits.join().unwrap().unwrap().members.len(), 2);
    drop(patient);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_group_without_a_server_or_with_a_bad_name_is_an_error() {
    for (url, name) in [("nats://127.0.0.1:1", "group"), (&*shared_url(), "a.b")] {
        let refused = Group::join(options(url, name, "a"));
        assert!(matches!(refused, Err(ClusterError::Start { .. })), "{refused:?}");
    }
}

/// The only member of a group whose server is dead. A drop of it cannot tell the server, and waits as long as it may.
fn cut_off() -> (Server, Group) {
    let mut server = Server::start();
    let group = Group::join(options(&server.url(), &job(), "alone").members(1, 1)).unwrap();
    group.form().unwrap();
    server.kill();
    (server, group)
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_drop_in_a_request_waits_for_the_server_and_others_run_meanwhile() {
    let (_server, group) = cut_off();
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let ran = runtime.spawn(move || {
        let ran = Arc::new(AtomicBool::new(false));
        let its = ran.clone();
        let other = forebear::spawn(move || its.store(true, Ordering::Release));
        other.submit();
        drop(group);
        ran.load(Ordering::Acquire)
    });
    // Not on the stack of this thread, which may block.
    until(|| ran.is_done());
    assert!(ran.take().unwrap(), "the drop has blocked the only worker");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_drop_does_not_wait_where_a_request_unwinds_or_must_not_suspend() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (_server, group) = cut_off();
    let (gate, waits) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let (opens, its) = (gate.clone(), waits.clone());
    let other = runtime.spawn(move || {
        its.set();
        gate.wait()
    });
    // Another request of the only worker has begun. It would have to go on while this one unwinds.
    let panics = runtime.spawn(move || {
        let _group = group;
        waits.wait().unwrap();
        panic!("the request of this test");
    });
    // Not on the stack of this thread, which may block.
    until(|| panics.is_done());
    assert!(panics.take().is_err_and(|error: WaitError| !error.is_cancelled()));
    opens.set();
    other.take().unwrap().unwrap();
    let (_server, group) = cut_off();
    runtime.spawn(move || no_suspend("this test", || drop(group))).take().unwrap();
}

/// The server accepts, and says nothing.
#[test]
fn a_join_that_is_cancelled_ends_its_try_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = GroupOptions::new(&format!("nats://{}", listener.local_addr().unwrap()), "group");
    let (send, returned) = mpsc::channel();
    let request = forebear::spawn(move || send.send(Group::join(options).map(drop)));
    request.submit();
    let (mut accepted, _) = listener.accept().unwrap();
    request.cancel();
    assert!(matches!(returned.recv().unwrap(), Err(ClusterError::Cancelled)));
    accepted.set_nonblocking(true).unwrap();
    let read = accepted.read(&mut [0]);
    assert!(
        matches!(&read, Ok(0)) || read.as_ref().is_err_and(|error| error.kind() != ErrorKind::WouldBlock),
        "the connection is still there: {read:?}"
    );
}

/// An agent in a process of its own: the example `agents`. It and its workers write into a directory.
struct Agent(Child);

impl Agent {
    /// With two workers, each of which writes how many there are, and then waits for a file. One of them fails if it finds another file.
    fn start(dir: &Path, group: &str, name: &str, least: usize, most: usize) -> Agent {
        let tests = std::env::current_exe().unwrap();
        let example = tests.ancestors().nth(2).unwrap().join("examples/agents");
        let script = "echo $WORLD_SIZE >$0/new-$RANK; mv $0/new-$RANK $0/$1-$ROUND-$LOCAL_RANK; until [ -e $0/gate-$1 ]; do if rm $0/fail-$1 2>/dev/null; then exit 1; fi; sleep 0.01; done; echo $1 >>$0/log";
        let mut command = Command::new(example);
        command.args([&*shared_url(), group, name]).args([least, most, 2].map(|n| n.to_string()));
        command.args(["sh", "-c", script]).arg(dir).arg(name);
        command.env("FOREBEAR_TOKEN", token()).env("FOREBEAR_LEASE_MS", LEASE.as_millis().to_string());
        Agent(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end in order, and what it says.
    fn end(mut self) -> String {
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success());
        said
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a round in which the workers of just these agents run, each with the same idea of how many they are. Its number.
fn round_of(dir: &Path, agents: &[&str]) -> u32 {
    let world = (2 * agents.len()).to_string();
    let runs = |round: u32| {
        let file = |name: &str, local: u32| dir.join(format!("{name}-{round}-{local}"));
        let says = |file: PathBuf| fs::read_to_string(file).is_ok_and(|text| text.trim() == world);
        agents.iter().all(|name| says(file(name, 0)) && says(file(name, 1)))
    };
    let mut found = None;
    until(|| {
        found = (1..100).rev().find(|round| runs(*round));
        found.is_some()
    });
    found.unwrap()
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r44_agents_go_on_without_one_that_is_killed_and_with_it_when_it_comes_back() {
    let (dir, group) = (tempfile::tempdir().unwrap(), job());
    let dir = dir.path();
    let start = |name: &str| Agent::start(dir, &group, name, 2, 3);
    let (a, b, c) = (start("a"), start("b"), start("c"));
    let first = round_of(dir, &["a", "b", "c"]);
    b.kill();
    let second = round_of(dir, &["a", "c"]);
    assert!(second > first);
    let b = start("b");
    let mut third = 0;
    until(|| {
        third = round_of(dir, &["a", "b", "c"]);
        third > second
    });
    ["a", "b", "c"].iter().for_each(|name| fs::write(dir.join(format!("gate-{name}")), "").unwrap());
    for (name, agent) in [("a", a), ("b", b), ("c", c)] {
        assert_eq!(agent.end(), format!("{name}: all are done\n"));
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r43_an_agent_whose_workers_are_done_waits_for_the_other_until_that_is_done_or_lost() {
    for is_lost in [false, true] {
        let (dir, group) = (tempfile::tempdir().unwrap(), job());
        let dir = dir.path();
        let [mut a, b] = ["a", "b"].map(|name| Agent::start(dir, &group, name, 2, 2));
        round_of(dir, &["a", "b"]);
        fs::write(dir.join("gate-a"), "").unwrap();
        until(|| fs::read_to_string(dir.join("log")).is_ok_and(|log| log.lines().count() == 2));
        if is_lost {
            b.kill();
            assert_eq!(a.end(), "a: done without b\n");
        } else {
            assert!(a.0.try_wait().unwrap().is_none());
            fs::write(dir.join("gate-b"), "").unwrap();
            assert_eq!((a.end(), b.end()), ("a: all are done\n".into(), "b: all are done\n".into()));
        }
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r44_a_worker_that_fails_has_the_workers_of_all_agents_start_anew() {
    let (dir, group) = (tempfile::tempdir().unwrap(), job());
    let dir = dir.path();
    let [a, b] = ["a", "b"].map(|name| Agent::start(dir, &group, name, 2, 2));
    let first = round_of(dir, &["a", "b"]);
    fs::write(dir.join("fail-a"), "").unwrap();
    let mut next = 0;
    until(|| {
        next = round_of(dir, &["a", "b"]);
        next > first
    });
    ["a", "b"].iter().for_each(|name| fs::write(dir.join(format!("gate-{name}")), "").unwrap());
    assert!(a.end().ends_with("all are done\n") && b.end().ends_with("all are done\n"));
}

//! Several processes of one job: which one is chief, and what its death does.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use forebear::Runtime;
use forebear_supervise::{
    Checkpoints, Chief, ChiefDeath, ChiefDied, Coordinator, Snapshot, SuperviseError, Supervisor,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::again::{again, kill_after, kills};
use crate::support::{Random, Watchdog, hold_workers, is_child, until};
use crate::{LONG, MS, Warnings, count, counting, quiet, steps};

/// Another process of the job: a test of this program, run once more.
struct Process {
    child: Child,
    told: BufReader<ChildStdout>,
}

impl Process {
    fn start(test: &str, role: &str, dir: &Path) -> Process {
        let mut child = again(test, &[("ROLE", role.as_ref()), ("DIRECTORY", dir.as_os_str())]);
        let told = BufReader::new(child.stdout.take().unwrap());
        Process { child, told }
    }

    /// Reads until a line ends with this. The first one stands behind what the harness has begun to say.
    fn says(&mut self, what: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(what) {
            line.clear();
            if self.told.read_line(&mut line).unwrap() == 0 {
                panic!("it has ended without saying {what:?}: {}", self.complaint());
            }
        }
    }

    fn complaint(&mut self) -> String {
        let mut complaint = String::new();
        let _ = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut complaint));
        complaint
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// If this is the other process: its directory and role.
fn other(test: &str) -> Option<(std::path::PathBuf, String)> {
    is_child(test).then(|| (std::env::var_os("DIRECTORY").unwrap().into(), std::env::var("ROLE").unwrap()))
}

/// A chief that makes five steps, saves, says so, and stays.
fn be_chief(dir: &Path) -> ! {
    let supervisor = counting(dir).build();
    let session = supervisor.start().unwrap();
    for _ in 0..5 {
        count(&session).unwrap();
    }
    session.save_now().unwrap();
    println!("at work");
    loop {
        std::thread::park();
    }
}

/// A directory in which another process is at work as the chief. In that process, this is its life.
fn beside_a_chief(test: &str) -> (Watchdog, TempDir, Process) {
    if let Some((dir, _)) = other(test) {
        be_chief(&dir);
    }
    let (dog, dir) = (Watchdog::new(""), TempDir::new().unwrap());
    let mut chief = Process::start(test, "chief", dir.path());
    chief.says("at work");
    (dog, dir, chief)
}

/// The same with a chief that prepares the state, and never ends that. In a process with the role `next`, a chief is at work.
fn beside_one_that_prepares(test: &str) -> (Watchdog, TempDir, Process) {
    if let Some((dir, role)) = other(test) {
        if role == "next" {
            be_chief(&dir);
        }
        let supervisor = counting(&dir).init(|_| {
            println!("preparing");
            loop {
                std::thread::park();
            }
        });
        let _ = supervisor.build().start();
    }
    let (dog, dir) = (Watchdog::new(""), TempDir::new().unwrap());
    let mut dies = Process::start(test, "dies", dir.path());
    dies.says("preparing");
    (dog, dir, dies)
}

#[test]
fn of_two_chiefs_the_second_is_told_who_is_the_first() {
    const TEST: &str = "chief::of_two_chiefs_the_second_is_told_who_is_the_first";
    let (_dog, dir, mut first) = beside_a_chief(TEST);
    let second = counting(dir.path()).build();
    let error = second.start().unwrap_err();
    assert!(matches!(&error, SuperviseError::SecondChief { process, .. } if *process == Some(first.id())));
    assert!(error.to_string().contains("Chief::Elect"), "{error}");
    // The lock goes with the process, however that ends.
    first.kill();
    let session = second.start().unwrap();
    assert_eq!((session.state().get(), session.restored_from().unwrap().step), (5, 5));
    second.stop().unwrap();
}

/// Many at once, in threads, over and over: there is never more than one.
#[test]
fn of_many_that_would_be_chief_at_once_exactly_one_is() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    for _ in 0..10 {
        let barrier = Arc::new(std::sync::Barrier::new(4));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (barrier, dir) = (barrier.clone(), dir.path().to_owned());
                std::thread::spawn(move || {
                    let supervisor = counting(&dir).build();
                    barrier.wait();
                    let started = supervisor.start().map(drop);
                    barrier.wait();
                    match started {
                        Ok(()) => supervisor.stop().map(|()| true).unwrap(),
                        Err(SuperviseError::SecondChief { .. }) => false,
                        Err(error) => panic!("{error:?}"),
                    }
                })
            })
            .collect();
        let chiefs = threads.into_iter().filter_map(|thread| thread.join().unwrap().then_some(())).count();
        assert_eq!(chiefs, 1);
    }
}

#[test]
fn of_those_that_elect_one_is_chief_and_the_others_wait_for_it() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let elected: Vec<_> = (0..3)
        .map(|_| {
            let supervisor = counting(dir.path()).chief(Chief::Elect).build();
            let session = supervisor.start().unwrap();
            (supervisor, session)
        })
        .collect();
    let is_chief: Vec<_> = elected.iter().map(|(_, session)| session.is_chief()).collect();
    assert_eq!(is_chief, [true, false, false]);
    // The clean stop of the chief is that of the job.
    elected[0].0.stop().unwrap();
    for (supervisor, session) in &elected[1..] {
        session.wait_for_stop().unwrap();
        supervisor.stop().unwrap();
    }
}

#[test]
fn the_death_of_the_chief_ends_the_others_with_an_error_that_says_so() {
    const TEST: &str = "chief::the_death_of_the_chief_ends_the_others_with_an_error_that_says_so";
    let (_dog, dir, chief) = beside_a_chief(TEST);
    // No process looks by itself in that time: the kernel reports the death.
    let supervisor = counting(dir.path()).chief(Chief::No).look_every(LONG).build();
    let error = supervisor.run(|session| {
        assert!(!session.is_chief());
        assert_eq!((session.state().get(), session.steps().get()), (5, 5));
        kill_process(Pid::from_child(&chief.child), Signal::KILL)?;
        // Wherever it waits.
        Ok(forebear::sync::Event::new().wait()?)
    });
    let error = error.unwrap_err();
    let died = error.failure().unwrap().downcast_ref::<ChiefDied>().unwrap_or_else(|| panic!("{error:?}"));
    assert_eq!((died.process, died.dir.as_path()), (chief.id(), dir.path()));
}

#[test]
fn the_death_of_an_elected_chief_makes_another_one_chief_where_it_stands() {
    const TEST: &str = "chief::the_death_of_an_elected_chief_makes_another_one_chief_where_it_stands";
    let (_dog, dir, mut chief) = beside_a_chief(TEST);
    let warnings = Warnings::default();
    let both: Vec<_> = (0..2)
        .map(|_| {
            let builder = counting(dir.path()).chief(Chief::Elect).look_every(LONG);
            let supervisor = builder.on_warning(warnings.hook()).build();
            let session = supervisor.start().unwrap();
            (supervisor, session)
        })
        .collect();
    both.iter().for_each(|(_, session)| session.steps().set(6));
    chief.kill();
    until(|| both.iter().any(|(_, session)| session.is_chief()));
    let (new, left): (Vec<_>, Vec<_>) = both.into_iter().partition(|(_, session)| session.is_chief());
    assert_eq!((new.len(), left.len()), (1, 1));
    let ((new, session), (left, waits)) = (&new[0], &left[0]);
    // It serves, and its state is what is saved.
    until(|| steps(dir.path())[0] == 6 && session.event_file().is_some());
    assert!(warnings.have("takes its place"));
    assert!(!waits.should_stop());
    new.stop().unwrap();
    waits.wait_for_stop().unwrap();
    left.stop().unwrap();
}

#[test]
fn a_process_may_go_on_without_the_chief_until_another_one_comes() {
    const TEST: &str = "chief::a_process_may_go_on_without_the_chief_until_another_one_comes";
    let (_dog, dir, mut first) = beside_a_chief(TEST);
    let supervisor = counting(dir.path()).chief(Chief::No).when_chief_dies(ChiefDeath::GoOn).build();
    let session = supervisor.start().unwrap();
    first.kill();
    let mut second = Process::start(TEST, "chief", dir.path());
    second.says("at work");
    second.kill();
    assert!(!session.coordinator().wait_for_stop_timeout(MS * 5).unwrap());
    supervisor.stop().unwrap();
}

#[test]
fn who_waits_for_a_chief_that_dies_while_it_prepares_is_told_and_waits_for_the_next() {
    const TEST: &str =
        "chief::who_waits_for_a_chief_that_dies_while_it_prepares_is_told_and_waits_for_the_next";
    let (_dog, dir, mut dies) = beside_one_that_prepares(TEST);
    let (told, tells) = mpsc::channel();
    let place = dir.path().to_owned();
    let waits = std::thread::spawn(move || {
        let told = std::sync::Mutex::new(told);
        let supervisor = counting(&place).chief(Chief::No).look_every(LONG);
        let supervisor =
            supervisor.on_warning(move |text| told.lock().unwrap().send(text.to_owned()).unwrap());
        let supervisor = supervisor.build();
        let step = supervisor.start().unwrap().steps().get();
        supervisor.stop().unwrap();
        step
    });
    assert!(tells.recv().unwrap().contains("prepares the state"));
    dies.kill();
    assert!(tells.recv().unwrap().contains("has ended without a clean stop"));
    let mut next = Process::start(TEST, "next", dir.path());
    next.says("at work");
    assert!([0, 5].contains(&waits.join().unwrap()));
}

#[test]
fn an_elector_takes_the_place_of_a_chief_that_dies_while_it_prepares() {
    const TEST: &str = "chief::an_elector_takes_the_place_of_a_chief_that_dies_while_it_prepares";
    let (_dog, dir, dies) = beside_one_that_prepares(TEST);
    let pid = Pid::from_child(&dies.child);
    let supervisor = counting(dir.path()).chief(Chief::Elect).look_every(LONG).init(|sum| Ok(sum.set(9)));
    // Killed once this one waits for it.
    let supervisor =
        supervisor.on_warning(move |_| kill_process(pid, Signal::KILL).unwrap_or_default()).build();
    let session = supervisor.start().unwrap();
    assert!(session.is_chief() && session.state().get() == 9);
    supervisor.stop().unwrap();
}

/// Its worker is held, so it sees nothing of the death, nor of the chief that comes and ends the job.
#[test]
fn a_process_that_has_missed_the_life_of_the_next_chief_ends_with_it() {
    const TEST: &str = "chief::a_process_that_has_missed_the_life_of_the_next_chief_ends_with_it";
    let (_dog, dir, mut chief) = beside_a_chief(TEST);
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
    let late = counting(dir.path()).chief(Chief::Elect).coordinator(&coordinator).look_every(LONG).build();
    let session = late.start().unwrap();
    let held = hold_workers(&runtime);
    chief.kill();
    counting(dir.path()).build().run(|_| Ok(())).unwrap();
    held.release();
    session.wait_for_stop().unwrap();
    assert!(!session.is_chief());
    late.stop().unwrap();
}

// ---- kill -9, over and over ----------------------------------------------------------------------------------------------------

/// The state is the list of steps that were made, so that a step that is made twice, or left out, shows.
fn job(dir: &Path) -> Supervisor<Snapshot<Vec<u64>>> {
    let checkpoints = Checkpoints::open(dir).unwrap().keep(3);
    quiet(Supervisor::builder(Snapshot::new(1, Vec::new())))
        .dir(dir)
        .checkpoints(checkpoints)
        .save_every(MS)
        .on_warning(|text| panic!("{text}"))
        .build()
}

/// `kill -9` at random moments: the job goes on at the newest step that was reported saved, or at a later one, and no step is made twice.
#[test]
fn a_supervised_job_that_is_killed_goes_on_at_its_newest_checkpoint() {
    const TEST: &str = "chief::a_supervised_job_that_is_killed_goes_on_at_its_newest_checkpoint";
    if let Some((dir, _)) = other(TEST) {
        let supervisor = job(&dir);
        supervisor
            .run(|session| {
                loop {
                    for _ in 0..50 {
                        let step = session.steps().get();
                        session.step(|made| made.update(|made| made.push(step)))?;
                    }
                    println!("saved {}", session.save_now()?.step);
                }
                #[expect(unreachable_code, reason = "it says what the block returns")]
                Ok(())
            })
            .unwrap();
    }
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let mut random = Random::new(18);
    let mut newest = 0;
    for kill in 0..kills(12) {
        let after = Duration::from_micros(random.below(100_000) as u64);
        let said =
            kill_after(TEST, &[("ROLE", "job".as_ref()), ("DIRECTORY", dir.path().as_os_str())], after);
        newest = said.numbers("saved ").last().copied().unwrap_or(0).max(newest);
        let state = Arc::new(Snapshot::new(1, Vec::<u64>::new()));
        let restored = Checkpoints::open(dir.path()).unwrap().restore(&state).unwrap();
        let step = restored.map_or(0, |restored| restored.step);
        assert!(step >= newest, "kill {kill}: {newest} was reported, {step} is there");
        assert!(state.get().into_iter().eq(0..step), "kill {kill}: each step once, in order");
        newest = step;
    }
    // And it can be ended in order.
    job(dir.path()).run(|session| Ok(assert_eq!(session.steps().get(), newest))).unwrap();
}

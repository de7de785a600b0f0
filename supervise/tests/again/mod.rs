//! A test of this program, run once more in a process of its own, which may be killed at a random moment.

#![allow(dead_code, reason = "every test program uses a part of it")]

use std::ffi::OsStr;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Starts the test of this name alone, with these environment variables. Its output comes through pipes.
pub(crate) fn again(test: &str, variables: &[(&str, &OsStr)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("FOREBEAR_TEST_CHILD", test)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What a killed process has written to its standard output.
pub(crate) struct Said(String);

impl Said {
    /// The numbers that stand behind this word at the ends of lines. The first line begins with words of the test harness.
    pub(crate) fn numbers(&self, word: &str) -> Vec<u64> {
        let number = |line: &str| line.split_once(word)?.1.trim().parse().ok();
        self.0.lines().filter_map(number).collect()
    }
}

/// Starts the test [`again`], and sends SIGKILL to the process after this time. Panics if the process has panicked before.
pub(crate) fn kill_after(test: &str, variables: &[(&str, &OsStr)], time: Duration) -> Said {
    let mut child = again(test, variables);
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    // By the clock and not after a number of steps: so the kill may come anywhere within one.
    let killer = thread::spawn(move || {
        thread::park_timeout(time);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    let (mut said, mut complaint) = (String::new(), String::new());
    let _ = out.read_to_string(&mut said);
    killer.join().unwrap();
    let _ = err.read_to_string(&mut complaint);
    assert!(!complaint.contains("panicked"), "{complaint}");
    Said(said)
}

/// Kills so many processes that save one step after the other, each at a time that `time` draws.
///
/// Such a process writes `tries N` before it saves step N, and `saved N` after that. `restored` restores, checks the state, and answers its step (0: no checkpoint). After each kill
/// that is the newest step that was reported saved, or one that was tried after it.
///
/// Answers the newest step, and how many saves were tried that no process reported as done.
pub(crate) fn kill_saves(
    test: &str,
    variables: &[(&str, &OsStr)],
    kills: u32,
    mut time: impl FnMut() -> Duration,
    restored: impl Fn() -> u64,
) -> (u64, usize) {
    let (mut newest, mut unreported) = (0, 0);
    for kill in 0..kills {
        let seed = kill.to_string();
        let variables = [variables, &[("FOREBEAR_TEST_SEED", OsStr::new(&seed))]].concat();
        let said = kill_after(test, &variables, time());
        let (tried, saved) = (said.numbers("tries "), said.numbers("saved "));
        unreported += tried.len() - saved.len();
        let [tried, saved] = [tried, saved].map(|steps| steps.last().copied().unwrap_or(newest));
        let found = restored();
        assert!(
            (saved..=tried).contains(&found),
            "kill {kill}: {saved} was reported, {tried} was tried, {found} is there"
        );
        newest = found;
    }
    (newest, unreported)
}

/// How many processes a test kills: 500 with `FOREBEAR_SOAK=1`, else as many as it says.
pub(crate) fn kills(otherwise: u32) -> u32 {
    if std::env::var_os("FOREBEAR_SOAK").is_some() { 500 } else { otherwise }
}

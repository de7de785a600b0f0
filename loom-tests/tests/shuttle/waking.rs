//! Waiters of every kind, and workers that sleep and are woken.

use std::time::Duration;

use forebear_loom_tests::roam;
use forebear_runtime::{Request, WaitError, join, scope, spawn};

use crate::support::{finish, pause, runtime, steps, thread};

/// One request is waited for by requests on all workers, by foreign threads, and by one whose time may be up before.
#[test]
fn all_kinds_of_waiters_of_one_request_are_woken() {
    roam(2, &["timed out", "in time"], |answers| {
        let runtime = runtime(3);
        let target = runtime.enter(|| {
            Request::new(|| {
                pause(200);
                7
            })
        });
        let inside = [0, 1, 2].map(|n| {
            let target = target.clone();
            runtime.spawn(move || if n == 0 { target.take().unwrap_or(7) } else { *target.wait().unwrap() })
        });
        let outside = [true, false].map(|timed| {
            let target = target.clone();
            thread(move || {
                let time = if timed { 120 } else { 1_000_000 };
                target.wait_timeout(Duration::from_micros(time)).copied()
            })
        });
        for request in inside {
            assert_eq!(request.take().unwrap(), 7);
        }
        let [timed, other] = outside.map(|one| one.join().unwrap());
        assert_eq!(other.unwrap(), 7);
        answers.note(match timed {
            Ok(7) => "in time",
            Err(WaitError::TimedOut) => "timed out",
            other => panic!("{other:?}"),
        });
        finish(&runtime);
    });
}

/// Forks, scopes and children, on three workers that steal from each other, begun from two threads.
#[test]
fn what_is_forked_is_joined_wherever_it_was_run() {
    fn sum(depth: u32) -> u64 {
        if depth == 0 {
            return 1;
        }
        let (a, b) = join(
            || sum(depth - 1),
            || {
                steps(1);
                sum(depth - 1)
            },
        );
        a + b
    }
    roam(3, &["8 and 4"], |answers| {
        let runtime = runtime(3);
        let other = thread({
            let runtime = runtime.clone();
            move || {
                runtime.run(|| {
                    scope(|s| {
                        let jobs = [0, 1, 2].map(|_| s.spawn(|| steps(2)));
                        jobs.iter().for_each(|job| job.wait().copied().unwrap());
                    });
                    spawn(|| sum(2)).take().unwrap()
                })
            }
        });
        assert_eq!(runtime.run(|| sum(3)), 8);
        assert_eq!(other.join().unwrap(), 4);
        answers.note("8 and 4");
        finish(&runtime);
    });
}

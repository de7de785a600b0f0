//! The jobs of a scope: they are marked together, and may wait for the job that failed or for the scope.

use super::*;

#[test]
fn a_scope_of_a_thread_that_is_stopped_marks_all_jobs_before_it_ends_any() {
    on_each(|runtime| {
        runtime.enter(|| {
            let (captures, place, ends) = waits_for();
            let (_completer, gate) = Request::<()>::completer("gate");
            let began = Flag::new();
            scope(|s| {
                let job = Request::builder().after(&gate).spawn_in(s, move || drop(captures));
                let up = began.clone();
                let second = s.try_spawn(move || {
                    up.raise();
                    until_cancelled()
                });
                place.set(second).unwrap();
                began.wait();
                s.cancel();
                until(|| job.is_done());
            });
            assert_eq!(ends.get(), 1);
        });
    });
}

/// A job of a plain thread's scope fails when the body is over. That cancels another job, which has not begun, and whose captures wait for the one that
/// fails.
#[test]
fn what_a_failing_job_cancels_may_wait_for_that_job() {
    on_each_of(&[1], |runtime| {
        let (captures, place, ends) = waits_for();
        let (began, go) = (Flag::new(), Flag::new());
        thread::scope(|threads| {
            let (up, goes) = (began.clone(), go.clone());
            let body = || {
                try_scope(|s| {
                    let fails = s.try_spawn(move || -> Result<(), Error> {
                        up.raise();
                        hold_thread_until(|| goes.is_up());
                        Err(std::fmt::Error.into())
                    });
                    began.wait();
                    place.set(fails).unwrap();
                    drop(s.spawn(move || drop(captures)));
                    Ok(())
                })
            };
            let opener = thread::Builder::new().name("opener".into());
            let opener = opener.spawn_scoped(threads, || runtime.enter(body)).unwrap();
            until(|| runtime.dump().threads.iter().any(|thread| thread.name == "opener"));
            go.raise();
            assert!(opener.joined().unwrap().is_err());
        });
        assert_eq!(ends.get(), 1);
    });
}

/// Its destructor waits for a request.
#[derive(Debug)]
struct ErrorWaitsFor(#[expect(dead_code, reason = "for its destructor")] WaitsFor);

impl std::fmt::Display for ErrorWaitsFor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("waits")
    }
}

impl std::error::Error for ErrorWaitsFor {}

/// The last job of a scope ends, which ends the header of its parent, a job of another scope that has failed. What that has failed with waits for the
/// request whose scope it is.
#[test]
fn an_error_that_goes_with_the_last_job_of_a_scope_may_wait_for_the_scope() {
    on_each_of(&[1, 2, 4], |runtime| {
        let (error, place, ends) = waits_for();
        let opener = Request::builder().name("opener").own_stack().on(runtime).build(move || {
            let answer = try_scope(|outer| {
                drop(outer.spawn(move || {
                    let (began, over) = (Flag::new(), Flag::new());
                    let (up, down) = (began.clone(), over.clone());
                    let answer = try_scope(|inner| {
                        drop(inner.try_spawn(move || -> Result<(), Error> {
                            drop(outer.spawn(move || {
                                up.raise();
                                down.wait();
                            }));
                            began.wait();
                            Err(ErrorWaitsFor(error).into())
                        }));
                        Ok(())
                    });
                    assert!(matches!(&answer, Err(WaitError::Failed(_))));
                    drop(answer);
                    over.raise();
                }));
                Ok(())
            });
            // The child of the job that has failed is cancelled for that.
            assert!(matches!(answer, Err(WaitError::Cancelled)));
        });
        place.set(opener.clone()).unwrap();
        opener.submit();
        opener.wait().unwrap();
        // The error goes with a header, which another worker may have returned to the one that made it. That one may sleep until the runtime ends.
        runtime.shutdown(Duration::from_secs(60)).unwrap();
        assert_eq!(ends.get(), 1);
    });
}

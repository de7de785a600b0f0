//! Cycles through waits for any one of several: found if all of them lead back, and only then.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use forebear::sync::Mutex as Lock;
use forebear::{Cycle, Request, RequestSet, Runtime, State, wait_first};

use super::support::{on_each, on_each_of, until};
use super::{Known, WORKERS, assert_goes_round, cycle, make};

fn asleep(request: &Request<()>) {
    until(|| request.state() == State::Suspended);
}

/// Waits by a set for one request. Answers the cycle that this then tells of.
fn by_set(member: &Request<()>) -> Option<Cycle> {
    let (_, request) = RequestSet::from_iter([member.clone()]).wait_next().unwrap().unwrap();
    cycle(request.wait())
}

/// A request that waits for `first`, and a request that waits for it by a set; the set's begins last if `last`.
fn pair(runtime: &Runtime, last: bool) -> (Vec<Request<()>>, Arc<Mutex<Vec<Cycle>>>) {
    let (known, told) = (Known::new(), Arc::new(Mutex::new(Vec::new())));
    let by_a_set = {
        let (known, told) = (known.clone(), told.clone());
        make(runtime, "by set", move || {
            if last {
                asleep(known.get(1));
            }
            let answer = by_set(known.get(1));
            told.lock().unwrap().extend(answer);
        })
    };
    let waits = {
        let (known, told) = (known.clone(), told.clone());
        make(runtime, "waits", move || {
            if !last {
                asleep(known.get(0));
            }
            let answer = cycle(known.get(0).wait());
            told.lock().unwrap().extend(answer);
        })
    };
    known.set(&[by_a_set.clone(), waits.clone()]);
    (vec![by_a_set, waits], told)
}

/// One that is found shows that a survey has seen all that stood before.
fn survey(runtime: &Runtime) {
    let (pair, told) = pair(runtime, true);
    pair.iter().for_each(|request| _ = request.submit());
    until(|| pair.iter().all(Request::is_done));
    assert_eq!(told.lock().unwrap().len(), 1);
}

#[test]
fn a_cycle_through_a_set_is_found_whoever_closes_it() {
    on_each(|runtime| {
        for last in [true, false] {
            let (pair, told) = pair(runtime, last);
            pair.iter().for_each(|request| _ = request.submit());
            pair.iter().for_each(|request| request.wait().copied().unwrap());
            let told = told.lock().unwrap();
            assert_eq!(told.len(), 1, "{last}");
            assert_goes_round(&told[0], &["by set", "waits"]);
        }
    });
}

/// Two members wait for who waits for the first of them, one through a lock of his.
#[test]
fn if_all_members_lead_back_it_is_a_cycle() {
    on_each_of(&WORKERS, |runtime| {
        let (known, lock) = (Known::new(), Arc::new(Lock::new(())));
        let (told, answers) = channel();
        let first = {
            let (known, lock) = (known.clone(), lock.clone());
            make(runtime, "first", move || {
                let held = lock.lock();
                known.get(1).submit();
                known.get(2).submit();
                assert!(wait_first([known.get(1), known.get(2)]).unwrap().is_some());
                drop(held);
            })
        };
        let by_lock = {
            let lock = lock.clone();
            make(runtime, "by lock", move || drop(lock.lock()))
        };
        let by_wait = {
            let known = known.clone();
            make(runtime, "by wait", move || {
                asleep(known.get(1));
                told.send(cycle(known.get(0).wait())).unwrap();
            })
        };
        known.set(&[first.clone(), by_lock.clone(), by_wait.clone()]);
        first.submit();
        first.wait().unwrap();
        by_lock.wait().unwrap();
        assert_goes_round(&answers.recv().unwrap().unwrap(), &["first", "by wait"]);
    });
}

#[test]
fn if_one_member_can_still_end_there_is_no_cycle() {
    on_each_of(&WORKERS, |runtime| {
        let (known, told) = (Known::new(), Arc::new(Mutex::new(Vec::new())));
        let (completer, answer) = runtime.enter(|| Request::<()>::completer("answer"));
        let (gate, opened) = channel();
        let first = {
            let (known, answer) = (known.clone(), answer.clone());
            make(runtime, "first", move || {
                let mut set = RequestSet::from_iter([known.get(1).clone(), answer]);
                let (number, _) = set.wait_next().unwrap().unwrap();
                gate.send(number).unwrap();
            })
        };
        let second = {
            let (known, told) = (known.clone(), told.clone());
            make(runtime, "second", move || {
                let answer = cycle(known.get(0).wait());
                told.lock().unwrap().extend(answer);
            })
        };
        known.set(&[first.clone(), second.clone()]);
        first.submit();
        second.submit();
        asleep(&first);
        asleep(&second);
        survey(runtime);
        assert!(!first.is_done() && !second.is_done());
        completer.complete(()).unwrap();
        let numbers: &Receiver<usize> = &opened;
        assert_eq!(numbers.recv().unwrap(), 1);
        second.wait().unwrap();
        assert!(told.lock().unwrap().is_empty());
    });
}

#[test]
fn a_wait_of_a_set_with_a_limit_is_in_no_cycle() {
    on_each_of(&WORKERS, |runtime| {
        let (known, told) = (Known::new(), Arc::new(Mutex::new(Vec::new())));
        let first = {
            let known = known.clone();
            make(runtime, "first", move || {
                let mut set = RequestSet::from_iter([known.get(1).clone()]);
                asleep(known.get(1));
                assert!(set.wait_next_timeout(Duration::from_millis(20)).is_err());
            })
        };
        let second = {
            let (known, told) = (known.clone(), told.clone());
            make(runtime, "second", move || {
                let answer = cycle(known.get(0).wait());
                told.lock().unwrap().extend(answer);
            })
        };
        known.set(&[first.clone(), second.clone()]);
        first.submit();
        second.submit();
        survey(runtime);
        first.wait().unwrap();
        second.wait().unwrap();
        assert!(told.lock().unwrap().is_empty());
    });
}

/// Each waits for the other by a set. A set cannot be told, so a member comes out of one, and who asks that one is.
#[test]
fn of_two_sets_one_gives_a_member_whose_answer_is_the_cycle() {
    on_each(|runtime| {
        let (known, told) = (Known::new(), Arc::new(Mutex::new(Vec::new())));
        let [a, b] = [("a", 1), ("b", 0)].map(|(name, other)| {
            let (known, told) = (known.clone(), told.clone());
            make(runtime, name, move || {
                let answer = by_set(known.get(other));
                told.lock().unwrap().extend(answer);
            })
        });
        known.set(&[a.clone(), b.clone()]);
        a.submit();
        b.submit();
        a.wait().unwrap();
        b.wait().unwrap();
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 1);
        assert_goes_round(&told[0], &["a", "b"]);
    });
}

/// As with two sets: one of the waits ends though nothing has ended, and who asks what it has answered is told why.
#[test]
fn of_two_waits_for_the_first_one_ends_and_what_it_answers_tells_the_cycle() {
    on_each(|runtime| {
        let (known, told) = (Known::new(), Arc::new(Mutex::new(Vec::new())));
        let [a, b] = [("a", 1), ("b", 0)].map(|(name, other)| {
            let (known, told) = (known.clone(), told.clone());
            make(runtime, name, move || {
                let others = [known.get(other)];
                let first = wait_first(others).unwrap().expect("there is one");
                let early = !others[first].is_done();
                told.lock().unwrap().push((early, cycle(others[first].wait())));
            })
        });
        known.set(&[a.clone(), b.clone()]);
        a.submit();
        b.submit();
        a.wait().unwrap();
        b.wait().unwrap();
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 2);
        let (early, over): (Vec<_>, Vec<_>) = told.iter().partition(|(early, _)| *early);
        assert!(matches!(over[..], [(false, None)]), "{told:?}");
        let [(true, Some(cycle))] = &early[..] else { panic!("{told:?}") };
        assert_goes_round(cycle, &["a", "b"]);
    });
}

/// A wait for the first of two that includes the caller answers the caller, whose wait for itself is refused.
#[test]
fn a_wait_for_the_first_of_the_caller_and_another_answers_the_caller() {
    on_each_of(&WORKERS, |runtime| {
        let known = Known::new();
        let (completer, never) = runtime.enter(|| Request::<()>::completer("never"));
        let (told, answers) = channel();
        let me = {
            let known = known.clone();
            make(runtime, "me", move || {
                let first = wait_first([&never, known.get(0)]).unwrap();
                told.send((first, cycle(known.get(0).wait()))).unwrap();
            })
        };
        known.set(std::slice::from_ref(&me));
        me.submit().wait().unwrap();
        let (first, cycle) = answers.recv().unwrap();
        assert_eq!(first, Some(1));
        assert_goes_round(&cycle.unwrap(), &["me"]);
        drop(completer);
    });
}

/// What a set waits for has not started: it is after a request that waits for the set's.
#[test]
fn a_cycle_through_a_set_and_what_is_declared_is_found() {
    on_each_of(&WORKERS, |runtime| {
        runtime.enter(|| {
            let known = Arc::new(OnceLock::<Request<()>>::new());
            let (told, answers) = channel();
            let later = known.clone();
            let input = Request::builder().name("input").own_stack().build(move || {
                until(|| later.get().is_some_and(|by_set| by_set.state() == State::Suspended));
                told.send(cycle(later.get().unwrap().wait())).unwrap();
            });
            let after = Request::builder().name("after").then(&input, |()| ());
            let by_set = Request::builder().name("by set").own_stack().build(move || {
                assert_eq!(wait_first([&after]).unwrap(), Some(0));
            });
            known.set(by_set.clone()).unwrap();
            by_set.submit();
            assert_goes_round(&answers.recv().unwrap().unwrap(), &["input", "by set", "after"]);
            by_set.wait().unwrap();
            input.wait().unwrap();
        });
    });
}

//! Where dependents run, and who may run them.

use std::collections::HashMap;
use std::sync::{Arc, Barrier};

use forebear::{Request, then_all};

use crate::cancelling::{self, asleep};
use crate::support::order::{Gate, Log, root};
use crate::support::{Flag, on_each_of};

/// Each holds its thread until as many run as there are workers, so each worker runs an even share.
#[test]
fn consumers_of_one_input_made_by_one_request_run_on_all_workers() {
    on_each_of(&[2, 4, 8], |runtime| {
        let gate = Gate::new(runtime);
        let input = gate.request.clone();
        let workers = runtime.workers();
        let meet = Arc::new(Barrier::new(workers));
        let waits = Flag::new();
        let up = waits.clone();
        let consumers = runtime.spawn(move || {
            let consumers: Vec<_> = (0..64)
                .map(|_| {
                    let meet = meet.clone();
                    input.then(move |()| {
                        meet.wait();
                    })
                })
                .collect();
            consumers.iter().for_each(|consumer| _ = consumer.submit());
            up.raise();
            consumers.iter().for_each(|consumer| _ = consumer.wait().unwrap());
            let mut shares = HashMap::<_, usize>::new();
            for consumer in &consumers {
                *shares.entry(consumer.assigned_worker().unwrap()).or_default() += 1;
            }
            shares
        });
        waits.wait();
        gate.open();
        let shares = consumers.take().unwrap();
        assert_eq!(shares.len(), workers);
        assert!(shares.values().all(|&share| share <= 64 / workers + 1), "{shares:?}");
    });
}

#[test]
fn a_wait_runs_what_has_not_started_on_its_own_stack() {
    on_each_of(&[1], |runtime| {
        runtime.run(|| {
            let before = forebear::Request::current().unwrap();
            let name = move || forebear::Request::current().unwrap().name().to_owned();
            let a = Request::builder().name("a").build(name);
            let b = Request::builder().name("b").then(&a, move |a| format!("{a}{}", name()));
            let c = then_all((&a, &b), |(a, b)| format!("{a}{b}"));
            let suspended = runtime.metrics().live_stacks;
            assert_eq!(c.wait().unwrap(), "aab");
            assert_eq!(runtime.metrics().live_stacks, suspended, "no stack but the waiter's");
            drop(before);
        });
    });
}

#[test]
fn it_is_as_urgent_as_its_waiter_and_so_is_what_it_is_after() {
    use forebear::Priority;
    on_each_of(&[1], |runtime| {
        let log = Log::default();
        let (started, open) = (Flag::new(), Flag::new());
        let (up, on) = (started.clone(), open.clone());
        let holder = runtime.spawn(move || {
            up.raise();
            while !on.is_up() {
                std::thread::yield_now();
            }
        });
        started.wait();
        let noted = |name: &'static str| {
            let log = log.clone();
            move || log.note(name)
        };
        runtime.enter(|| {
            let background = || Request::builder().priority(Priority::BACKGROUND).own_stack();
            let input = background().build(noted("input"));
            let dependent = background().name("dependent").then(&input, {
                let noted = noted("dependent");
                move |()| noted()
            });
            let other = background().build(noted("other"));
            other.submit();
            let normal = Request::builder().own_stack().build(noted("normal"));
            dependent.submit();
            let wants = dependent.clone();
            let urgent = Request::builder()
                .priority(Priority::URGENT)
                .own_stack()
                .try_build(move || Ok(wants.wait().copied()?));
            urgent.submit();
            normal.submit();
            open.raise();
            normal.wait().unwrap();
            urgent.wait().unwrap();
            other.wait().unwrap();
        });
        holder.wait().unwrap();
        log.check(&["input", "dependent", "normal", "other"]);
    });
}

#[test]
fn a_dump_shows_the_edge() {
    on_each_of(&[1, 2], |runtime| {
        let mut gate = cancelling::Gate::new(runtime);
        let opened = gate.request();
        let input = root(runtime).name("input").spawn(move || opened.wait().copied().unwrap());
        asleep(&input);
        let dependent = runtime.enter(|| Request::builder().name("dependent").then(&input, |()| ()));
        dependent.submit();
        let last =
            runtime.enter(|| Request::builder().name("last").after(&input).after(&dependent).spawn(|| ()));
        let dump = runtime.dump();
        let seen =
            dump.requests.iter().find(|seen| seen.name == "dependent").unwrap_or_else(|| panic!("{dump}"));
        let wait = seen.waits_for.as_ref().unwrap_or_else(|| panic!("{dump}"));
        assert_eq!(wait.owners[0].name(), "input", "{dump}");
        assert!(dump.to_string().contains("request `input` and 1 more, declared"), "{dump}");
        gate.open();
        last.wait().unwrap();
    });
}

//! Random sequences of stops, reports, joins and clears, against a model of a few lines.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::fmt;
use std::time::Duration;

use forebear_supervise::{Coordinator, EndOfInput, JoinError, JoinOptions, Member};
use proptest::prelude::*;
use support::Watchdog;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbered(usize);

impl fmt::Display for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}", self.0)
    }
}

impl std::error::Error for Numbered {}

#[derive(Debug, Clone, Copy)]
enum Step {
    Stop,
    Report,
    ReportClean,
    Enlist,
    /// The worker of this number ends, counted from the first that is there.
    End(usize),
    /// Without waiting: the present workers are stragglers.
    Join {
        ignores: bool,
    },
    Clear,
    Ask,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Stop),
        3 => Just(Step::Report),
        1 => Just(Step::ReportClean),
        3 => Just(Step::Enlist),
        3 => (0_usize..4).prop_map(Step::End),
        3 => any::<bool>().prop_map(|ignores| Step::Join { ignores }),
        2 => Just(Step::Clear),
        2 => Just(Step::Ask),
    ];
    prop::collection::vec(step, 1..60)
}

/// What a coordinator should answer.
#[derive(Default)]
struct Model {
    stopped: bool,
    joined: bool,
    first: Option<usize>,
    /// How many came after it.
    also: usize,
    /// The names of the workers that a join waits for.
    members: Vec<usize>,
}

impl Model {
    fn report(&mut self, n: usize) -> bool {
        if self.joined {
            return false;
        }
        match self.first {
            None if self.stopped => {}
            None => (self.first, self.stopped) = (Some(n), true),
            Some(_) => self.also = (self.also + 1).min(16),
        }
        true
    }
}

fn number(failure: &forebear::Failure) -> usize {
    failure.downcast_ref::<Numbered>().expect("one of ours").0
}

fn run(steps: &[Step]) {
    let coordinator = Coordinator::builder().on_unhandled_failure(|_| ()).on_warning(|_| ()).build().unwrap();
    let mut model = Model::default();
    let mut members: Vec<(usize, Member)> = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        match *step {
            Step::Stop => {
                coordinator.request_stop();
                model.stopped = true;
            }
            Step::Report => assert_eq!(coordinator.report(Numbered(n)).is_ok(), model.report(n)),
            Step::ReportClean => {
                coordinator.report(EndOfInput).unwrap();
                model.stopped = true;
            }
            Step::Enlist => {
                members.push((n, coordinator.enlist(n.to_string())));
                model.members.push(n);
            }
            Step::End(at) => {
                if !members.is_empty() {
                    let (gone, member) = members.remove(at % members.len());
                    drop(member);
                    model.members.retain(|member| *member != gone);
                }
            }
            Step::Join { ignores } => {
                if !model.stopped && !model.members.is_empty() {
                    continue; // it would wait
                }
                let mut options = JoinOptions::new().grace(Duration::ZERO);
                if ignores {
                    options = options.ignore_stragglers();
                }
                let answer = coordinator.join_with(options);
                let names: Vec<String> = model.members.drain(..).map(|member| member.to_string()).collect();
                let told = |stragglers: &[forebear_supervise::Straggler]| {
                    let told: Vec<_> = stragglers.iter().map(|straggler| straggler.name.clone()).collect();
                    assert_eq!(told, names);
                };
                match (&answer, model.first) {
                    (Err(JoinError::Failed { failure, also, stragglers, .. }), Some(first)) => {
                        assert_eq!((number(failure), also.len()), (first, model.also));
                        told(stragglers);
                    }
                    (Err(JoinError::Stragglers { stragglers, .. }), None) if !ignores => {
                        assert!(!stragglers.is_empty());
                        told(stragglers);
                    }
                    (Ok(()), None) => assert!(ignores || names.is_empty()),
                    _ => panic!("{answer:?}, where the first error is {:?}", model.first),
                }
                model.joined = true;
            }
            Step::Clear => {
                coordinator.clear_stop();
                (model.stopped, model.joined, model.first, model.also) = (false, false, None, 0);
            }
            Step::Ask => {}
        }
        assert_eq!(coordinator.should_stop(), model.stopped);
        assert_eq!(coordinator.joined(), model.joined);
        assert_eq!(coordinator.wait_for_stop_timeout(Duration::ZERO).unwrap(), model.stopped);
        if matches!(step, Step::Ask) {
            assert_eq!(coordinator.requested_error().map(|failure| number(&failure)), model.first);
        }
        let names: Vec<String> = model.members.iter().map(ToString::to_string).collect();
        assert_eq!(coordinator.workers(), names);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_stops_reports_joins_and_clears_does_what_a_model_says(steps in steps()) {
        let _dog = Watchdog::new("");
        run(&steps);
    }
}

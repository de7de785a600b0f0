//! The goals, as ratios of figures of one round, and the verdicts on them.

/// How a figure has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A figure of a candidate, against that of another one in the same round if there is one.
#[derive(Debug)]
pub(crate) struct Goal {
    pub(crate) row: &'static str,
    pub(crate) says: &'static str,
    pub(crate) figure: &'static str,
    pub(crate) of: &'static str,
    pub(crate) against: Option<&'static str>,
    pub(crate) bound: Bound,
}

const fn rate(says: &'static str, of: &'static str, against: &'static str, least: f64) -> Goal {
    Goal { row: "many", says, figure: "a second", of, against: Some(against), bound: Bound::AtLeast(least) }
}

const fn worst(says: &'static str, of: &'static str, most: f64) -> Goal {
    Goal { row: "killed", says, figure: "worst ms", of, against: None, bound: Bound::AtMost(most) }
}

pub(crate) const ALL: &[Goal] = &[
    rate("LocalProcesses has 50 x Dask's rate", "LocalProcesses", "Dask", 50.0),
    rate("LocalProcesses has half the rate of the socket pair", "LocalProcesses", "socket pair", 0.5),
    rate(
        "LocalProcesses has half the rate of the socket pair, one message a call",
        "LocalProcesses",
        "socket pair, one message a call",
        0.5,
    ),
    rate("Nats has 0.7 x the rate of JetStream, with records", "Nats", "JetStream, results kept", 0.7),
    rate("Nats has 0.7 x the rate of JetStream, without records", "Nats", "JetStream", 0.7),
    rate("Nats has 3 x Celery's rate", "Nats", "Celery", 3.0),
    worst("a task of LocalProcesses runs elsewhere within 5 ms", "LocalProcesses", 5.0),
    worst("a task of Nats whose worker's end was seen runs elsewhere within 50 ms", "Nats", 50.0),
    worst("unseen, with a lease of 2 s, within 2,200 ms", "Nats, unseen, lease 2 s", 2_200.0),
    worst("unseen, with a lease of 15 s, within 16,500 ms", "Nats, unseen, lease 15 s", 16_500.0),
];

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        }
    }
}

/// A verdict needs so many rounds.
pub(crate) const ROUNDS: usize = 7;

impl Goal {
    /// The verdict on the values of all rounds, and whether the goal falls short.
    pub(crate) fn judge(&self, values: &[f64]) -> (String, bool) {
        let Some(median) = median(values) else { return ("not measured".into(), false) };
        let holds = self.bound.holds(median);
        if values.len() < ROUNDS {
            let would = if holds { "would be reached" } else { "would fall short" };
            return (format!("open after {} of {ROUNDS} rounds, {would}", values.len()), false);
        }
        (if holds { "reached" } else { "**falls short**" }.into(), !holds)
    }
}

/// The middle one; of an even number the lower of two.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_seven_rounds_and_goes_by_their_median() {
        let goal = rate("twice", "a", "b", 2.0);
        assert_eq!(goal.judge(&[]), ("not measured".into(), false));
        assert_eq!(goal.judge(&[1.0; 6]), ("open after 6 of 7 rounds, would fall short".into(), false));
        assert_eq!(goal.judge(&[1.0; 7]), ("**falls short**".into(), true));
        assert_eq!(goal.judge(&[1.0, 1.0, 1.0, 2.0, 9.0, 9.0, 9.0]), ("reached".into(), false));
        assert!(!worst("soon", "a", 5.0).judge(&[5.0; 7]).1 && worst("soon", "a", 5.0).judge(&[5.1; 7]).1);
    }

    #[test]
    fn no_goal_is_listed_twice() {
        let says: std::collections::BTreeSet<_> = ALL.iter().map(|goal| goal.says).collect();
        assert_eq!(says.len(), ALL.len());
    }

    #[test]
    fn a_goal_is_about_candidates_that_there_are() {
        let there = |row, name| crate::candidates::ALL.iter().any(|one| one.row == row && one.name == name);
        for goal in ALL {
            assert!(
                there(goal.row, goal.of) && goal.against.is_none_or(|other| there(goal.row, other)),
                "{goal:?}"
            );
        }
    }
}

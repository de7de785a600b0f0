//! All rounds together: the table of a row, and the verdict on its goals.
//!
//! `median` is the median over the rounds of each process's median: what a user gets on a machine that does other work too. A
//! ratio is the median of the rounds' own ratios, and decides. The two processes of a round run one right after the other, so a
//! machine that has changed its pace has changed it for both. `p10` is the lowest over the rounds of each process's tenth
//! percentile. It is nearer to what a runtime does on an idle machine, but it is a minimum, which falls with more rounds.
//! `worst` is the highest of the processes' medians: it shows a state that only few processes are in.

use std::fmt::Write as _;

use crate::claim::{Bound, Claim, Goal, Measure, PROCESSES, Row};
use crate::measure::{Sample, median, quantile};

/// The rounds that a verdict needs.
pub const ROUNDS: usize = 7;

/// What a runtime did in the rounds of one row.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// A sample for each process that came to its end, and of which round it was.
    pub samples: Vec<(usize, Sample)>,
    /// The last line of each process that did not end well.
    pub died: Vec<String>,
}

impl Tally {
    /// The rounds, and what each process comes to.
    fn reduced(&self, measure: Measure, share: f64) -> impl Iterator<Item = (usize, f64)> {
        let of = move |sample: &Sample| match measure {
            Measure::PerOp if share == 0.5 => Some(median(&sample.per_op)),
            Measure::PerOp => Some(quantile(&sample.per_op, share)),
            Measure::Figure(name) => {
                sample.figures.iter().find(|(it, _)| *it == name).map(|(_, value)| *value)
            }
        };
        self.samples.iter().filter_map(move |(round, sample)| Some((*round, of(sample)?)))
    }

    /// The median over the rounds; NaN without any.
    #[must_use]
    pub fn median(&self, measure: Measure) -> f64 {
        median(&ascending(self.reduced(measure, 0.5).map(|it| it.1)))
    }

    /// The quiet figure; NaN without any round.
    #[must_use]
    pub fn p10(&self, measure: Measure) -> f64 {
        quantile(&ascending(self.reduced(measure, 0.1).map(|it| it.1)), 0.0)
    }

    /// The median of the slowest process; NaN without any.
    #[must_use]
    pub fn worst(&self, measure: Measure) -> f64 {
        self.reduced(measure, 0.5).map(|it| it.1).fold(f64::NAN, f64::max)
    }

    /// This as so many times another: the median of the ratios of the rounds that have both; NaN without any.
    #[must_use]
    pub fn times(&self, other: &Tally, measure: Measure) -> f64 {
        let others: Vec<_> = other.reduced(measure, 0.5).collect();
        let same = |round| others.iter().find(|(it, _)| *it == round).map(|(_, value)| *value);
        let ratios = self.reduced(measure, 0.5).filter_map(|(round, value)| Some(value / same(round)?));
        median(&ascending(ratios))
    }
}

fn ascending(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The runtimes of a row, in its order, with their tallies.
pub type Tallies = Vec<(&'static str, Tally)>;

/// The verdict on a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Reached.
    Pass,
    /// Not reached, or forebear did not finish.
    FallsShort,
    /// One of the two sides is missing, or there were fewer than [`ROUNDS`] rounds.
    Open,
}

fn find<'a>(tallies: &'a Tallies, name: &str) -> Option<&'a Tally> {
    let (_, tally) = tallies.iter().find(|(it, _)| *it == name)?;
    (!tally.samples.is_empty() || !tally.died.is_empty()).then_some(tally)
}

/// The two sides of a goal, if both were measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// forebear's median, or that of its ratios where the goal is one,
    pub median: f64,
    /// its p10 in the same way,
    pub p10: f64,
    /// the quotient of the medians, where the goal is a ratio, else the median,
    pub of_medians: f64,
    /// and what it may be at most.
    pub most: f64,
}

/// The two sides of a goal; `None` if one is missing, or if it is only to complete.
#[must_use]
pub fn compare(goal: &Goal, tallies: &Tallies) -> Option<Compared> {
    let measured = |name| find(tallies, name).filter(|tally| !tally.samples.is_empty());
    let own = measured(goal.of)?;
    let (median, p10) = (own.median(goal.measure), own.p10(goal.measure));
    match goal.bound {
        Bound::Completes => None,
        Bound::AtMost(most) => Some(Compared { median, p10, of_medians: median, most }),
        Bound::Spread(most) => {
            let times = own.worst(goal.measure) / median;
            Some(Compared { median: times, p10: own.worst(goal.measure) / p10, of_medians: times, most })
        }
        Bound::Times(most, rival) => {
            let other = measured(rival)?;
            let of_medians = median / other.median(goal.measure);
            let (median, p10) = (own.times(other, goal.measure), p10 / other.p10(goal.measure));
            Some(Compared { median, p10, of_medians, most })
        }
    }
}

/// What a goal asks for, in words.
#[must_use]
pub fn wanted(goal: &Goal) -> String {
    let what = match goal.measure {
        Measure::PerOp => "time",
        Measure::Figure(name) => name,
    };
    let what = if goal.of == "forebear" { what.into() } else { format!("{}: {what}", goal.of) };
    match goal.bound {
        Bound::Times(times, rival) => format!("{what} <= {times} x {rival}"),
        Bound::AtMost(most) => format!("{what} <= {most}"),
        Bound::Completes => "completes".into(),
        Bound::Spread(times) => format!("{what} of the slowest process <= {times} x the median"),
    }
}

/// The verdict on one goal, and the line that says why.
#[must_use]
pub fn judge(goal: &Goal, tallies: &Tallies) -> (Verdict, String) {
    let wanted = wanted(goal);
    let Some(own) = find(tallies, goal.of) else {
        return (Verdict::Open, format!("{wanted}: OPEN, {} was not measured", goal.of));
    };
    let needed = if matches!(goal.bound, Bound::Spread(_)) { PROCESSES } else { ROUNDS };
    if !own.died.is_empty() {
        return (Verdict::FallsShort, format!("{wanted}: FALLS SHORT, died: {}", own.died[0]));
    }
    let (reached, line) = match (goal.bound, compare(goal, tallies)) {
        (Bound::Completes, _) => (true, wanted),
        (_, Some(Compared { median, p10, most, .. })) => {
            (median <= most, format!("{wanted}: {} (p10 {})", digits(median), digits(p10)))
        }
        (Bound::Times(_, rival), None) => {
            return (Verdict::Open, format!("{wanted}: OPEN, {rival} was not measured"));
        }
        (Bound::AtMost(_) | Bound::Spread(_), None) => return (Verdict::Open, format!("{wanted}: OPEN")),
    };
    match own.samples.len() {
        rounds if rounds < needed => {
            let so_far = if reached { "would pass" } else { "would fall short" };
            (Verdict::Open, format!("{line}: OPEN after {rounds} of {needed} rounds, {so_far}"))
        }
        _ if reached => (Verdict::Pass, format!("{line}: PASS")),
        _ => (Verdict::FallsShort, format!("{line}: FALLS SHORT")),
    }
}

/// Three significant digits at least, and all in front of the point.
#[must_use]
pub fn digits(value: f64) -> String {
    match value {
        value if value.is_nan() => "-".into(),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// The figures that are points of forebear's curve, `at 10` and so on, drawn; nothing if there are none.
fn curve(tallies: &Tallies) -> String {
    const WIDTH: f64 = 40.0;
    let sample = find(tallies, "forebear").and_then(|own| Some((own, own.samples.last()?)));
    let Some((own, sample)) = sample else { return String::new() };
    let names = sample.1.figures.iter().map(|figure| figure.0).filter(|name| name.starts_with("at "));
    let points: Vec<_> = names.map(|name| (name, own.median(Measure::Figure(name)))).collect();
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let line = |(name, value): &(&str, f64)| {
        format!("{name:>8} {:>8}  {}\n", digits(*value), "#".repeat((value / most * WIDTH).round() as usize))
    };
    let lines: String = points.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\n```text\n{lines}```\n") }
}

/// The row's table, in Markdown, and its verdicts.
#[must_use]
pub fn table(claim: &Claim, row: &Row, workers: usize, tallies: &Tallies) -> (String, Vec<Verdict>) {
    let (unit, nanoseconds) = claim.unit;
    let s = if workers == 1 { "" } else { "s" };
    let mut text =
        format!("### {}: {}, {workers} worker{s} ({unit} a {})\n\n", claim.name, row.name, claim.op);
    text += "| runtime | rounds | median | p10 | worst | forebear / it | p10 / p10 | also |\n|---|--:|--:|--:|--:|--:|--:|---|\n";
    let own = find(tallies, "forebear");
    for (name, tally) in tallies {
        if tally.samples.is_empty() && tally.died.is_empty() {
            continue;
        }
        let (middle, quiet) = (tally.median(Measure::PerOp), tally.p10(Measure::PerOp));
        let mut also = Vec::new();
        let figures = tally.samples.last().map(|(_, sample)| &sample.figures[..]).unwrap_or_default();
        for (figure, _) in figures.iter().filter(|figure| !figure.0.starts_with("at ")) {
            also.push(format!("{figure} {}", digits(tally.median(Measure::Figure(figure)))));
        }
        if let Some(last) = tally.died.last() {
            also.push(format!("died in {} rounds: {last}", tally.died.len()));
        }
        let (ratio, quiet_ratio) = own.filter(|_| *name != "forebear").map_or((f64::NAN, f64::NAN), |own| {
            (own.times(tally, Measure::PerOp), own.p10(Measure::PerOp) / quiet)
        });
        // A String takes all that is written to it.
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            tally.samples.len(),
            digits(middle / nanoseconds),
            digits(quiet / nanoseconds),
            digits(tally.worst(Measure::PerOp) / nanoseconds),
            digits(ratio),
            digits(quiet_ratio),
            also.join(", ")
        );
    }
    text += &curve(tallies);
    let mut verdicts = Vec::new();
    for goal in row.all_goals() {
        let (verdict, line) = judge(&goal, tallies);
        let _ = write!(text, "\nGoal: {line}\n");
        verdicts.push(verdict);
    }
    (text, verdicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(own: f64, rounds: usize) -> Tallies {
        let tally = |per_op| {
            let sample = Sample { per_op: vec![per_op], figures: Vec::new() };
            Tally { samples: (0..rounds).map(|round| (round, sample.clone())).collect(), died: Vec::new() }
        };
        vec![("forebear", tally(own)), ("may", tally(10.0))]
    }

    #[test]
    fn a_ratio_is_judged_after_enough_rounds() {
        let goal = Goal::times(0.5, "may");
        assert_eq!(judge(&goal, &tallies(5.0, ROUNDS)).0, Verdict::Pass);
        assert_eq!(judge(&goal, &tallies(5.1, ROUNDS)).0, Verdict::FallsShort);
        assert_eq!(judge(&goal, &tallies(5.0, ROUNDS - 1)).0, Verdict::Open);
    }

    #[test]
    fn a_ratio_is_of_those_that_were_measured_together() {
        // The machine's pace changes after the second round, and forebear's last rounds were not held.
        let tally = |per_op: &[f64]| {
            let sample = |per_op: &f64| Sample { per_op: vec![*per_op], figures: Vec::new() };
            Tally { samples: per_op.iter().map(sample).enumerate().collect(), died: Vec::new() }
        };
        let (own, other) =
            (tally(&[5.0, 5.0, 45.0, 50.0, 50.0]), tally(&[10.0, 10.0, 100.0, 100.0, 100.0, 9.0, 9.0]));
        assert_eq!(own.times(&other, Measure::PerOp), 0.5);
        assert!(own.times(&tally(&[]), Measure::PerOp).is_nan());
        let goal = Goal::times(0.6, "may");
        let found = compare(&goal, &vec![("forebear", own), ("may", other)]).unwrap();
        assert_eq!((found.median, found.p10, found.of_medians), (0.5, 5.0 / 9.0, 4.5));
    }

    #[test]
    fn a_curve_is_drawn_to_scale() {
        let mut tallies = tallies(1.0, 1);
        assert_eq!(curve(&tallies), "");
        tallies[0].1.samples[0].1.figures = vec![("at 1", 5.0), ("at 10", 20.0), ("bytes", 3.0)];
        let drawn = curve(&tallies);
        let bars: Vec<_> = drawn.lines().map(|line| line.matches('#').count()).filter(|n| *n > 0).collect();
        assert_eq!(bars, [10, 40], "{drawn}");
    }

    #[test]
    fn a_slow_state_of_one_process_falls_short() {
        let goal = Goal::new(Measure::PerOp, Bound::Spread(3.0));
        let mut tallies = tallies(5.0, PROCESSES);
        assert_eq!(judge(&goal, &tallies).0, Verdict::Pass);
        tallies[0].1.samples[7].1.per_op = vec![16.0];
        assert_eq!(judge(&goal, &tallies).0, Verdict::FallsShort);
        tallies[0].1.samples.truncate(PROCESSES - 1);
        assert_eq!(judge(&goal, &tallies).0, Verdict::Open);
    }

    #[test]
    fn a_missing_side_leaves_the_goal_open() {
        assert_eq!(judge(&Goal::times(0.5, "tokio"), &tallies(5.0, ROUNDS)).0, Verdict::Open);
        assert_eq!(judge(&Goal::times(0.5, "may"), &Tallies::new()).0, Verdict::Open);
    }

    #[test]
    fn a_death_falls_short_however_fast_the_others_were() {
        let mut tallies = tallies(1.0, ROUNDS);
        tallies[0].1.died.push("signal 6".into());
        assert_eq!(judge(&Goal::times(0.5, "may"), &tallies).0, Verdict::FallsShort);
    }
}

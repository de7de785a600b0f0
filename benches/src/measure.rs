//! Repeats of one load in this process.

use std::time::{Duration, Instant};

use crate::load::Load;
use crate::rival::{self, Rival, Run};
use crate::work::{self, FIGURES};

/// How often a load is repeated.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Repeats continue until this much time has passed,
    pub time: Duration,
    /// but there are at least so many,
    pub at_least: usize,
    /// and at most so many.
    pub at_most: usize,
}

impl Effort {
    /// What a round of `claims` spends on one runtime in one row.
    pub const ROUND: Effort = Effort { time: Duration::from_millis(150), at_least: 3, at_most: 200 };
    /// One repeat after warming up: does it work at all?
    pub const QUICK: Effort = Effort { time: Duration::ZERO, at_least: 1, at_most: 1 };
}

/// The results of the repeats.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Nanoseconds an operation, one a repeat, in ascending order.
    pub per_op: Vec<f64>,
    /// The figures, as means over the repeats.
    pub figures: Vec<(&'static str, f64)>,
}

impl Sample {
    /// One line a value, for the way from a child process to its parent.
    #[must_use]
    pub fn to_lines(&self) -> String {
        let per_op = self.per_op.iter().map(|value| format!("op\t{value}\n"));
        let figures = self.figures.iter().map(|(name, value)| format!("figure\t{name}\t{value}\n"));
        per_op.chain(figures).collect()
    }

    /// Parses those lines, and ignores others. `None` without any sample.
    #[must_use]
    pub fn from_lines(lines: &str) -> Option<Sample> {
        let mut sample = Sample::default();
        for line in lines.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["op", value] => sample.per_op.push(value.parse().ok()?),
                ["figure", name, value] => {
                    let name = FIGURES.iter().find(|known| **known == name)?;
                    sample.figures.push((name, value.parse().ok()?));
                }
                _ => {}
            }
        }
        (!sample.per_op.is_empty()).then_some(sample)
    }
}

/// Runs the load once; `None` if this runtime cannot do it.
///
/// # Panics
///
/// If the value is wrong: then work was skipped or done twice.
pub fn once(rival: &dyn Rival, load: Load) -> Option<Run> {
    let expected = load.expected();
    if load.unsettles() {
        rival.run(Load::SETTLING)?;
    }
    let run = rival::run(rival, load)?;
    assert_eq!(run.value, expected, "{rival:?} did not do the work of {load:?}");
    Some(run)
}

/// Spreads the workers and runs the load once to warm up (unless it is single shot), then repeatedly; `None` if this runtime cannot do it.
///
/// # Panics
///
/// As [`once`].
pub fn sample(rival: &dyn Rival, load: Load, effort: Effort) -> Option<Sample> {
    let mut sample = Sample::default();
    let (at_least, at_most) = if load.is_single_shot() {
        (1, 1)
    } else {
        // A runtime without the means for arms goes unsettled.
        let _ = rival.run(Load::SETTLING);
        once(rival, load)?;
        (effort.at_least, effort.at_most)
    };
    let (start, cpu) = (Instant::now(), work::cpu());
    while sample.per_op.len() < at_least || (sample.per_op.len() < at_most && start.elapsed() < effort.time) {
        let run = once(rival, load)?;
        sample.per_op.push(run.elapsed.as_nanos() as f64 / load.ops() as f64);
        sample.figures.resize(run.figures.len(), ("", 0.0));
        for (sum, (name, value)) in sample.figures.iter_mut().zip(run.figures) {
            *sum = (name, sum.1 + value);
        }
    }
    let repeats = sample.per_op.len() as f64;
    sample.figures.iter_mut().for_each(|(_, sum)| *sum /= repeats);
    if !load.unsettles() && !matches!(load, Load::Growth { .. } | Load::Idle { .. }) {
        let cpu = work::cpu().saturating_sub(cpu);
        sample.figures.push((work::CPU, cpu.as_nanos() as f64 / (repeats * load.ops() as f64)));
    }
    sample.per_op.sort_by(f64::total_cmp);
    Some(sample)
}

/// The value below which the given share of an ascending list lies; NaN for an empty one.
#[must_use]
pub fn quantile(ascending: &[f64], share: f64) -> f64 {
    match ascending.len() {
        0 => f64::NAN,
        n => ascending[((n - 1) as f64 * share).round() as usize],
    }
}

/// The middle of an ascending list, or the mean of the two in the middle; NaN for an empty one.
#[must_use]
pub fn median(ascending: &[f64]) -> f64 {
    match ascending.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => ascending[n / 2],
        n => f64::midpoint(ascending[n / 2 - 1], ascending[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_comes_back_from_its_lines() {
        let sample = Sample { per_op: vec![1.5, 2.25], figures: vec![(FIGURES[0], 4264.0)] };
        assert_eq!(Sample::from_lines(&sample.to_lines()), Some(sample));
        assert_eq!(Sample::from_lines("thread 'main' panicked"), None);
    }

    #[test]
    fn median_and_quantile_of_short_lists() {
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.1), 1.0);
        let hundred: Vec<f64> = (0..101).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.1), 10.0);
    }
}

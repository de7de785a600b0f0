//! The plots of a run: ratios to rivals as bars, distances to goals as dots, growth as curves.
//!
//! Ratios are drawn on a logarithmic axis, on which a half and the double are as far from 1.

use crate::claim::{Bound, Claim, Goal, Measure, Row};
use crate::report::{self, Tallies, Tally, Verdict, digits};
use crate::svg::{Anchor, CURVES, Svg};

/// A row of a claim for one number of workers, with its figures.
#[derive(Debug)]
pub struct Cell {
    /// The claim,
    pub claim: &'static Claim,
    /// the row,
    pub row: &'static Row,
    /// the number of workers,
    pub workers: usize,
    /// and who did what.
    pub tallies: Tallies,
}

impl Cell {
    /// "by join, 2 workers".
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}, {} worker{}", self.row.name, self.workers, if self.workers == 1 { "" } else { "s" })
    }

    fn measured(&self) -> impl Iterator<Item = (&'static str, &Tally)> {
        self.tallies.iter().filter(|(_, it)| !it.samples.is_empty()).map(|(name, it)| (*name, it))
    }

    fn own(&self) -> Option<&Tally> {
        self.measured().find(|(name, _)| *name == "forebear").map(|(_, own)| own)
    }

    fn rivals(&self) -> impl Iterator<Item = (&'static str, &Tally)> {
        self.measured().filter(|(name, _)| *name != "forebear")
    }
}

const WIDTH: f64 = 760.0;
/// Between which the axes run.
const LEFT: f64 = 190.0;
const RIGHT: f64 = 590.0;
const BAR: f64 = 14.0;
const STEP: f64 = 20.0;

/// A logarithmic axis from left to right, and where 1, 2 and 5 of each decade are.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Over all the values, and over 1.
    fn over(values: impl Iterator<Item = f64>) -> Scale {
        let (mut low, mut high) = (1.0, 1.0);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (low, high) = (f64::min(low, value), f64::max(high, value));
        }
        Scale { low: low / 1.15, high: high * 1.15 }
    }

    fn x(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }

    /// Powers of ten, and what is between them if there is room.
    fn ticks(&self) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let of: &[f64] = if self.high / self.low > 1e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = decades.flat_map(|decade| of.iter().map(move |digit| digit * 10_f64.powi(decade)));
        all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }

    /// The grid behind, and the numbers and the name below.
    fn draw(&self, svg: &mut Svg, (top, bottom): (f64, f64), name: &str) {
        for tick in self.ticks() {
            let class = if (tick - 1.0).abs() < 1e-9 { "axis" } else { "grid" };
            svg.line((self.x(tick), top), (self.x(tick), bottom), class);
            let rounded = (tick * 1e6).round() / 1e6;
            svg.text((self.x(tick), bottom + 15.0), Anchor::Middle, "faint", rounded);
        }
        svg.text((f64::midpoint(LEFT, RIGHT), bottom + 32.0), Anchor::Middle, "faint", name);
    }
}

/// How many times forebear's time each rival takes, row by row; `None` where there is no rival.
///
/// The bar is the median of the rounds' ratios. The short line across it is the ratio of the p10. A thick line shows how far a goal
/// wants that rival's bar to reach.
#[must_use]
pub fn bars(claim: &Claim, cells: &[&Cell]) -> Option<String> {
    let cells: Vec<_> =
        cells.iter().filter(|cell| cell.own().is_some() && cell.rivals().next().is_some()).collect();
    if cells.is_empty() {
        return None;
    }
    let ratios = |cell: &Cell, rival: &Tally| {
        let ratios = |own: &Tally| {
            (1.0 / own.times(rival, Measure::PerOp), rival.p10(Measure::PerOp) / own.p10(Measure::PerOp))
        };
        cell.own().map_or((f64::NAN, f64::NAN), ratios)
    };
    let wants = |goal: &Goal, name: &str| match goal.bound {
        Bound::Times(times, rival) if goal.measure == Measure::PerOp && rival == name => Some(1.0 / times),
        _ => None,
    };
    let values = cells.iter().flat_map(|cell| {
        let marks =
            cell.rivals().flat_map(|(name, _)| cell.row.goals.iter().filter_map(move |it| wants(it, name)));
        let both = cell.rivals().flat_map(|(_, rival)| <[f64; 2]>::from(ratios(cell, rival)));
        both.chain(marks).collect::<Vec<_>>()
    });
    let scale = Scale::over(values);
    let (unit, nanoseconds) = claim.unit;
    let told = |time: f64| format!("{} {unit}", digits(time / nanoseconds));
    let mut svg = Svg::new();
    svg.text(
        (16.0, 26.0),
        Anchor::Start,
        "title",
        format!("{}: a {} takes so many times forebear's time", claim.name, claim.op),
    );
    svg.text((16.0, 44.0), Anchor::Start, "faint", "to the right of 1: slower than forebear");
    let top = 56.0;
    let lines: usize = cells.iter().map(|cell| cell.rivals().count() + 1).sum();
    let bottom = top + lines as f64 * STEP + cells.len() as f64 * 10.0;
    scale.draw(&mut svg, (top, bottom), "as many times forebear's time (logarithmic)");
    let mut y = top;
    for cell in cells {
        let own = cell.own().map_or(f64::NAN, |own| own.median(Measure::PerOp));
        svg.text((16.0, y + 17.0), Anchor::Start, "head", cell.title());
        svg.text((WIDTH - 16.0, y + 17.0), Anchor::End, "head", format!("forebear {}", told(own)));
        svg.dot((scale.x(1.0), y + 13.0), 4.0, "own");
        y += STEP;
        for (name, rival) in cell.rivals() {
            let (ratio, quiet) = ratios(cell, rival);
            svg.text((LEFT - 8.0, y + 12.0), Anchor::End, "", name);
            svg.bar(
                (scale.x(1.0), scale.x(ratio)),
                (y + 1.0, BAR),
                if ratio < 1.0 { "ahead" } else { "rival" },
            );
            svg.line((scale.x(quiet), y + 1.0), (scale.x(quiet), y + 1.0 + BAR), "quiet");
            for wanted in cell.row.goals.iter().filter_map(|goal| wants(goal, name)) {
                svg.line((scale.x(wanted), y - 2.0), (scale.x(wanted), y + 4.0 + BAR), "goal");
            }
            let label = format!("{} x, {}", digits(ratio), told(rival.median(Measure::PerOp)));
            svg.text((WIDTH - 16.0, y + 12.0), Anchor::End, "faint", label);
            y += STEP;
        }
        y += 10.0;
    }
    let below = bottom + 52.0;
    svg.line((LEFT, below - 10.0), (LEFT, below + 2.0), "quiet");
    svg.text((LEFT + 8.0, below), Anchor::Start, "faint", "ratio of the p10");
    svg.line((LEFT + 130.0, below - 10.0), (LEFT + 130.0, below + 2.0), "goal");
    svg.text((LEFT + 138.0, below), Anchor::Start, "faint", "goal: the bar reaches it");
    Some(
        svg.finish(
            (WIDTH, below + 14.0),
            &format!("{}: rivals' times as multiples of forebear's", claim.name),
        ),
    )
}

/// How far each goal is, as a share of what it allows: 1 is the goal, less is better. `None` without any figure.
#[must_use]
pub fn goals(cells: &[Cell]) -> Option<String> {
    let all: Vec<_> = cells
        .iter()
        .flat_map(|cell| cell.row.all_goals().into_iter().map(move |goal| (cell, goal)))
        // A goal of nothing at all has no share.
        .filter_map(|(cell, goal)| Some((cell, goal, report::compare(&goal, &cell.tallies)?)))
        .filter(|(_, _, it)| it.most > 0.0 && it.median > 0.0)
        .collect();
    if all.is_empty() {
        return None;
    }
    let scale = Scale::over(all.iter().flat_map(|(_, _, it)| [it.median / it.most, it.p10 / it.most]));
    let mut svg = Svg::new();
    svg.text((16.0, 26.0), Anchor::Start, "title", "The goals: what was measured / what is allowed");
    svg.text(
        (16.0, 44.0),
        Anchor::Start,
        "faint",
        "up to 1: reached. Dot: median. Line: p10. Grey: too few rounds",
    );
    let top = 56.0;
    let bottom = top + all.len() as f64 * STEP * 1.9 + 4.0;
    scale.draw(&mut svg, (top, bottom), "measured / allowed (logarithmic)");
    let mut y = top;
    for (cell, goal, it) in all {
        let (share, quiet) = (it.median / it.most, it.p10 / it.most);
        svg.text((16.0, y + 14.0), Anchor::Start, "head", cell.claim.name);
        svg.text((16.0, y + 29.0), Anchor::Start, "faint", cell.title());
        svg.text((WIDTH - 16.0, y + 14.0), Anchor::End, "", report::wanted(&goal));
        svg.text((WIDTH - 16.0, y + 29.0), Anchor::End, "faint", digits(it.median));
        svg.line((scale.x(quiet), y + 11.0), (scale.x(quiet), y + 27.0), "quiet");
        let class = match report::judge(&goal, &cell.tallies).0 {
            Verdict::Pass => "good",
            Verdict::FallsShort => "bad",
            Verdict::Open => "rival",
        };
        svg.dot((scale.x(share), y + 19.0), 6.0, class);
        y += STEP * 1.9;
    }
    Some(svg.finish((WIDTH, bottom + 44.0), "How far each goal is reached"))
}

/// A curve: its runtime, and its points: the growing number and the time.
type Line = (String, Vec<(f64, f64)>);

/// The number of which a figure tells: `at 16`, `at 10^3`.
fn point(name: &str) -> Option<f64> {
    let number = name.strip_prefix("at ")?;
    match number.split_once('^') {
        Some((base, power)) => Some(base.parse::<f64>().ok()?.powi(power.parse().ok()?)),
        None => number.parse().ok(),
    }
}

fn lines(cells: &[&&Cell]) -> Vec<Line> {
    let mut lines = Vec::new();
    for cell in cells {
        for (name, tally) in cell.measured() {
            let names = tally.samples.last().map(|(_, sample)| &sample.figures[..]).unwrap_or_default();
            let at = |figure: &&'static str| Some((point(figure)?, tally.median(Measure::Figure(figure))));
            let points: Vec<_> = names.iter().filter_map(|(figure, _)| at(figure)).collect();
            if points.len() > 1 {
                let who = if cells.len() > 1 { format!("{name}, {}", cell.workers) } else { name.into() };
                lines.push((who, points));
            }
        }
    }
    lines
}

/// The time for an operation over the growing number, a panel for each row; `None` where no row has such figures.
#[must_use]
pub fn curves(claim: &Claim, cells: &[&Cell]) -> Option<String> {
    const PANEL: (f64, f64) = (370.0, 230.0);
    let mut panels = Vec::new();
    for row in claim.rows {
        let of_row: Vec<_> = cells.iter().filter(|cell| cell.row.name == row.name).collect();
        let lines = lines(&of_row);
        if !lines.is_empty() {
            panels.push((row.name, lines));
        }
    }
    if panels.is_empty() {
        return None;
    }
    let (unit, nanoseconds) = claim.unit;
    let mut svg = Svg::new();
    svg.text((16.0, 26.0), Anchor::Start, "title", format!("{}: {unit} a {}", claim.name, claim.op));
    for (number, (name, lines)) in panels.iter().enumerate() {
        let (left, top) = (10.0 + PANEL.0 * (number % 2) as f64, 40.0 + PANEL.1 * (number / 2) as f64);
        let (from, to) = ((left + 50.0, left + PANEL.0 - 16.0), (top + 40.0, top + PANEL.1 - 34.0));
        let points = || lines.iter().flat_map(|(_, points)| points);
        let first = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let last = points().map(|point| point.0).fold(first * 1.01, f64::max);
        let most = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max) * 1.1;
        let x = |value: f64| from.0 + (value / first).ln() / (last / first).ln() * (from.1 - from.0);
        let y = |value: f64| to.1 - value / most * (to.1 - to.0);
        svg.text((left + 6.0, top + 16.0), Anchor::Start, "head", name);
        for quarter in 0..=4 {
            let value = most / 4.0 * f64::from(quarter);
            svg.line((from.0, y(value)), (from.1, y(value)), if quarter == 0 { "axis" } else { "grid" });
            let told = if quarter == 0 { "0".into() } else { digits(value / nanoseconds) };
            svg.text((from.0 - 6.0, y(value) + 4.0), Anchor::End, "faint", told);
        }
        let mut along: Vec<f64> = points().map(|point| point.0).collect();
        along.sort_by(f64::total_cmp);
        along.dedup();
        for value in along {
            svg.text((x(value), to.1 + 16.0), Anchor::Middle, "faint", count(value));
        }
        for (index, (who, points)) in lines.iter().enumerate() {
            let class = format!("curve c{}", index % CURVES);
            svg.curve(&points.iter().map(|(a, b)| (x(*a), y(*b))).collect::<Vec<_>>(), &class);
            let at = from.0 + 100.0 * index as f64;
            svg.line((at, top + 28.0), (at + 14.0, top + 28.0), &class);
            svg.text((at + 18.0, top + 32.0), Anchor::Start, "faint", who);
        }
    }
    let height = 50.0 + PANEL.1 * panels.len().div_ceil(2) as f64;
    Some(svg.finish((WIDTH, height), &format!("{}: how it grows", claim.name)))
}

/// "1k", "1M".
fn count(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims;
    use crate::measure::Sample;

    /// A runner, its nanoseconds, and its other figures.
    type Measured<'a> = (&'a str, f64, Vec<(&'static str, f64)>);

    fn cell(claim: &'static Claim, figures: &[Measured<'_>]) -> Cell {
        let row = &claim.rows[0];
        let tally = |of: &Measured<'_>| Tally {
            samples: (0..report::ROUNDS)
                .map(|round| (round, Sample { per_op: vec![of.1], figures: of.2.clone() }))
                .collect(),
            died: Vec::new(),
        };
        let of = |name| figures.iter().find(|it| it.0 == name).map(tally).unwrap_or_default();
        let tallies = row.runners.iter().map(|runner| (runner.name, of(runner.name))).collect();
        Cell { claim, row, workers: 1, tallies }
    }

    #[test]
    fn a_bar_ends_where_its_ratio_is() {
        let cell = cell(
            &claims::switch::CLAIM,
            &[("forebear", 4.0, vec![]), ("may", 40.0, vec![]), ("tokio", 2.0, vec![])],
        );
        let drawn = bars(&claims::switch::CLAIM, &[&cell]).expect("there are rivals");
        let scale = Scale::over([10.0, 0.5].into_iter());
        let bar = |ratio: f64, class| {
            let (a, b) = (scale.x(1.0).min(scale.x(ratio)), (scale.x(1.0) - scale.x(ratio)).abs());
            (format!(r#"<rect x="{a:.1}""#), format!(r#"width="{b:.1}" height="14.0" class="{class}"/>"#))
        };
        for (start, end) in [bar(10.0, "rival"), bar(0.5, "ahead")] {
            assert!(
                drawn.lines().any(|line| line.starts_with(&start) && line.ends_with(&end)),
                "{start} {end}:\n{drawn}"
            );
        }
        // The goal 0.15 x may wants may's bar to reach 6.67.
        let x = scale.x(1.0 / 0.15);
        assert!(
            drawn
                .lines()
                .any(|line| line.starts_with(&format!(r#"<line x1="{x:.1}""#)) && line.contains("goal"))
        );
        assert!(drawn.contains(">10.0 x, 40.0 ns<") && drawn.contains(">forebear 4.00 ns<"));
    }

    #[test]
    fn nobody_to_compare_with_is_no_plot() {
        let alone = cell(&claims::switch::CLAIM, &[("forebear", 4.0, vec![])]);
        assert_eq!(bars(&claims::switch::CLAIM, &[&alone]), None);
        assert_eq!(curves(&claims::switch::CLAIM, &[&alone]), None);
        assert_eq!(goals(&[alone]), None);
    }

    #[test]
    fn a_goal_reached_is_left_of_one() {
        let reached = cell(&claims::switch::CLAIM, &[("forebear", 4.0, vec![]), ("may", 40.0, vec![])]);
        let drawn = goals(&[reached]).expect("there is a goal");
        assert!(drawn.contains(r#"class="good""#) && !drawn.contains(r#"class="bad""#), "{drawn}");
        let missed = cell(&claims::switch::CLAIM, &[("forebear", 40.0, vec![]), ("may", 40.0, vec![])]);
        assert!(goals(&[missed]).expect("there is a goal").contains(r#"class="bad""#));
    }

    #[test]
    fn a_curve_goes_through_its_points() {
        let figures = vec![("at 1", 10.0), ("at 10^3", 20.0), ("bytes", 7.0)];
        let grown = cell(&claims::switch::CLAIM, &[("forebear", 4.0, figures)]);
        let drawn = curves(&claims::switch::CLAIM, &[&grown]).expect("there are points");
        let points = drawn.lines().find(|line| line.starts_with("<polyline")).expect("a curve");
        // Twice as high above the axis, from the left end to the right.
        assert!(points.contains(r#"points="60.0,"#) && points.contains(" 364.0,"), "{points}");
        assert!(drawn.contains(">1k<"));
    }

    #[test]
    fn ticks_are_where_their_numbers_say() {
        let scale = Scale { low: 0.4, high: 12.0 };
        assert_eq!(scale.ticks(), [0.5, 1.0, 2.0, 5.0, 10.0]);
        assert!((scale.x(0.4) - LEFT).abs() < 1e-9 && (scale.x(12.0) - RIGHT).abs() < 1e-9);
    }
}

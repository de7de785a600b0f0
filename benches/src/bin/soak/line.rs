//! Whether a line is flat.
//!
//! The first third is warm-up: free lists, depots and tables reach their size. The slope of the rest is the median of the slopes between
//! all pairs of samples (Theil and Sen), which a few outliers do not change. It says how many bytes a request leaks, and how much the
//! process has grown in that time.

use std::fmt;

/// Memory at rest over the number of requests so far.
#[derive(Debug, Default)]
pub(crate) struct Line {
    samples: Vec<(u64, u64)>,
}

/// A line with a slope up to this is flat: malloc's fragmentation varies as much.
const SHARE: f64 = 0.01;
/// Or up to this, where little memory is in use.
const BYTES: f64 = 1_048_576.0;
/// The least that a request could leave behind, its header, by one in a thousand.
const EACH: f64 = 0.144;

/// The result for the last two thirds of a line.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    /// The median.
    level: f64,
    /// The growth in that time.
    grown: f64,
    /// The growth by request.
    each: f64,
    requests: u64,
    samples: usize,
    /// The growth that is allowed beside that of any line.
    spare: u64,
}

impl Line {
    /// Adds a sample: the number of requests so far, and the bytes in use.
    pub(crate) fn add(&mut self, requests: u64, bytes: u64) {
        self.samples.push((requests, bytes));
    }

    /// `None`: there are too few samples. A growth of `spare` bytes is allowed.
    pub(crate) fn verdict(&self, spare: u64) -> Option<Verdict> {
        let late = &self.samples[self.samples.len() / 3..];
        let (first, last) = (late.first()?, late.last()?);
        let mut slopes: Vec<f64> = late
            .iter()
            .enumerate()
            .flat_map(|(at, a)| late[at + 1..].iter().map(move |b| (a, b)))
            .filter(|(a, b)| a.0 < b.0)
            .map(|(a, b)| (b.1 as f64 - a.1 as f64) / (b.0 - a.0) as f64)
            .collect();
        if late.len() < 5 || slopes.is_empty() {
            return None;
        }
        let mut bytes: Vec<f64> = late.iter().map(|sample| sample.1 as f64).collect();
        slopes.sort_by(f64::total_cmp);
        bytes.sort_by(f64::total_cmp);
        let (each, requests) = (slopes[slopes.len() / 2], last.0 - first.0);
        let grown = each * requests as f64;
        Some(Verdict { level: bytes[bytes.len() / 2], grown, each, requests, samples: late.len(), spare })
    }
}

impl Verdict {
    /// The growth is below a hundredth or a mebibyte, beside what is allowed, and by request below any leak of one in a thousand.
    pub(crate) fn is_flat(&self) -> bool {
        self.grown <= BYTES.max(self.level * SHARE) + self.spare as f64 && self.each < EACH
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {:.2} MiB at rest, {:+.3} MiB over {} requests ({:+.5} bytes each), {} samples",
            if self.is_flat() { "flat" } else { "NOT FLAT" },
            self.level / BYTES,
            self.grown / BYTES,
            self.requests,
            self.each,
            self.samples
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 20 << 20;

    fn line(of: impl Fn(u64) -> u64) -> Verdict {
        let mut line = Line::default();
        (0..60).for_each(|n| line.add(n * 1_000_000, of(n)));
        line.verdict(0).unwrap()
    }

    #[test]
    fn one_that_goes_up_and_down_is_flat_whatever_it_did_at_first() {
        let verdict = line(|n| BASE + n.min(10) * (1 << 20) + n % 7 * (1 << 18));
        assert!(verdict.is_flat(), "{verdict}");
        // A spike.
        let verdict = line(|n| BASE + if n > 57 { 100 << 20 } else { n % 3 });
        assert!(verdict.is_flat(), "{verdict}");
    }

    #[test]
    fn a_header_lost_in_a_thousand_is_not_flat() {
        let verdict = line(|n| BASE + n * 144_000 + n % 7 * (1 << 18));
        assert!(!verdict.is_flat(), "{verdict}");
    }

    #[test]
    fn a_few_samples_are_no_line() {
        let mut line = Line::default();
        (0..6).for_each(|n| line.add(n, BASE));
        assert_eq!(line.verdict(0), None);
    }
}

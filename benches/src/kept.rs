//! Raw figures, written to a file as they are measured. An interrupted run continues where it stopped, and tables and plots
//! can be made again without measuring.
//!
//! A text of lines, words between tabs:
//!
//! ```text
//! fact    NAME  VALUE                                     what was measured, on what; the last of a name counts
//! noise   ROUND  LOAD  STEAL  OTHERS                      see Noise
//! run     CLAIM  ROW  WORKERS  RUNTIME  ROUND             followed by the lines of its sample, and `over`
//! died    CLAIM  ROW  WORKERS  RUNTIME  ROUND  LAST WORDS
//! ```
//!
//! A sample without its `over` was cut off, and is ignored. So are samples of rows that no longer exist.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use crate::claim::{Claim, Row, Runner};
use crate::claims;
use crate::machine::Noise;
use crate::measure::Sample;
use crate::report::Tallies;

/// Which process it was.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The claim,
    pub claim: &'static Claim,
    /// its row,
    pub row: &'static Row,
    /// the number of workers,
    pub workers: usize,
    /// who was measured,
    pub runner: Runner,
    /// and in which round, from 0.
    pub round: usize,
}

impl Place {
    fn find(claim: &str, row: &str, workers: &str, runtime: &str, round: &str) -> Option<Place> {
        let claim = *claims::ALL.iter().find(|it| it.name == claim)?;
        let row = claim.rows.iter().find(|it| it.name == row)?;
        let runner = row.all_runners().into_iter().find(|it| it.name == runtime)?;
        Some(Place { claim, row, workers: workers.parse().ok()?, runner, round: round.parse().ok()? })
    }

    fn is_in(&self, claim: &Claim, row: &Row, workers: usize) -> bool {
        (self.claim.name, self.row.name, self.workers) == (claim.name, row.name, workers)
    }

    fn is(&self, other: &Place) -> bool {
        self.is_in(other.claim, other.row, other.workers)
            && (self.runner.name, self.round) == (other.runner.name, other.round)
    }
}

/// All that is kept.
#[derive(Debug, Default)]
pub struct Kept {
    path: Option<PathBuf>,
    facts: Vec<(String, String)>,
    noise: Vec<Noise>,
    runs: Vec<(Place, Result<Sample, String>)>,
    strays: usize,
}

impl Kept {
    /// Reads the file, if it exists, and appends what is added.
    ///
    /// # Errors
    ///
    /// If it exists and cannot be read.
    pub fn open(path: PathBuf) -> Result<Kept, String> {
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| format!("{}: {error}", path.display()))?,
        };
        Ok(Kept { path: Some(path), ..Kept::parse(&text) })
    }

    /// The entries of a text, without a file.
    #[must_use]
    pub fn parse(text: &str) -> Kept {
        let mut kept = Kept::default();
        // The run whose sample is being read.
        let mut open: Option<(Option<Place>, String)> = None;
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["run", claim, row, workers, runtime, round] => {
                    kept.strays += usize::from(open.is_some());
                    open = Some((Place::find(claim, row, workers, runtime, round), String::new()));
                }
                ["over"] => {
                    if let Some((place, lines)) = open.take() {
                        match (place, Sample::from_lines(&lines)) {
                            (Some(place), Some(sample)) => kept.runs.push((place, Ok(sample))),
                            _ => kept.strays += 1,
                        }
                    }
                }
                ["died", claim, row, workers, runtime, round, last] => {
                    match Place::find(claim, row, workers, runtime, round) {
                        Some(place) => kept.runs.push((place, Err(last.into()))),
                        None => kept.strays += 1,
                    }
                }
                ["fact", name, value] => kept.note(name.into(), value.into()),
                ["noise", round, load, steal, others] => {
                    let noise = || {
                        let (round, load) = (round.parse().ok()?, load.parse().ok()?);
                        Some(Noise { round, load, steal: steal.parse().ok()?, others: others.parse().ok()? })
                    };
                    kept.noise.extend(noise());
                }
                _ => {
                    if let Some((_, lines)) = &mut open {
                        lines.push_str(line);
                        lines.push('\n');
                    }
                }
            }
        }
        kept.strays += usize::from(open.is_some());
        kept
    }

    fn note(&mut self, name: String, value: String) {
        match self.facts.iter_mut().find(|fact| fact.0 == name) {
            Some(fact) => fact.1 = value,
            None => self.facts.push((name, value)),
        }
    }

    fn append(&self, lines: &str) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut file = OpenOptions::new().create(true).append(true).open(path);
        // After a line that was cut off, one begins anew.
        file.as_mut()
            .map_err(|error| error.to_string())
            .and_then(|file| {
                file.write_all(format!("\n{lines}").as_bytes()).map_err(|error| error.to_string())
            })
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Adds a fact. It replaces an older one of the same name.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn add_fact(&mut self, name: &str, value: &str) -> Result<(), String> {
        let (name, value) = (one_word(name), one_word(value));
        self.append(&format!("fact\t{name}\t{value}\n"))?;
        self.note(name, value);
        Ok(())
    }

    /// Adds how quiet a round was.
    ///
    /// # Errors
    ///
    /// See [`Kept::add_fact`].
    pub fn add_noise(&mut self, noise: Noise) -> Result<(), String> {
        let Noise { round, load, steal, others } = noise;
        self.append(&format!("noise\t{round}\t{load}\t{steal:.2}\t{others:.2}\n"))?;
        self.noise.push(noise);
        Ok(())
    }

    /// Adds the result of a process.
    ///
    /// # Errors
    ///
    /// See [`Kept::add_fact`].
    pub fn add(&mut self, place: Place, came: Result<Sample, String>) -> Result<(), String> {
        let Place { claim, row, workers, runner, round } = place;
        let place_of = format!("{}\t{}\t{workers}\t{}\t{round}", claim.name, row.name, runner.name);
        self.append(&match &came {
            Ok(sample) => format!("run\t{place_of}\n{}over\n", sample.to_lines()),
            Err(last) => format!("died\t{place_of}\t{}\n", one_word(last)),
        })?;
        self.runs.push((place, came));
        Ok(())
    }

    /// Whether this was measured already, or died.
    #[must_use]
    pub fn has(&self, place: &Place) -> bool {
        self.runs.iter().any(|(it, _)| it.is(place))
    }

    /// The facts of the run, in the order in which their names were first added.
    #[must_use]
    pub fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// How quiet the rounds were. An interrupted round is there more than once.
    #[must_use]
    pub fn noise(&self) -> &[Noise] {
        &self.noise
    }

    /// How many entries could not be used.
    #[must_use]
    pub fn strays(&self) -> usize {
        self.strays
    }

    /// The results of a row, by runtime.
    #[must_use]
    pub fn tallies(&self, claim: &Claim, row: &Row, workers: usize) -> Tallies {
        let mut tallies: Tallies =
            row.all_runners().iter().map(|runner| (runner.name, Default::default())).collect();
        for (place, came) in self.runs.iter().filter(|(place, _)| place.is_in(claim, row, workers)) {
            let Some((_, tally)) = tallies.iter_mut().find(|(name, _)| *name == place.runner.name) else {
                continue;
            };
            match came {
                Ok(sample) => tally.samples.push((place.round, sample.clone())),
                Err(last) => tally.died.push(last.clone()),
            }
        }
        tallies
    }
}

/// The text without tabs and line ends, which separate words and lines in the file.
fn one_word(text: &str) -> String {
    text.replace(['\t', '\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fact\tcommit\told\nfact\tcommit\tnew\nnoise\t0\t1.5\t0.25\t12\n\
        run\tswitch\tin the loop\t1\tforebear\t0\nop\t3.5\nop\t4\nover\n\
        run\tswitch\tin the loop\t1\tmay\t0\nop\t30\nrun\tswitch\tin the loop\t1\tmay\t0\nop\t36\nover\n\
        died\tswitch\tin the loop\t1\tmay\t1\tsignal 6: too bad\n\
        run\tswitch\tno such row\t1\tmay\t0\nop\t30\nover\n\
        run\tswitch\tin the loop\t1\ttokio\t0\nop\t6";

    fn place(runtime: &str, round: &str) -> Place {
        Place::find("switch", "in the loop", "1", runtime, round).expect("there is such a row")
    }

    #[test]
    fn what_is_whole_counts_and_what_was_cut_off_does_not() {
        let kept = Kept::parse(TEXT);
        assert_eq!(kept.facts(), [("commit".to_string(), "new".to_string())]);
        assert_eq!(kept.noise(), [Noise { round: 0, load: 1.5, steal: 0.25, others: 12.0 }]);
        assert!(kept.has(&place("forebear", "0")) && !kept.has(&place("forebear", "1")));
        assert!(kept.has(&place("may", "1")), "a death is an answer");
        assert!(!kept.has(&place("tokio", "0")));
        assert_eq!(kept.strays(), 3);
        let of = place("may", "0");
        let tallies = kept.tallies(of.claim, of.row, 1);
        assert_eq!(tallies[0].1.samples[0].1.per_op, [3.5, 4.0]);
        assert_eq!(
            (tallies[2].1.samples[0].1.per_op[0], &*tallies[2].1.died[0]),
            (36.0, "signal 6: too bad")
        );
    }

    #[test]
    fn what_was_added_comes_back_from_the_file() {
        let path = std::env::temp_dir().join(format!("forebear-kept-{}", std::process::id()));
        fs::write(&path, TEXT).expect("a file of our own");
        let mut kept = Kept::open(path.clone()).expect("it can be read");
        let sample = Sample { per_op: vec![1.0, 2.0], figures: vec![("bytes", 7.0)] };
        kept.add(place("tokio", "0"), Ok(sample.clone())).expect("it can be written");
        kept.add_fact("date", "to\tday").expect("it can be written");
        let again = Kept::open(path.clone()).expect("it can be read");
        fs::remove_file(path).expect("a file of our own");
        let of = place("tokio", "0");
        assert_eq!(again.tallies(of.claim, of.row, 1)[4].1.samples, [(0, sample)]);
        assert_eq!(again.facts()[1].1, "to day");
        assert_eq!(again.strays(), 3);
    }
}

//! [`Failures`]: when a worker process that has ended by itself is started again. The rule of all engines that start workers.

use std::time::Duration;

/// The first pause.
const PAUSE: Duration = Duration::from_millis(50);

/// A pause doubles so often.
const DOUBLINGS: u32 = 7;

/// While a server is away it is asked for every second or two.
const AWAY: u32 = 6;

/// A worker has to live so many times as long as the last pause, until the next end costs none.
const FACTOR: u32 = 10;

/// And at least so long.
const WHILE: Duration = Duration::from_millis(500);

/// A worker that has lived for so long is sound, also if it had nothing to do.
const SOUND: Duration = Duration::from_secs(60);

/// The life of a worker process that has ended by itself. For engines that start workers.
///
/// ```
/// use std::time::Duration;
/// use forebear_cluster::engine::Life;
///
/// let how = "exit status: 1".to_owned();
/// let life = Life { ready: Some(Duration::from_millis(1)), finished: false, busy: false, alone: false, how };
/// assert!(life.ready.is_some());
/// ```
#[derive(Clone, Debug)]
pub struct Life {
    /// For how long it was there, if it ever was ready.
    pub ready: Option<Duration>,
    /// It has finished a task.
    pub finished: bool,
    /// It had tasks in hand.
    pub busy: bool,
    /// The server was away meanwhile.
    pub alone: bool,
    /// Its exit status or signal.
    pub how: String,
}

/// The workers of one name that have ended too soon.
///
/// Two things are counted, each in a row. An end *fails* if its worker has finished no task, and had none that could be the cause. If it had one, the poison limit of the tasks judges
/// that; and an end while the server is away is excused. A life is *short* if its worker finished no task, or did not live for a while. The pauses follow from that number.
/// ```
/// use std::time::Duration;
/// use forebear_cluster::engine::Failures;
///
/// let mut failures = Failures::default();
/// assert_eq!(failures.unready(), Duration::from_millis(50));
/// assert_eq!((failures.unready(), failures.failed()), (Duration::from_millis(100), 2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    failed: u32,
    short: u32,
}

impl Failures {
    /// So many ends in a row have failed.
    #[must_use]
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Another one has ended. The pause before the next one is started.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear_cluster::engine::{Failures, Life};
    ///
    /// let how = "exit status: 1".to_owned();
    /// let life = Life { ready: Some(Duration::from_millis(1)), finished: false, busy: false, alone: false, how };
    /// let mut failures = Failures::default();
    /// assert_eq!([failures.ended(&life), failures.ended(&life)].map(|pause| pause.as_millis()), [0, 50]);
    /// assert_eq!(failures.failed(), 2);
    /// ```
    pub fn ended(&mut self, life: &Life) -> Duration {
        if life.alone && !life.finished {
            self.short = (self.short + 1).min(AWAY.max(self.short));
            return pause(self.short);
        }
        let Some(lived) = life.ready else { return self.unready() };
        let sound = lived >= SOUND;
        if sound || life.finished {
            self.failed = 0;
        } else if !life.busy {
            self.failed = self.failed.saturating_add(1);
        }
        if sound || life.finished && lived >= WHILE.max(pause(self.short) * FACTOR) {
            self.short = 0;
        }
        let pause = pause(self.short);
        self.short = self.short.saturating_add(1);
        pause
    }

    /// One could not be started, or has ended before it was ready. The pause before the next one is started.
    pub fn unready(&mut self) -> Duration {
        self.failed = self.failed.saturating_add(1);
        self.short = self.short.saturating_add(1);
        pause(self.short)
    }
}

/// The pause after so many short lives.
fn pause(short: u32) -> Duration {
    match short {
        0 => Duration::ZERO,
        short => PAUSE * (1 << (short - 1).min(DOUBLINGS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(ready: Option<u64>) -> Life {
        let ready = ready.map(Duration::from_millis);
        Life { ready, finished: false, busy: false, alone: false, how: "exit status: 1".into() }
    }

    fn lived(ready: Option<u64>, finished: bool, busy: bool) -> Life {
        Life { finished, busy, ..life(ready) }
    }

    #[test]
    fn a_worker_that_ends_again_and_again_with_nothing_to_do_fails_and_one_whose_server_is_away_does_not() {
        let mut failures = Failures::default();
        let pauses: Vec<u128> = (0..4).map(|_| failures.ended(&life(Some(1))).as_millis()).collect();
        assert_eq!((pauses, failures.failed()), (vec![0, 50, 100, 200], 4));
        failures.ended(&Life { busy: true, ..life(Some(1)) });
        assert_eq!(failures.failed(), 4, "its task is judged for that");
        let pauses: Vec<u128> =
            (0..3).map(|_| failures.ended(&Life { alone: true, ..life(None) }).as_millis()).collect();
        assert_eq!((pauses, failures.failed()), (vec![1_600; 3], 4));
        failures.ended(&Life { finished: true, ..life(Some(10)) });
        assert_eq!(failures.failed(), 0);
        assert_eq!(failures.ended(&Life { finished: true, ..life(Some(70_000)) }), Duration::ZERO);
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_are_over_after_a_life_that_was_long_enough() {
        let mut failures = Failures::default();
        let mut pauses = |life: &Life| failures.ended(life).as_millis();
        // It has finished something each time, and dies at once.
        let short = lived(Some(1), true, false);
        let doubled: Vec<u128> = (0..10).map(|_| pauses(&short)).collect();
        assert_eq!(doubled, [0, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 6_400]);
        // Its downtime stays below a tenth.
        assert_eq!(pauses(&lived(Some(59_000), true, true)), 6_400);
        assert_eq!(pauses(&lived(Some(64_000), true, true)), 0);
        assert_eq!(pauses(&lived(Some(499), true, true)), 50);
        assert_eq!(pauses(&lived(Some(501), true, true)), 100);
        assert_eq!(pauses(&lived(Some(2_000), true, true)), 0);
    }

    #[test]
    fn only_ends_without_a_task_that_could_be_the_cause_count_as_failed() {
        let mut failures = Failures::default();
        let mut failed = |life: &Life| {
            failures.ended(life);
            failures.failed
        };
        assert_eq!(failed(&lived(None, false, false)), 1);
        assert_eq!(failed(&lived(Some(1), false, false)), 2);
        assert_eq!(failed(&lived(Some(1), false, true)), 2, "its task is judged for that");
        assert_eq!(failed(&lived(Some(1), true, false)), 0);
        assert_eq!(failed(&lived(Some(1), false, false)), 1);
        assert_eq!(failed(&lived(Some(61_000), false, false)), 0, "it had nothing to do");
    }
}

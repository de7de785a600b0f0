//! [`Failures`]: when a worker process that has ended by itself is started again. `LocalProcesses` has the same rule, and tests for it.

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

/// The life of a worker process that has ended by itself.
pub(crate) struct Life {
    /// For how long it was there, if it ever was ready.
    pub(crate) ready: Option<Duration>,
    /// It has finished a task.
    pub(crate) finished: bool,
    /// It had tasks in hand.
    pub(crate) busy: bool,
    /// The server was away meanwhile.
    pub(crate) alone: bool,
    /// Its exit status or signal.
    pub(crate) how: String,
}

/// The workers of one name that have ended too soon.
///
/// Two things are counted, each in a row. An end *fails* if its worker has finished no task, and had none that could be the cause. If it had one, the poison limit of the tasks judges
/// that; and an end while the server is away is excused. A life is *short* if its worker finished no task, or did not live for a while. The pauses follow from that number.
#[derive(Default)]
pub(super) struct Failures {
    failed: u32,
    short: u32,
}

impl Failures {
    /// So many ends in a row have failed.
    pub(super) fn failed(&self) -> u32 {
        self.failed
    }

    /// Another one has ended. The pause before the next one is started.
    pub(super) fn ended(&mut self, life: &Life) -> Duration {
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
    pub(super) fn unready(&mut self) -> Duration {
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
}

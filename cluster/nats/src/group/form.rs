//! How a member waits for its round, and [`FormError`]: why none has come.

use std::fmt;
use std::time::{Duration, Instant};

use forebear::{Cancelled, TimeoutError};

use super::roll::Roll;
use super::{Round, Shared};

/// Why [`Group::form`](super::Group::form) has no round.
///
/// ```no_run
/// use forebear_cluster_nats::group::{FormError, Group, GroupOptions};
/// use std::time::Duration;
///
/// let options = GroupOptions::new("nats://127.0.0.1:4222", "training").members(2, 4);
/// let group = Group::join(options.form_timeout(Duration::from_secs(60)))?;
/// match group.form() {
///     Err(FormError::TimedOut { there, least, .. }) => eprintln!("{there} of {least} have come"),
///     other => println!("round {}", other?.number),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormError {
    /// There were too few members for as long as the [limit](super::GroupOptions::form_timeout) says, or the server was away.
    #[non_exhaustive]
    TimedOut {
        /// So many members have come, this one among them.
        there: usize,
        /// A round has so many at least.
        least: usize,
        /// The limit.
        waited: Duration,
        /// What the server or the connection said last, if this member could not read or write what the group knows.
        trouble: Option<String>,
    },
    /// The others were in a round that had no place for this member, for as long as the limit says: it was full, or a member of it was done.
    #[non_exhaustive]
    NoPlace {
        /// So many members are in the round.
        taken: usize,
        /// A round has so many at most.
        most: usize,
        /// The limit.
        waited: Duration,
    },
    /// The calling request was cancelled.
    Cancelled,
}

impl From<Cancelled> for FormError {
    fn from(_: Cancelled) -> FormError {
        FormError::Cancelled
    }
}

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormError::TimedOut { there, least, waited, trouble: None } => write!(
                f,
                "{there} of at least {least} members have come in {waited:?}: see whether the others run, and name the same server, group and `members`; or raise `form_timeout`"
            ),
            FormError::TimedOut { there, least, waited, trouble: Some(why) } => write!(
                f,
                "{there} of at least {least} members have come in {waited:?}, and the server cannot be asked: {why}; see whether it runs and can be reached"
            ),
            FormError::NoPlace { taken, most, waited } => write!(
                f,
                "the round of {taken} members, of at most {most}, had no place for this one in {waited:?}: wait again by another `form`, end one of them, have all members raise the second number of `members`, or raise `form_timeout`"
            ),
            FormError::Cancelled => f.write_str("the calling request has been cancelled"),
        }
    }
}

impl std::error::Error for FormError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FormError::TimedOut { .. } | FormError::NoPlace { .. } => None,
            FormError::Cancelled => Some(&CANCELLED),
        }
    }
}

/// What a cancelled call shows as its source.
static CANCELLED: Cancelled = Cancelled::new();

impl Shared {
    pub(super) fn form(&self) -> Result<Round, FormError> {
        let mut state = self.state.lock_or_cancelled()?;
        let end = || forebear::time::now().checked_add(self.form_timeout);
        let mut until: Option<Instant> = end();
        loop {
            if let Some(round) = self.round(&state.roll) {
                return Ok(round);
            }
            let taken = state.roll.taken();
            if taken == 0 && self.is_enough(&state.roll) && state.trouble.is_none() {
                // The gathering has its own time.
                until = end();
                self.changed.wait(&mut state)?;
                continue;
            }
            let left = until.map(|end| end.saturating_duration_since(forebear::time::now()));
            if left == Some(Duration::ZERO) {
                let (there, waited) = (state.roll.members.len(), self.form_timeout);
                return Err(match state.trouble.clone() {
                    None if taken > 0 => FormError::NoPlace { taken, most: self.most, waited },
                    trouble => FormError::TimedOut { there, least: self.least, waited, trouble },
                });
            }
            let waited = match left {
                None => self.changed.wait(&mut state).map_err(|_| TimeoutError::Cancelled),
                Some(left) => self.changed.wait_timeout(&mut state, left),
            };
            if waited == Err(TimeoutError::Cancelled) {
                return Err(FormError::Cancelled);
            }
        }
    }

    /// There are as many members as a round has to have.
    fn is_enough(&self, roll: &Roll) -> bool {
        roll.members.len() >= self.least
    }
}

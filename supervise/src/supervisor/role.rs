//! [`Chief`] and [`ChiefDeath`]: what a process is in its job, and what it does when the chief dies.

/// Whether this process is the chief of the job's directory. The chief initialises or restores the state, and writes checkpoints and summaries.
///
/// The chief holds a lock on the file `chief.lock`. The kernel releases the lock when the process ends, in whatever way.
///
/// ```
/// use forebear_supervise::{Chief, ChiefDeath, Snapshot, Supervisor};
///
/// # let dir = std::env::temp_dir().join(format!("chief-{}", std::process::id()));
/// let job = |chief| Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).chief(chief);
/// let first = job(Chief::Elect).build();
/// let begun = first.start()?; // in another process, as a rule
/// let second = job(Chief::Elect).when_chief_dies(ChiefDeath::GoOn).build();
/// assert_eq!([begun.is_chief(), second.start()?.is_chief()], [true, false]);
/// second.stop()?;
/// first.stop()?;
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), forebear_supervise::SuperviseError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chief {
    /// This process is the chief. If another process is, the start fails with [`SecondChief`](super::SuperviseError::SecondChief).
    #[default]
    Yes,
    /// This process is not the chief. It waits for the chief, and begins with what the chief has prepared: the newest checkpoint.
    No,
    /// The first process that starts becomes the chief, and the others wait for it as with `No`. When the chief dies, one of the others takes its place.
    Elect,
}

/// What a process that is not the chief does when the chief's process ends without a clean stop. A clean stop of the chief stops the others, too, except with
/// [`GoOn`](ChiefDeath::GoOn).
///
/// ```
/// use forebear_supervise::{Chief, ChiefDeath, Snapshot, Supervisor};
///
/// # let dir = std::env::temp_dir().join(format!("chief-death-{}", std::process::id()));
/// let job = |chief| Supervisor::builder(Snapshot::new(1, 0_u64)).dir(&dir).chief(chief);
/// let chief = job(Chief::Yes).build(); // in another process, as a rule
/// chief.start()?;
/// let helper = job(Chief::No).when_chief_dies(ChiefDeath::Stop).build();
/// let session = helper.start()?;
/// chief.stop()?;
/// session.wait_for_stop()?; // a clean stop, so there is no error
/// helper.stop()?;
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), forebear_supervise::SuperviseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChiefDeath {
    /// The process reports [`ChiefDied`](super::ChiefDied), which ends its job. The default with [`Chief::No`].
    Stop,
    /// One of the processes becomes the chief and continues with its own state, which is saved from then on. The default with [`Chief::Elect`]; with
    /// `Chief::No` it is the same as `Stop`.
    TakeOver,
    /// The process continues without a chief, until another one starts.
    GoOn,
}

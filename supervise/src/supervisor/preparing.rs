//! What a user's code answers while the state is prepared: [`Readiness`], and [`SessionManager`] for all of it.

use std::sync::Arc;

use forebear::Error;

use crate::{Checkpoint, Checkpoints};

/// Whether a state can be used, and if not, why not.
///
/// ```
/// use forebear_supervise::{Readiness, Snapshot, SuperviseError, Supervisor};
///
/// let supervisor = Supervisor::builder(Snapshot::new(1, Vec::<u64>::new()))
///     .on_warning(|_| ()) // there is no directory
///     .ready(|rows| match rows.get().len() {
///         0 => Readiness::NotReady("the table is empty".into()),
///         _ => Readiness::Ready,
///     })
///     .build();
/// match supervisor.run(|_| Ok(())) {
///     Err(SuperviseError::NotReady { reason, .. }) => assert!(reason.contains("the table is empty")),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The state can be used.
    Ready,
    /// The state cannot be used, for this reason. The error of a wait repeats it.
    NotReady(String),
}

/// Prepares the state in place of everything that [`SupervisorBuilder`](crate::SupervisorBuilder) knows: the restore, `init`, `local_init` and the checks. Given for closures.
///
/// ```
/// use forebear_supervise::{Prepared, Preparing, Snapshot, Supervisor};
/// use std::sync::Arc;
///
/// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
///     .session_manager(|state: &Arc<Snapshot<u64>>, _: &Preparing| {
///         state.set(7);
///         Ok(Prepared { step: 100, restored_from: None })
///     })
///     .build();
/// assert_eq!(supervisor.run(|session| Ok(session.steps().get()))?, Some(100));
/// # Ok::<(), forebear_supervise::SuperviseError>(())
/// ```
pub trait SessionManager<S>: Send + Sync + 'static {
    /// Prepares the state: in the chief at its start, in the other processes once the chief is ready.
    ///
    /// # Errors
    ///
    /// The start returns it, in [`SuperviseError::Prepare`](super::SuperviseError::Prepare).
    fn prepare(&self, state: &Arc<S>, with: &Preparing) -> Result<Prepared, Error>;
}

impl<S, F> SessionManager<S> for F
where
    F: Fn(&Arc<S>, &Preparing) -> Result<Prepared, Error> + Send + Sync + 'static,
{
    fn prepare(&self, state: &Arc<S>, with: &Preparing) -> Result<Prepared, Error> {
        self(state, with)
    }
}

/// The argument of a [`SessionManager`].
///
/// ```
/// use forebear::Error;
/// use forebear_supervise::{Prepared, Preparing, Snapshot, Supervisor};
/// use std::sync::Arc;
///
/// fn prepare(state: &Arc<Snapshot<u64>>, with: &Preparing) -> Result<Prepared, Error> {
///     let newest = match &with.checkpoints {
///         Some(checkpoints) => checkpoints.restore(state)?,
///         None => None, // they are disabled
///     };
///     Ok(Prepared { step: newest.as_ref().map_or(0, |file| file.step), restored_from: newest })
/// }
///
/// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).no_checkpoints().session_manager(prepare).build();
/// assert_eq!(supervisor.run(|session| Ok(session.steps().get()))?, Some(0));
/// # Ok::<(), forebear_supervise::SuperviseError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Preparing {
    /// Whether this process is the chief.
    pub is_chief: bool,
    /// The job's checkpoints, unless they are disabled.
    pub checkpoints: Option<Checkpoints>,
}

/// What a [`SessionManager`] has done.
///
/// ```
/// use forebear_supervise::{Prepared, Preparing, Snapshot, Supervisor};
/// use std::sync::Arc;
///
/// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
///     .session_manager(|sum: &Arc<Snapshot<u64>>, _: &Preparing| {
///         sum.set(50); // of an earlier program, which has saved no checkpoint
///         Ok(Prepared { step: 10, restored_from: None })
///     })
///     .build();
/// supervisor.run(|session| Ok(assert_eq!(session.steps().get(), 10)))?;
/// # Ok::<(), forebear_supervise::SuperviseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The step that the state stands at.
    pub step: u64,
    /// The checkpoint that the state was restored from, if it was.
    pub restored_from: Option<Checkpoint>,
}

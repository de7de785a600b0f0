//! Which cores the workers run on, and what happens when the system refuses.
//!
//! Pinning can be refused: the core may not exist, a container may forbid it, or the platform may not support it. Then
//! the threads run unpinned, with one warning per engine.
//!
//! Invariant 1: `cpu_set_t` is a plain array of bits, valid for every bit pattern, all zero included; a core below
//! `CPU_SETSIZE` is a bit inside it.

use std::fmt;
use std::io;

/// Which cores an engine's threads may run on.
///
/// ```
/// use forebear::pool::{Affinity, FifoQueue, Job, ThreadPool};
///
/// let pool = ThreadPool::builder()
///     .workers(2)
///     .queue(FifoQueue::<Job>::new())
///     .affinity(Affinity::Cores(vec![0])) // both on the first core
///     .on_warning(|_| ()) // the system may refuse
///     .build()?;
/// # pool.stop();
/// # Ok::<(), forebear::pool::StartError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Affinity {
    /// Any: the system decides.
    #[default]
    Free,
    /// Worker *i* on the *i*-th of the cores this process may use, and round again if there are more workers.
    OneEach,
    /// Worker *i* on the *i*-th core of this list, and round again. An empty list is [`Affinity::Free`].
    Cores(Vec<usize>),
}

/// A warning: something was refused, and work continues without it.
///
/// ```
/// use forebear::pool::Warning;
///
/// fn log(warning: &Warning) {
///     match warning {
///         Warning::NotPinned { worker, error, .. } => eprintln!("worker {worker}: {error}"),
///         other => eprintln!("{other}"),
///     }
/// }
/// let builder = forebear::pool::ThreadPool::builder().on_warning(log);
/// # drop(builder);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Warning {
    /// A worker could not be pinned. The first refusal of an engine; later ones are not reported.
    NotPinned {
        /// The first worker that was refused.
        worker: usize,
        /// The core it was to run on; `None` if the system would not even say which there are.
        core: Option<usize>,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warning::NotPinned { worker, core, error } = self;
        match core {
            Some(core) => {
                write!(f, "worker {worker} could not be pinned to core {core}: {error}; workers run unpinned")
            }
            None => {
                write!(f, "the cores for worker {worker} could not be read: {error}; workers run unpinned")
            }
        }
    }
}

impl Affinity {
    /// How many cores the workers of an engine may run on together, if this process may use so many.
    pub(crate) fn cores_of(&self, process: usize) -> usize {
        match self {
            Affinity::Free | Affinity::OneEach => process,
            Affinity::Cores(list) if list.is_empty() => process,
            Affinity::Cores(list) => {
                // No set: every program would contain its code, and few have such a list, which is short.
                let is_first = |&(at, core): &(usize, &usize)| !list[..at].contains(core);
                list.iter().enumerate().filter(is_first).take(process).count()
            }
        }
    }

    /// Pins the calling thread, which is the worker of this number, as asked.
    pub(crate) fn apply(&self, worker: usize) -> Result<(), Warning> {
        let refused = |core| move |error| Warning::NotPinned { worker, core, error };
        let allowed;
        let cores = match self {
            Affinity::Free => return Ok(()),
            Affinity::OneEach => {
                allowed = system::allowed().map_err(refused(None))?;
                &allowed
            }
            Affinity::Cores(cores) => cores,
        };
        match cores.get(worker % cores.len().max(1)) {
            Some(&core) => system::pin(core).map_err(refused(Some(core))),
            None => Ok(()),
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::io;
    use std::mem::{size_of, zeroed};

    /// The cores the calling thread may run on.
    pub(super) fn allowed() -> io::Result<Vec<usize>> {
        // SAFETY: invariant 1, all zero is a set.
        let mut set: libc::cpu_set_t = unsafe { zeroed() };
        // SAFETY: 0 is the calling thread; the pointer and the size are those of one set of ours, which may be written.
        let code = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: invariant 1, the cores asked for are below the size.
        Ok((0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
    }

    /// Lets the calling thread run on this core only.
    pub(super) fn pin(core: usize) -> io::Result<()> {
        if core >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such core"));
        }
        // SAFETY: invariant 1, all zero is a set.
        let mut set: libc::cpu_set_t = unsafe { zeroed() };
        // SAFETY: invariant 1, the core was checked to be below the size.
        unsafe { libc::CPU_SET(core, &mut set) };
        // SAFETY: 0 is the calling thread; the pointer and the size are those of one set of ours, which is only read.
        let code = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::io;

    pub(super) fn allowed() -> io::Result<Vec<usize>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn pin(_: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

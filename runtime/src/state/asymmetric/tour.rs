//! A fence on all threads of the process by the scheduler alone: the caller runs on each core in turn.
//!
//! # Why it is one
//!
//! The kernel's scheduler passes a full memory barrier whenever it changes the thread that a core runs. Take any other thread of
//! the process, at the moment the tour begins.
//!
//! * It does not run. Then it passed that barrier when it stopped, and passes another one before it runs again.
//! * It runs on a core that the caller visits. While the caller runs there it does not, so it has passed the barrier by then, there
//!   or by going to another core.
//! * It runs on a core that the caller may not visit. The caller may visit all cores of its control group, after it has asked
//!   for them, whatever its own mask was; so the thread is in another group. The tour reads the masks of all threads in `/proc`
//!   and fails if one of them has a core that was not visited. Where `/proc` is hidden, all threads of the process have to be in
//!   one group.
//!
//! Page-table tricks (`mprotect` of a page, as other libraries do it) are no substitute: processors exist that flush their
//! translations everywhere without interrupting anybody.

use std::io::{Error, ErrorKind};

/// One bit for each core. The kernel knows no more than these.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cores([u64; 128]);

impl Cores {
    const NONE: Cores = Cores([0; 128]);
    const ALL: Cores = Cores([!0; 128]);

    fn one(core: usize) -> Cores {
        let mut cores = Cores::NONE;
        cores.0[core / 64] = 1 << (core % 64);
        cores
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len() * 64).filter(|core| self.0[core / 64] >> (core % 64) & 1 != 0)
    }

    fn is_within(&self, others: &Cores) -> bool {
        self.0.iter().zip(&others.0).all(|(own, other)| own & !other == 0)
    }

    /// Where a thread may run, of the cores that are running; 0 is the caller.
    fn of(thread: libc::pid_t) -> Result<Cores, Error> {
        let mut cores = Cores::NONE;
        // SAFETY: the place for the answer is as long as it says.
        let got = unsafe { libc::sched_getaffinity(thread, size_of::<Cores>(), (&raw mut cores).cast()) };
        if got == 0 { Ok(cores) } else { Err(Error::last_os_error()) }
    }

    /// The caller runs on these from now on, as far as its control group has them.
    fn take(&self) -> Result<(), Error> {
        // SAFETY: as long as it says.
        let done = unsafe { libc::sched_setaffinity(0, size_of::<Cores>(), (&raw const *self).cast()) };
        if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }
}

/// Gives the caller back the cores it had.
struct RestoreAffinity(Cores);

impl Drop for RestoreAffinity {
    fn drop(&mut self) {
        // None of them is left only if somebody else has changed the group meanwhile; then the caller may stay where it is.
        let _ = self.0.take();
    }
}

/// See the module head.
///
/// # Errors
///
/// The kernel's, if it does not let the caller move; or a thread may run where the caller may not. Then nothing is promised.
pub(super) fn every_core() -> Result<(), Error> {
    let _back = RestoreAffinity(Cores::of(0)?);
    Cores::ALL.take()?;
    let cores = Cores::of(0)?;
    for core in cores.iter() {
        match Cores::one(core).take() {
            // SAFETY: asks nothing.
            Ok(()) => match unsafe { libc::sched_getcpu() } {
                here if here < 0 || here as usize == core => {}
                _ => return Err(Error::other("the caller was not moved")),
            },
            // The core has been taken from the group meanwhile, and from all threads that ran there.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
    }
    // Where this is hidden there is nothing to compare with.
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
        // A thread that is no more runs nowhere.
        if let Some(Ok(its)) = number.map(Cores::of)
            && !its.is_within(&cores)
        {
            return Err(Error::other("a thread of the process may run where the caller may not"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering}; // not modelled: about the system
    use std::thread; // not modelled: the same

    use super::super::light;
    use super::*;

    /// Two threads write, each to its own place, and look at the other's. One that passes no fence of its own is seen, or sees.
    #[test]
    fn of_two_who_write_and_look_one_sees_the_other_when_one_tours() {
        const ROUNDS: u32 = 2_000;
        let mut missed = 0;
        let start = AtomicU32::new(0);
        let [left, right, seen] = [(); 3].map(|()| AtomicU32::new(0));
        let meet = |count| {
            start.fetch_add(1, Ordering::AcqRel);
            let mut looks = 0;
            while start.load(Ordering::Acquire) < count {
                looks += 1;
                // Both are to go on at the same moment, if there are cores for both.
                if looks % 10_000 == 0 { thread::yield_now() } else { std::hint::spin_loop() }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    meet(4 * round - 2);
                    left.store(round, Ordering::Relaxed);
                    light();
                    seen.store(right.load(Ordering::Relaxed), Ordering::Relaxed);
                    meet(4 * round);
                }
            });
            for round in 1..=ROUNDS {
                meet(4 * round - 2);
                right.store(round, Ordering::Relaxed);
                every_core().unwrap();
                let looked = left.load(Ordering::Relaxed);
                meet(4 * round);
                let seen = seen.load(Ordering::Relaxed);
                missed += u32::from(looked != round && seen != round);
            }
        });
        assert_eq!(missed, 0, "rounds of {ROUNDS} in which neither saw the other");
    }

    #[test]
    fn a_tour_leaves_the_caller_where_it_was() {
        let before = Cores::of(0).unwrap();
        let one = Cores::one(before.iter().next().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                one.take().unwrap();
                every_core().unwrap();
                assert!(Cores::of(0).unwrap() == one);
            });
        });
        every_core().unwrap();
        assert!(Cores::of(0).unwrap() == before);
    }
}

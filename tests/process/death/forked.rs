//! A process that a test forks.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A forked process that hangs is killed by this.
const SECONDS: u32 = 20;

/// Forks; `child` runs in the new process, which ends well if it returns. Answers how it ended, as `waitpid` tells it.
pub(crate) fn fork(child: impl FnOnce()) -> libc::c_int {
    // SAFETY: the child keeps to what is tested here.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork"),
        0 => {
            // SAFETY: asks nothing of its caller.
            unsafe { libc::alarm(SECONDS) };
            let well = catch_unwind(AssertUnwindSafe(child)).is_ok();
            // SAFETY: ends the child without running what the parent has registered.
            unsafe { libc::_exit(if well { 0 } else { 1 }) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the child's number, and a place for the answer.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        }
    }
}

#[track_caller]
pub(crate) fn ended_well(status: libc::c_int) {
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

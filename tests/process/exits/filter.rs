//! A filter of system calls that returns an error.

/// From now on the kernel refuses these calls to all threads of the process.
pub(crate) fn refuse(calls: &[libc::c_long]) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = vec![step(LOAD, 0, 0)];
    for (n, call) in calls.iter().enumerate() {
        // To the last step.
        program.push(step(EQUAL, (calls.len() - n) as u8, *call as u32));
    }
    program.push(step(ANSWER, 0, libc::SECCOMP_RET_ALLOW));
    program.push(step(ANSWER, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: asks nothing of its caller.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let all_threads = libc::SECCOMP_FILTER_FLAG_TSYNC;
    // SAFETY: the filter is as long as it says, and is there for the call.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, all_threads, &filter) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

//! A test's body in a process of its own: this very program, started again for that one test.

use std::any::type_name;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// Set in a child, to what its body is called with.
const ARGUMENT: &str = "FOREBEAR_DEATH";
/// A child that hangs is killed by this clock of its own (SIGALRM).
const SECONDS: u32 = 60;

/// How a child ended.
#[derive(Debug)]
pub(crate) struct End {
    status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl End {
    /// It was killed by `signal`.
    #[track_caller]
    pub(crate) fn assert_killed_by(&self, signal: libc::c_int) -> &Self {
        assert_eq!(self.status.signal(), Some(signal), "{self:#?}");
        self
    }

    /// Its body returned.
    #[track_caller]
    pub(crate) fn assert_survived(&self) -> &Self {
        assert!(self.status.success() && self.stdout.ends_with("survived\n"), "{self:#?}");
        self
    }
}

/// Runs `body` in a child and says how that ended.
///
/// To be called once by a test, or in a loop with different arguments for the same body; the test's name is found by the
/// type of the body, which therefore is a closure written in the test.
pub(crate) fn run<F: FnOnce(&str)>(argument: &str, environment: &[(&str, &str)], body: F) -> End {
    if let Ok(argument) = std::env::var(ARGUMENT) {
        prepare();
        body(&argument);
        println!("survived");
        std::process::exit(0);
    }
    // `death::overflow::name_of_the_test::{{closure}}`
    let path = type_name::<F>();
    let test = path.split_once("::").and_then(|(_, rest)| rest.strip_suffix("::{{closure}}"));
    let test = test.unwrap_or_else(|| panic!("{path} is no closure of a test"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    for inherited in ["RUST_LIB_BACKTRACE", "RUST_MIN_STACK", "FOREBEAR_THREADS"] {
        command.env_remove(inherited);
    }
    // AddressSanitizer would take faults for its own and put locals where no stack is; and who exits has not freed all.
    command
        .env("ASAN_OPTIONS", "handle_segv=0:handle_sigbus=0:detect_stack_use_after_return=0:detect_leaks=0");
    command.env("RUST_BACKTRACE", "0").envs(environment.iter().copied()).env(ARGUMENT, argument);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let end = End { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(end.stdout.contains("running 1 test"), "the child has not found the test {test}: {end:#?}");
    end
}

/// No core file, and no hanging.
fn prepare() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the record is valid for the call.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    assert_eq!(done, 0);
    // SAFETY: asks nothing of its caller.
    unsafe { libc::alarm(SECONDS) };
}

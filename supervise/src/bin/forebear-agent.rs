//! `forebear-agent`: runs a program as a group of workers, which is restarted as a whole. See `forebear_supervise::agent`.

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("forebear-agent: Linux only: it names processes by pidfd");
    std::process::ExitCode::from(2)
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::env;
    use std::ffi::OsString;
    use std::fmt::Display;
    use std::io::{self, Write};
    use std::process::ExitCode;
    use std::sync::Arc;
    use std::time::Duration;

    use forebear_supervise::agent::{self, GroupState, LocalAgent, LocalAgentBuilder};

    const HELP: &str = "\
Runs a program as a group of worker processes. If one fails, all are stopped and started anew.

usage: forebear-agent [OPTIONS] [--] PROGRAM [ARGUMENTS]

  --nproc N             workers (1)
  --max-restarts N      restarts of the group because of failures (3)
  --refill-after S      the restarts are all there again after so many healthy seconds (never)
  --backoff S           seconds before the first restart; each one doubles it (0.1)
  --max-backoff S       seconds before a restart at most (30)
  --stop-timeout S      seconds from SIGTERM to SIGKILL (30, or FOREBEAR_AGENT_STOP_TIMEOUT)
  --kill-timeout S      seconds after SIGKILL until a process is reported as unkillable (10)
  --start-timeout S     seconds until all workers are started (30)
  --log-dir DIR         the workers write to files: DIR/RUN/attempt_N/RANK/{stdout,stderr}.log
  --run-id RUN          the name of the run (run)
  --role NAME           what the workers do, for their environment (worker)
  --error-file FILE     the first failure, as JSON (TORCHELASTIC_ERROR_FILE)
  --current-dir DIR     the directory of the workers
  --no-timers           no expiration timers
  --quiet               tells nothing but errors
  --help, --version

The workers find in their environment RANK, WORLD_SIZE, LOCAL_RANK, ... as under torchelastic, and FOREBEAR_TIMERS.
SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the workers, and end this program when the workers have ended.

exit code: 0 all workers have succeeded; 1 the group has failed; 2 it was not run as asked; by a signal if that has ended it.";

    pub(crate) fn main() -> ExitCode {
        agent::entry();
        // If the parent of this process ignores SIGCHLD, this one begins so, and the system would reap the workers. With a handler it does not. It can fail only for a
        // number that is no signal.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGCHLD, Arc::default());
        match run(env::args_os().skip(1).collect()) {
            Ok(code) => code,
            Err(text) => {
                say(text);
                ExitCode::from(2)
            }
        }
    }

    /// Writes a line to standard error. What is behind it may be gone, and the exit code still says how the group has ended.
    fn say(text: impl Display) {
        let _ = writeln!(io::stderr(), "forebear-agent: {text}");
    }

    fn print(text: &str) {
        let _ = writeln!(io::stdout(), "{text}");
    }

    fn run(arguments: Vec<OsString>) -> Result<ExitCode, String> {
        let Some(builder) = read(arguments)? else { return Ok(ExitCode::SUCCESS) };
        let agent = builder.build().map_err(|error| error.to_string())?;
        let result = agent.run().map_err(|error| error.to_string());
        // With it go the socket of its timers and their directory.
        drop(agent);
        let result = result?;
        if let Some(signal) = result.signal {
            // As without us. If the system refuses that, the code says it.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            return Ok(ExitCode::from(128_u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX))));
        }
        if let Some(first) = result.first_failure() {
            say(format_args!("the first failure: {first}"));
        }
        Ok(if result.state == GroupState::Succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// `None`: there is nothing to run.
    fn read(arguments: Vec<OsString>) -> Result<Option<LocalAgentBuilder>, String> {
        let mut rest = arguments.into_iter();
        let mut set: Vec<Box<dyn FnOnce(LocalAgentBuilder) -> LocalAgentBuilder>> = Vec::new();
        let (mut backoff, mut most) = (Duration::from_millis(100), Duration::from_secs(30));
        let (mut term, mut kill) = (Duration::from_secs(30), Duration::from_secs(10));
        if let Some(given) = env::var_os("FOREBEAR_AGENT_STOP_TIMEOUT") {
            term = seconds("FOREBEAR_AGENT_STOP_TIMEOUT", &given)?;
        }
        let mut error_file = env::var_os("TORCHELASTIC_ERROR_FILE");
        let mut quiet = false;
        let program = loop {
            let Some(argument) = rest.next() else {
                return Err("no program is given; --help says how".into());
            };
            let Some(option) = argument.to_str().filter(|text| text.starts_with("--")) else {
                break argument;
            };
            let (name, mut given) = match option.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(OsString::from(value))),
                None => (option.to_owned(), None),
            };
            if matches!(name.as_str(), "--" | "--help" | "--version" | "--quiet" | "--no-timers") {
                if given.is_some() {
                    return Err(format!("{name} takes no value"));
                }
                match name.as_str() {
                    "--" => break rest.next().ok_or("no program is given; --help says how")?,
                    "--help" => {
                        print(HELP);
                        return Ok(None);
                    }
                    "--version" => {
                        print(concat!("forebear-agent ", env!("CARGO_PKG_VERSION")));
                        return Ok(None);
                    }
                    "--quiet" => quiet = true,
                    _ => set.push(Box::new(LocalAgentBuilder::no_timers)),
                }
                continue;
            }
            let mut value = || given.take().or_else(|| rest.next()).ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--nproc" => {
                    let n = number(&name, &value()?)?;
                    set.push(Box::new(move |builder| builder.workers(n as usize)));
                }
                "--max-restarts" => {
                    let n = number(&name, &value()?)?;
                    set.push(Box::new(move |builder| builder.max_restarts(n)));
                }
                "--refill-after" => {
                    let healthy = seconds(&name, &value()?)?;
                    set.push(Box::new(move |builder| builder.refill_after(healthy)));
                }
                "--backoff" => backoff = seconds(&name, &value()?)?,
                "--max-backoff" => most = seconds(&name, &value()?)?,
                "--stop-timeout" => term = seconds(&name, &value()?)?,
                "--kill-timeout" => kill = seconds(&name, &value()?)?,
                "--start-timeout" => {
                    let limit = seconds(&name, &value()?)?;
                    set.push(Box::new(move |builder| builder.start_timeout(limit)));
                }
                "--log-dir" => {
                    let dir = value()?;
                    set.push(Box::new(move |builder| builder.logs(dir)));
                }
                "--run-id" => {
                    let id = text(&name, value()?)?;
                    set.push(Box::new(move |builder| builder.run_id(id)));
                }
                "--role" => {
                    let role = text(&name, value()?)?;
                    set.push(Box::new(move |builder| builder.role(role)));
                }
                "--error-file" => error_file = Some(value()?),
                "--current-dir" => {
                    let dir = value()?;
                    set.push(Box::new(move |builder| builder.current_dir(dir)));
                }
                _ => return Err(format!("there is no option {name}; --help lists them")),
            }
        };
        let mut builder = LocalAgent::builder(program).args(rest).pass_signals();
        builder = builder.backoff(backoff, most).stop_timeouts(term, kill);
        if let Some(file) = error_file {
            builder = builder.error_file(file);
        }
        if !quiet {
            builder = builder.on_event(|event| say(event));
        }
        Ok(Some(set.into_iter().fold(builder, |builder, set| set(builder))))
    }

    fn text(name: &str, value: OsString) -> Result<String, String> {
        value.into_string().map_err(|value| format!("{name}: {value:?} is no text"))
    }

    fn number(name: &str, value: &OsString) -> Result<u32, String> {
        let number = value.to_str().and_then(|text| text.parse().ok());
        number.ok_or_else(|| format!("{name}: {value:?} is no number from 0 on"))
    }

    fn seconds(name: &str, value: &OsString) -> Result<Duration, String> {
        let seconds: Option<f64> = value.to_str().and_then(|text| text.parse().ok());
        let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        duration.ok_or_else(|| format!("{name}: {value:?} is no number of seconds from 0 on"))
    }
}

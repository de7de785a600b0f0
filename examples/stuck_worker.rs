//! Eight worker processes, half of which get stuck; the timer server kills exactly those.
//!
//! Each worker sets itself a time by which a step has to be done. Half of them go into a loop that never ends, on all their threads, and
//! nothing inside them can say so any more. But the time was told to a server in another process before, and at the deadline that server kills
//! the process. The program prints who was killed, when, and how late; the other workers end well.
//!
//! The workers are this program, started again. Their server is in it, so no worker may outlive it: at its start each asks the kernel
//! to kill it when the program ends, however that ends.
//!
//! ```text
//! cargo run --release --features local-timers --example stuck_worker
//! ```

#[cfg(target_os = "linux")]
mod program {
    use std::collections::BTreeMap;
    use std::error::Error;
    use std::os::unix::process::{ExitStatusExt, parent_id};
    use std::process::{self, Command};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};
    use std::{env, hint, thread};

    use forebear::timer::local::{LocalTimerServer, configure_from_env};
    use forebear::timer::{TimerEvent, expires};
    use rustix::process::{Signal, set_parent_process_death_signal};

    const WORKERS: u32 = 8;
    /// What a step may take.
    const LIMIT: Duration = Duration::from_millis(500);
    const KILLED: i32 = 9;

    pub(crate) fn main() -> Result<(), Box<dyn Error>> {
        let mut arguments = env::args().skip(1);
        match (arguments.next(), arguments.next()) {
            (Some(number), Some(parent)) => {
                end_with(parent.parse()?)?;
                worker(number.parse()?)
            }
            _ => start_workers(),
        }
    }

    fn gets_stuck(number: u32) -> bool {
        number % 2 == 1
    }

    /// Has the kernel kill this process when its parent ends; one that has ended before will not be reported any more.
    fn end_with(parent: u32) -> Result<(), Box<dyn Error>> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if parent_id() != parent {
            return Err("the program that started this worker is gone".into());
        }
        Ok(())
    }

    /// One of the eight. It knows nothing of the server but what its environment says.
    fn worker(number: u32) -> Result<(), Box<dyn Error>> {
        configure_from_env()?;
        let step = expires(LIMIT)?;
        if gets_stuck(number) {
            thread::spawn(|| spin());
            spin();
        }
        step.release()?;
        Ok(())
    }

    fn spin() -> ! {
        loop {
            hint::spin_loop();
        }
    }

    /// What the server tells about one it has killed.
    struct Killed {
        pid: u32,
        scope: String,
        after: Duration,
        late: Duration,
    }

    fn start_workers() -> Result<(), Box<dyn Error>> {
        let begun = Instant::now();
        let (tell, killed) = mpsc::channel();
        let server = LocalTimerServer::bind()?.on_event(move |event| {
            if let TimerEvent::Reaped { worker, timer, late, .. } = event {
                let scope = timer.scope.name().to_owned();
                let told = Killed { pid: worker.pid(), scope, after: begun.elapsed(), late: *late };
                tell.send(told).ok(); // the other end lives as long as the server
            }
        });
        let server = server.start()?;

        let mut children = BTreeMap::new();
        for number in 0..WORKERS {
            let mut command = Command::new(env::current_exe()?);
            command.args([number, process::id()].map(|argument| argument.to_string()));
            let child = server.pass_to(&mut command).spawn()?;
            children.insert(child.id(), (number, child));
        }
        let mut died = Vec::new();
        for (pid, (number, child)) in &mut children {
            let status = child.wait()?;
            println!("worker {number} (process {pid}): {status}");
            assert_eq!(status.signal() == Some(KILLED), gets_stuck(*number), "worker {number}: {status}");
            assert!(status.success() || gets_stuck(*number), "worker {number}: {status}");
            died.extend(status.signal().map(|_| *pid));
        }
        server.stop()?;

        let mut told: Vec<_> = killed.iter().collect();
        for Killed { pid, scope, after, late } in &told {
            let number = children[pid].0;
            println!(
                "worker {number} (process {pid}) was killed {after:.1?} after the start, {late:.1?} late, in {scope}"
            );
        }
        told.sort_by_key(|killed| killed.pid);
        assert_eq!(told.iter().map(|killed| killed.pid).collect::<Vec<_>>(), died);
        assert_eq!(died.len() as u32, WORKERS / 2);
        println!("{} of {WORKERS} killed, and just those that were stuck", died.len());
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    program::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("timers of worker processes are for Linux only");
}

//! The worker's side of [`LocalProcesses`](crate::LocalProcesses): a process that follows the orders that come by its standard input.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::{Arc, mpsc};
use std::thread;

use forebear::Runtime;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::process::{PidfdFlags, getppid, pidfd_open};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::MARK;
use super::files::Files;
use super::frames::{Said, Told, Welcome, receive, send};
use crate::engine::{Report, difference};
use crate::task::Tasks;
use crate::worker::Node;

/// Whether this process was started as a worker: its standard input is the socket that the mark names. What a worker starts has another one.
pub(crate) fn is_worker() -> bool {
    let Ok(mark) = std::env::var(MARK) else { return false };
    let is_it = |stat: rustix::fs::Stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::Socket && stat.st_ino.to_string() == mark
    };
    fstat(io::stdin()).is_ok_and(is_it)
}

/// Follows orders until there are no more.
pub(crate) fn run(tasks: Tasks) -> ! {
    match follow(tasks) {
        Ok(()) => process::exit(0),
        Err(error) => {
            eprintln!("forebear-cluster: a worker cannot continue: {error}");
            process::exit(1)
        }
    }
}

fn follow(tasks: Tasks) -> io::Result<()> {
    let coordinator = getppid().and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let mut orders = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let Some(welcome) = receive::<Welcome>(&mut orders)? else { return Ok(()) };
    let mut answers = orders.try_clone()?;
    let mine = tasks.signatures().map(|(name, types)| (name.to_owned(), types.to_owned()));
    if let Some(why) = difference(&welcome.tasks, &mine.collect::<Vec<_>>()) {
        // If the coordinator is gone, nobody has to know.
        let _ = send(&mut answers, &Said::Refused { why: why.clone() });
        return Err(io::Error::other(why));
    }
    let (reports, to_send) = mpsc::channel::<Report>();
    thread::Builder::new().name("cluster: reports".into()).spawn(move || {
        for report in to_send {
            if send(&mut answers, &Said::Report(report)).is_err() {
                return; // the coordinator is gone: the orders have ended, too
            }
        }
    })?;
    let (mut signals, drains) = (Signals::new([SIGTERM])?, reports.clone());
    thread::Builder::new().name("cluster: signals".into()).spawn(move || {
        for (n, signal) in signals.forever().enumerate() {
            if n > 0 || drains.send(Report::Draining).is_err() {
                process::exit(128 + signal);
            }
        }
    })?;
    let report = move |report| _ = reports.send(report);
    let store = Arc::new(Files::open(welcome.store));
    let node = Node::new(welcome.id, welcome.index, tasks, Runtime::current(), report)
        .with_store(store.clone(), welcome.cache);
    let left_alone = loop {
        match receive::<Told>(&mut orders) {
            Ok(Some(Told::Order(order))) => node.order(order),
            Ok(Some(Told::Leave)) => break false,
            Ok(None) => break true,
            // It has died before it has read all that it was told.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break true,
            Err(error) => return Err(error),
        }
    };
    node.stop();
    let _ = Runtime::current().finish(welcome.grace);
    if left_alone {
        // Its socket ends a moment before its lock does.
        if let Some(coordinator) = coordinator {
            let limit = Timespec::try_from(welcome.grace).ok();
            let _ = poll(&mut [PollFd::new(&coordinator, PollFlags::IN)], limit.as_ref());
        }
        store.remove_if_left();
    }
    Ok(())
}

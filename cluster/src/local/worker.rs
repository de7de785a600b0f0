//! The worker's side of [`LocalProcesses`](crate::LocalProcesses): a process that follows the orders that come by its standard input.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::mpsc;
use std::thread;

use forebear::Runtime;
use rustix::fs::{FileType, fstat};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::{MARK, Welcome, receive, send};
use crate::engine::{Order, Report};
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
            eprintln!("forebear-cluster: a worker cannot go on: {error}");
            process::exit(1)
        }
    }
}

fn follow(tasks: Tasks) -> io::Result<()> {
    let mut orders = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let Some(welcome) = receive::<Welcome>(&mut orders)? else { return Ok(()) };
    let mine = tasks.signatures().map(|(name, types)| (name.to_owned(), types.to_owned()));
    if !mine.eq(welcome.tasks) {
        return Err(io::Error::other(
            "it was not given the coordinator's tasks: give `worker::entry` the same ones",
        ));
    }
    let mut answers = orders.try_clone()?;
    let (reports, to_send) = mpsc::channel::<Report>();
    thread::Builder::new().name("cluster: reports".into()).spawn(move || {
        for report in to_send {
            if send(&mut answers, &report).is_err() {
                process::exit(0); // the coordinator is gone
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
    let node = Node::new(welcome.id, welcome.index, tasks, Runtime::current(), report);
    while let Some(order) = receive::<Order>(&mut orders)? {
        node.order(order);
    }
    node.stop();
    let _ = Runtime::current().finish(welcome.grace);
    Ok(())
}

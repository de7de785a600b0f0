//! The worker's side of [`LocalProcesses`](crate::LocalProcesses): a process that follows the orders that come by its standard input.
//!
//! # How it ends with its coordinator
//!
//! Mostly its socket ends: by [`ToWorker::Leave`], or without it if the coordinator is dead. Three more things may happen, and none keeps the worker:
//!
//! * *Another process holds the coordinator's end of the socket.* A worker that the coordinator was starting when it died has a copy, until it executes its program. So a thread waits for
//!   the coordinator's pidfd, and then shuts the socket.
//! * *The worker stands still* by SIGSTOP. The kernel sends it SIGCONT when its coordinator dies. While the coordinator lives, that kills a worker that does not leave.
//! * *The end itself hangs*, in a destructor or a handler of the program. A thread kills the process when the grace has passed twice, and [`MARGIN`] more.
//!
//! If the coordinator is dead, the worker kills its process group at last, as the coordinator would have done: what its tasks have started ends with it.

use std::fs::File;
use std::io;
use std::mem;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use forebear::Runtime;
use forebear::timer::TimerError;
use forebear::timer::local::configure_from_env;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::process::{
    PidfdFlags, Signal, getpgrp, getpid, getppid, kill_process, kill_process_group, pidfd_open,
    set_parent_process_death_signal,
};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::MARK;
use super::files::Files;
use super::frames::{Inlet, LONGEST, Said, ToWorker, Unput, Welcome};
use super::outlet::Outlet;
use crate::engine::{Answer, Report, difference};
use crate::error::FailureKind;
use crate::task::Tasks;
use crate::worker::Node;

/// What an end may take beside the waits for the tasks and for the coordinator.
const MARGIN: Duration = Duration::from_secs(5);

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
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    // Sent again whenever a thread ends that has started workers: that does no harm.
    let _ = set_parent_process_death_signal(Some(Signal::CONT));
    if let Some(coordinator) = &coordinator {
        leave_after(coordinator.try_clone()?, socket.try_clone()?)?;
    }
    let answers = Arc::new(Outlet::new(socket.try_clone()?, LONGEST));
    let mut orders = Inlet::new(socket);
    let welcome = match orders.receive::<Welcome>() {
        Ok(Some(welcome)) => welcome,
        Ok(None) => return Ok(()),
        Err(error) => {
            // By the version of this answer the coordinator sees what is wrong.
            answers.put(&Said::Refused { why: error.to_string() });
            answers.flush();
            return Err(error);
        }
    };
    match configure_from_env() {
        Ok(()) | Err(TimerError::NotConfigured) => {}
        // A task that asks for one gets an error that says so.
        Err(error) => {
            answers.put(&Said::Warns { text: format!("it has no expiration timers: {error}") });
            answers.flush();
        }
    }
    let mine = tasks.signatures().map(|(name, types)| (name.to_owned(), types.to_owned()));
    if let Some(why) = difference(&welcome.tasks, &mine.collect::<Vec<_>>()) {
        // If the coordinator is gone, nobody has to know.
        answers.put(&Said::Refused { why: why.clone() });
        answers.flush();
        return Err(io::Error::other(why));
    }
    let its = answers.clone();
    // If it fails the coordinator is gone: the orders have ended, too.
    thread::Builder::new().name("cluster: reports".into()).spawn(move || its.serve(|| Ok(None)))?;
    let (mut signals, drains) = (Signals::new([SIGTERM])?, answers.clone());
    thread::Builder::new().name("cluster: signals".into()).spawn(move || {
        for (n, signal) in signals.forever().enumerate() {
            if n > 0 {
                process::exit(128 + signal);
            }
            drains.put(&Said::Report(Report::Draining));
            drains.flush();
        }
    })?;
    let waiting = Arc::new(AtomicUsize::new(0));
    let behind = waiting.clone();
    let report = move |report| {
        let is_answer = matches!(report, Report::Answer { .. });
        put(&answers, report);
        // A task that has not begun may do so now, and end at once.
        if is_answer && behind.load(Ordering::Relaxed) > 0 { answers.flush_soon() } else { answers.flush() }
    };
    let store = Arc::new(Files::open(welcome.store));
    let runtime = Runtime::current();
    let node = Node::counting(welcome.id, welcome.index, tasks, runtime, waiting, report)
        .with_store(store.clone(), welcome.cache);
    let mut batch = Vec::new();
    let left_alone = loop {
        let message = orders.receive::<ToWorker>();
        if let Ok(Some(ToWorker::Order(order))) = message {
            batch.push(order);
            if !orders.has_frame() {
                node.orders(mem::take(&mut batch));
            }
            continue;
        }
        node.orders(mem::take(&mut batch));
        match message {
            Ok(Some(_)) => break false,
            Ok(None) => break true,
            // It has died before it has read all that it was told.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break true,
            Err(error) => return Err(error),
        }
    };
    end_after(welcome.grace.saturating_mul(2).saturating_add(MARGIN))?;
    node.stop();
    let _ = Runtime::current().finish(welcome.grace);
    if left_alone {
        // Its socket ends a moment before its lock does.
        if let Some(coordinator) = coordinator {
            wait_for(coordinator.as_fd(), Some(welcome.grace));
        }
        store.remove_if_left();
        // The number is that of the group that the coordinator has made for this worker. This process is in it.
        if getpgrp() == getpid() {
            let _ = kill_process_group(getpid(), Signal::KILL);
        }
    }
    Ok(())
}

/// Puts a report there. An answer that is too long is a failure of its task, and not of its worker.
fn put(outlet: &Outlet, report: Report) {
    let said = Said::Report(report);
    match (outlet.try_put(&said), said) {
        (Ok(()), _) => {}
        (Err(Unput::TooLong(bytes)), Said::Report(Report::Answer { task, attempt, ran, .. })) => {
            let kind = FailureKind::TooLarge { bytes: bytes as u64, limit: outlet.limit() as u64 };
            outlet.put(&Said::Report(Report::Answer { task, attempt, answer: Answer::Failed(kind), ran }));
        }
        // The coordinator waits for it in vain.
        (Err(_), said) => outlet.put(&said),
    }
}

/// Waits for the end of a process, at most so long.
fn wait_for(process: BorrowedFd<'_>, limit: Option<Duration>) {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut dead = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    while poll(&mut dead, limit.as_ref()) == Err(rustix::io::Errno::INTR) {}
}

/// When that process has ended, the socket does, too, even if another process holds its other end.
fn leave_after(coordinator: OwnedFd, socket: UnixStream) -> io::Result<()> {
    let watch = move || {
        wait_for(coordinator.as_fd(), None);
        let _ = socket.shutdown(Shutdown::Both);
    };
    thread::Builder::new().name("cluster: coordinator".into()).spawn(watch).map(drop)
}

/// This process has ended after that time, whatever its end does.
fn end_after(time: Duration) -> io::Result<()> {
    let kill = move || {
        let (_open, never) = mpsc::channel::<()>();
        let _ = never.recv_timeout(time);
        let _ = kill_process(getpid(), Signal::KILL);
    };
    thread::Builder::new().name("cluster: end".into()).spawn(kill).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TaskId;

    #[test]
    fn an_answer_that_no_message_takes_is_a_failure_with_its_size_and_the_socket_stays() {
        let (here, there) = UnixStream::pair().unwrap();
        let (outlet, mut inlet) = (Outlet::new(here, 1_000), Inlet::new(there));
        let answer = |bytes: usize| Report::Answer {
            task: TaskId(7),
            attempt: 2,
            answer: Answer::Done(vec![7; bytes].into()),
            ran: Duration::from_secs(1),
        };
        for bytes in [2_000, 900] {
            put(&outlet, answer(bytes));
            outlet.flush();
            let Some(Said::Report(Report::Answer { task, attempt, answer, .. })) = inlet.receive().unwrap()
            else {
                panic!("it answers something else")
            };
            assert_eq!((task, attempt), (TaskId(7), 2));
            match answer {
                Answer::Failed(FailureKind::TooLarge { bytes: its, limit: 1_000 }) => {
                    assert!(bytes == 2_000 && its > 2_000, "{its}");
                }
                answer => assert!(bytes == 900 && matches!(answer, Answer::Done(_)), "{answer:?}"),
            }
        }
    }
}

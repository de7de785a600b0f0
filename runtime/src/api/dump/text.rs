//! A dump as text: a line for the runtime, each worker, each request and each thread. `docs/dumps.md` has the format.

use std::fmt;
use std::time::Duration;

use forebear_context::error::internal::ShownName;
use forebear_context::lineage::Priority;

use super::{Dump, Party, RequestInfo, ThreadInfo, WaitInfo, WorkerInfo};
use crate::api::any::State;

/// So many owners of one thing are named.
const SHOWN: usize = 8;

/// A name as it stands in a line.
pub(super) fn quoted(name: &str) -> impl fmt::Display {
    format!("`{}`", ShownName(name))
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        write!(f, "runtime {}: ", quoted(&self.runtime))?;
        if !self.workers.is_empty() {
            write!(f, "{}, ", many(self.workers.len(), "worker"))?;
        }
        f.write_str(&many(self.requests.len(), "request"))?;
        for worker in &self.workers {
            write!(f, "\n{worker}")?;
            if let Some(runs) = worker.runs.and_then(|id| self.request(id)) {
                write!(f, ", runs {} {}", runs.id, quoted(&runs.name))?;
            }
        }
        for request in &self.requests {
            let is_on = |worker: &&WorkerInfo| Some(worker.index) == request.worker;
            // It has been woken, and another one runs on its worker.
            let is_ready = request.state == State::Running
                && !request.is_arm
                && self.workers.iter().find(is_on).is_some_and(|worker| worker.runs != Some(request.id));
            write!(f, "\n{}", TextLine { request, is_ready })?;
        }
        for thread in &self.threads {
            write!(f, "\n{thread}")?;
        }
        Ok(())
    }
}

impl fmt::Display for WorkerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}: {}", self.index, self.state)?;
        if self.private > 0 {
            write!(f, ", {} private", self.private)?;
        }
        if !self.answered {
            f.write_str(", no scheduling point for 10 ms")?;
        }
        Ok(())
    }
}

struct TextLine<'a> {
    request: &'a RequestInfo,
    is_ready: bool,
}

impl fmt::Display for RequestInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TextLine { request: self, is_ready: false }.fmt(f)
    }
}

impl fmt::Display for TextLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.request;
        write!(f, "{} {}", request.id, quoted(&request.name))?;
        if request.is_arm {
            f.write_str(" (a branch of its join)")?;
        }
        f.write_str(match request.state {
            State::New => " not submitted",
            State::Queued => " queued",
            State::Running if self.is_ready => " ready",
            State::Running => " running",
            State::Suspended => " suspended",
            State::Finished | State::Failed | State::Cancelled => " over",
        })?;
        match (request.worker, &request.thread) {
            (Some(worker), _) => write!(f, " on worker {worker}")?,
            (None, Some(thread)) => write!(f, " in thread {}", quoted(thread))?,
            (None, None) => {}
        }
        if let Some(parent) = request.parent {
            write!(f, ", child of {parent}")?;
        }
        if request.priority != Priority::NORMAL {
            write!(f, ", priority {}", request.priority.level())?;
        }
        if let Some(raised) = request.raised_to {
            write!(f, ", raised to {}", raised.level())?;
        }
        if request.is_cancelled {
            f.write_str(", cancelled")?;
        }
        if let Some(at) = &request.made_at {
            write!(f, ", made at {at}")?;
        }
        // Nearly nothing is not worth a word.
        if let Some(age) = request.known_for.filter(|age| *age >= Duration::from_millis(1)) {
            write!(f, ", at least {} old", ShownTime(rounded_down(age)))?;
        }
        match &request.waits_for {
            Some(wait) => write!(f, ", {wait}"),
            None => Ok(()),
        }
    }
}

/// ``waits for a Mutex "cache" (src/cache.rs:12), held by #3 `fill`, for up to 2.1 s so far``.
impl fmt::Display for WaitInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use super::Reason;
        write!(f, "waits for {}", self.what)?;
        match (self.reason, &self.owners[..]) {
            // It is what is waited for.
            (Reason::Request, [Party::Request { id, .. }]) => write!(f, " ({id})")?,
            (_, []) => {}
            (reason, owners) => {
                f.write_str(if reason.has_owner() { ", held by " } else { ": " })?;
                for (n, owner) in owners.iter().take(SHOWN).enumerate() {
                    write!(f, "{}{owner}", if n == 0 { "" } else { ", " })?;
                }
                if let Some(more @ 1..) = owners.len().checked_sub(SHOWN) {
                    write!(f, " and {more} more")?;
                }
            }
        }
        match self.since {
            Some(since) => write!(f, ", for up to {} so far", ShownTime(since)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Request { id, name } => write!(f, "{id} {}", quoted(name)),
            Party::Other { name } => write!(f, "{}", quoted(name)),
        }
    }
}

impl fmt::Display for ThreadInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} {}", quoted(&self.name), self.waits_for)
    }
}

/// So that it is shown as no more than it is.
fn rounded_down(time: Duration) -> Duration {
    let micros = time.as_micros() as u64;
    let step = if micros < 1_000_000 { 1_000 } else { 100_000 };
    Duration::from_micros(micros / step * step)
}

/// A time to one digit behind the point.
struct ShownTime(Duration);

impl fmt::Display for ShownTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_micros() {
            0..1_000 => f.write_str("1 ms"),
            micros @ 1_000..1_000_000 => write!(f, "{} ms", micros.div_ceil(1_000)),
            micros => write!(f, "{:.1} s", micros as f64 / 1e6),
        }
    }
}

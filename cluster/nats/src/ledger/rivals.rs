//! Processes of one name: a worker that asks to join while another process of its name is heard has to wait.
//!
//! A name belongs to one process at a time. A worker that is killed and started again elsewhere has the name of one that is not heard any more, and takes its place after some beats.
//! Two workers that were given one name by mistake would displace each other again and again, and no task of theirs would end. So the second one waits, and the coordinator warns.
//!
//! The process of the coordinator replaces what it has started itself: there the newest start has the name. It *keeps* the names of what it has started or will start; see [`launch`](crate::launch). A worker from
//! elsewhere that asks for one of these is refused: it could have the name only between an end and the restart, and the worker that is started again would wait for it in vain.

use std::time::{Duration, Instant};

use super::{Act, Ledger, Member};
use crate::wire::{Hello, Times};

/// What other processes of a member's name have asked.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    /// When the first of them was refused.
    since: Option<Instant>,
    /// The coordinator has warned.
    told: bool,
}

/// A member that has said nothing for so long leaves its name to another process. It says something in each beat.
fn silence(times: &Times) -> Duration {
    times.beat * 3
}

impl Ledger {
    /// Why a worker from elsewhere cannot have a name that the coordinator's process keeps. One that has had it before joins again.
    pub(super) fn encroachment(&mut self, hello: &Hello, kept: bool) -> Option<String> {
        let has_it = |member: &Member| member.id.name() == hello.name && member.process == hello.process;
        if !kept || hello.launch.is_some() || self.members.values().any(has_it) {
            return None;
        }
        let why = format!(
            "the coordinator's process starts the worker named `{}` itself: give this one another name",
            hello.name
        );
        if self.encroached.insert(hello.name.clone()) {
            self.acts.push(Act::Warn(format!("a worker from elsewhere cannot join: {why}")));
        }
        Some(why)
    }

    /// Why the name is not free.
    pub(super) fn rivalry(&mut self, hello: &Hello, now: Instant) -> Option<String> {
        let times = self.times;
        let is_rival = |member: &Member| {
            member.id.name() == hello.name
                && member.process != hello.process
                && member.leaving.is_none()
                && (member.launch.is_none() || hello.launch.is_none())
                && now.saturating_duration_since(member.seen) <= silence(&times)
        };
        let (_, member) = self.members.iter_mut().find(|(_, member)| is_rival(member))?;
        let since = *member.rivals.since.get_or_insert(now);
        // What it said before its death does not take a beat to come.
        if member.said.0 > since + times.beat && !std::mem::replace(&mut member.rivals.told, true) {
            self.acts.push(Act::Warn(format!(
                "two processes are workers named `{}`: the second one cannot join while the first one is there. Give each a name of its own",
                hello.name
            )));
        }
        Some(format!("another process is a worker named `{}`: give each a name of its own", hello.name))
    }
}

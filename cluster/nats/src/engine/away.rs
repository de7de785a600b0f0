//! Whether the server can be used: the engine looks at the streams, and tells the coordinator if it cannot.

use std::mem;
use std::time::{Duration, Instant};

use forebear_cluster::engine::Event;
use tokio::task::JoinHandle;

use super::{Engine, News};
use crate::store::{ANSWER, PAUSE, Silent};

/// The streams are looked at so often.
const CHECK: Duration = Duration::from_secs(2);

/// A loop that comes to no turn for a beat and this long stood still, with its process.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// The server is away, or of no use: there is no connection, the lock of the job cannot be renewed, or the streams cannot be looked at. Servers that are a cluster may have no leader
/// for one of these, for seconds or for good.
pub(super) struct Away {
    since: Instant,
    /// Whether the coordinator has been told.
    pub(super) told: bool,
    /// The newest reason.
    why: String,
}

impl Engine {
    /// The server is away, or still is.
    pub(super) fn is_away(&mut self, now: Instant, why: String) {
        match &mut self.away {
            Some(away) => away.why = why,
            none => *none = Some(Away { since: now, told: false, why }),
        }
    }

    /// Looks whether the streams hold what they should, now and then; after each connection also whether they are there.
    pub(super) fn check(&mut self) {
        let due = self.checked_at.elapsed() > CHECK || !self.made;
        if !self.connected || !due || !self.held.is_sure() || mem::replace(&mut self.checking, true) {
            return;
        }
        self.checked_at = Instant::now();
        let mut make = !mem::replace(&mut self.made, true);
        let (store, times, news) = (self.store.clone(), self.plan.times, self.sender.clone());
        let (checked, before) = (self.checked.clone(), self.looks);
        self.check = Some(tokio::spawn(async move {
            let (mut silent, mut replaced) = (Silent::default(), false);
            loop {
                let look = async {
                    if make {
                        store.ensure(&times, false).await?;
                    }
                    store.look(&times, before).await
                };
                match look.await {
                    Ok((looks, again)) => {
                        if make || again || replaced {
                            checked.send_modify(|times| *times += 1);
                        }
                        let _ = news.send(News::Checked(looks));
                        return;
                    }
                    // There is no server now, or something that it had is not there.
                    Err(why) => {
                        make = true;
                        let _ = news.send(News::Unseen(why));
                        replaced |= store.replace_silent(&times, &mut silent).await;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        }));
    }

    /// Deletes objects that could not be deleted before: the server is there.
    pub(super) fn clear(&mut self) {
        let is_over = self.clears.as_ref().is_none_or(JoinHandle::is_finished);
        if is_over && self.store.has_left() {
            let (store, held) = (self.store.clone(), self.held.clone());
            self.clears = Some(tokio::spawn(async move { store.delete_left(|| held.is_sure()).await }));
        }
    }

    /// Tells the coordinator, if the server has been away for long enough.
    pub(super) fn tell_of_away(&mut self, now: Instant) {
        let before = mem::replace(&mut self.ticked, now);
        if now.duration_since(before) > self.plan.times.beat + STOOD_STILL {
            // That time is no absence of the server.
            self.checked_at = now;
            if let Some(away) = self.away.as_mut().filter(|away| !away.told) {
                away.since = now;
            }
        }
        if self.connected && !self.held.is_sure() {
            // Nobody looks at the streams meanwhile.
            self.is_away(now, format!("the lock of the job cannot be renewed: {}", self.unrenewed));
        } else if self.connected && self.checking && self.away.is_none() {
            // One look is many requests, each of which may be repeated. One that takes longer has had no answer to some.
            if now.duration_since(self.checked_at) >= ANSWER {
                self.is_away(self.checked_at, "the streams of the job cannot be read: no answer".into());
            }
        }
        if let Some(Away { since, told: told @ false, why }) = &mut self.away
            && since.elapsed() >= self.plan.unavailable_after
        {
            *told = true;
            let reason = format!("the server has been away for {:?}: {why}", self.plan.unavailable_after);
            let _ = self.lost.send(Some(reason.clone()));
            self.gather(Event::Unavailable { reason });
        }
    }
}

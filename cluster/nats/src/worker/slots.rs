//! [`take`]: what the slots of a session take from the queue.
//!
//! All free slots are asked for at once: one request to the server says how many messages may come. A slot that becomes free later is another request. The server
//! sends no more messages than were asked for, so none waits behind a task.
//!
//! # How many messages may still come
//!
//! `asked` has a permit for each message that may come, with the instant after which it comes no more; the oldest is first. A message takes the oldest permit, whichever request it answers: those that stay
//! never end before the server's own. The server says how many messages of a request do not come when its time is over. What it says beside that concerns the consumer
//! as a whole, for instance that it was deleted: then all is asked for again. A message that comes without a permit is given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::AckKind;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::session::News;
use crate::store::{Delivery, PAUSE, Store};
use crate::wire::{Parcel, decode};

/// So long the server keeps a request.
const EXPIRES: Duration = Duration::from_secs(5);
/// So much later it has said that it keeps it no longer.
const SPARE: Duration = Duration::from_secs(1);
/// The server's word that the time of a request is over, and the header that says how many messages of it do not come.
const OVER: u16 = 408;
const PENDING: &str = "Nats-Pending-Messages";

struct Slots {
    store: Store,
    epoch: u64,
    free: Arc<Semaphore>,
    asked: VecDeque<(OwnedSemaphorePermit, Instant)>,
    /// What reads arguments that are objects. It ends with the session.
    fetching: JoinSet<()>,
    news: UnboundedSender<News>,
}

/// Takes a message whenever a slot is free, until the session ends.
pub(super) async fn take(
    store: Store,
    epoch: u64,
    free: Arc<Semaphore>,
    mut connections: watch::Receiver<u64>,
    news: UnboundedSender<News>,
) {
    let (asked, fetching) = (VecDeque::new(), JoinSet::new());
    let mut slots = Slots { store, epoch, free, asked, fetching, news };
    let (inbox, mut messages) = loop {
        match slots.store.inbox().await {
            Ok(inbox) => break inbox,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    connections.mark_unchanged();
    loop {
        let next_end = slots.asked.front().map(|(_, end)| tokio::time::Instant::from_std(*end));
        tokio::select! {
            biased;
            // What was asked for before a connection broke may have been forgotten.
            changed = connections.changed() => match changed {
                Ok(()) => slots.asked.clear(),
                Err(_) => return,
            },
            message = messages.next() => {
                let Some(message) = message else { return };
                let mut again = slots.came(message).await;
                while let Some(Some(message)) = messages.next().now_or_never() {
                    again |= slots.came(message).await;
                }
                if again {
                    tokio::time::sleep(PAUSE).await;
                    slots.asked.clear();
                }
            }
            permit = slots.free.clone().acquire_owned(), if !slots.free.is_closed() => {
                if let Ok(permit) = permit {
                    slots.ask(permit, &inbox).await;
                }
            }
            () = tokio::time::sleep_until(next_end.unwrap_or_else(tokio::time::Instant::now)), if next_end.is_some() => {
                let now = Instant::now();
                while slots.asked.front().is_some_and(|(_, end)| *end <= now) {
                    slots.asked.pop_front();
                }
            }
        }
    }
}

impl Slots {
    /// Asks for as many messages as there are free slots.
    async fn ask(&mut self, first: OwnedSemaphorePermit, inbox: &str) {
        let end = Instant::now() + EXPIRES + SPARE;
        let more = std::iter::from_fn(|| self.free.clone().try_acquire_owned().ok());
        let before = self.asked.len();
        self.asked.extend(std::iter::once(first).chain(more).map(|permit| (permit, end)));
        if self.store.ask(inbox, self.asked.len() - before, EXPIRES).await.is_err() {
            self.asked.truncate(before);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Something has come: a message, or word of a request. `true`: all is to be asked for again.
    async fn came(&mut self, message: async_nats::Message) -> bool {
        if let Some(status) = message.status {
            let pending = message.headers.as_ref().and_then(|headers| headers.get(PENDING));
            let pending = pending.and_then(|pending| pending.as_str().parse::<usize>().ok());
            let Some(pending) = pending.filter(|_| status.as_u16() == OVER) else { return true };
            self.asked.drain(..pending.min(self.asked.len()));
            return false;
        }
        let Some(delivery) = message.reply.and_then(Delivery::new) else { return false };
        let permit = self.asked.pop_front().map(|(permit, _)| permit);
        let Some(permit) = permit.or_else(|| self.free.clone().try_acquire_owned().ok()) else {
            self.store.acknowledge(delivery.reply, AckKind::Nak(None)).await;
            return false;
        };
        match decode::<Parcel>(&message.payload) {
            Ok(mut parcel) if parcel.epoch == self.epoch => {
                let (store, news) = (self.store.clone(), self.news.clone());
                let Some(object) = parcel.object.take() else {
                    let _ = news.send(News::Taken(delivery, parcel, permit));
                    return false;
                };
                while self.fetching.try_join_next().is_some() {}
                self.fetching.spawn(async move {
                    // Without it the task fails: its arguments cannot be decoded.
                    parcel.envelope.args = store.get(&object).await.ok().flatten().unwrap_or_default().into();
                    let _ = news.send(News::Taken(delivery, parcel, permit));
                });
            }
            // Of another run, or of somebody else.
            _ => self.store.acknowledge(delivery.reply, AckKind::Term).await,
        }
        false
    }
}

//! [`Complaints`]: what the server has complained of. It answers no message that a user may not send, and says so beside all answers.

use async_nats::{Event, ServerError};
use tokio::sync::watch;

use crate::wire::Names;

/// So many refusals are known. There are as many as a user lacks permissions.
const MOST: usize = 64;

#[derive(Clone, Default)]
pub(crate) struct Complaints(watch::Sender<Heard>);

#[derive(Default)]
struct Heard {
    newest: Option<String>,
    /// Each refusal once.
    refusals: Vec<String>,
}

impl Complaints {
    /// Takes a complaint from what the client tells.
    pub(crate) fn hear(&self, event: &Event) {
        let Event::ServerError(error) = event else { return };
        let text = match error {
            ServerError::Other(text) => text.clone(),
            other => other.to_string(),
        };
        self.0.send_modify(|heard| {
            let is_new = text.starts_with("Permissions Violation") && !heard.refusals.contains(&text);
            if is_new && heard.refusals.len() < MOST {
                heard.refusals.push(text.clone());
            }
            heard.newest = Some(text);
        });
    }

    /// The error, with the newest complaint.
    pub(crate) fn beside(&self, why: String) -> String {
        match &self.0.borrow().newest {
            Some(newest) => format!("{why}; the server says: {newest}"),
            None => why,
        }
    }

    /// A session begins: what was refused before may be granted now.
    pub(crate) fn forget_refusals(&self) {
        self.0.send_modify(|heard| heard.refusals.clear());
    }

    /// Waits until the server has refused what no worker of that job can do without, and answers its words.
    pub(crate) async fn bars_worker(&self, names: &Names) -> String {
        let mut changes = self.0.subscribe();
        loop {
            let needed = |refusal: &&String| {
                let subject = refusal.split('"').nth(1);
                subject.is_some_and(|subject| names.are_needed_by_workers(subject))
            };
            if let Some(refusal) = changes.borrow_and_update().refusals.iter().find(needed) {
                return refusal.clone();
            }
            // Its sender is in `self`.
            let _ = changes.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(texts: &[&str]) -> Complaints {
        let complaints = Complaints::default();
        for text in texts {
            complaints.hear(&Event::ServerError(ServerError::Other((*text).to_owned())));
        }
        complaints
    }

    #[test]
    fn the_newest_complaint_stands_beside_an_error() {
        assert_eq!(complaints(&[]).beside("it fails".into()), "it fails");
        let two = complaints(&["first", "second"]);
        two.hear(&Event::Connected);
        assert_eq!(two.beside("it fails".into()), "it fails; the server says: second");
    }

    #[test]
    fn a_worker_is_barred_by_what_it_needs_alone_also_if_there_are_other_refusals() {
        use futures_util::FutureExt;
        let names = Names::new("job").unwrap();
        let barred = |texts: &[&str]| complaints(texts).bars_worker(&names).now_or_never();
        let asks = r#"Permissions Violation for Publish to "$JS.API.CONSUMER.MSG.NEXT.FB_job_TASKS.workers""#;
        let object = r#"Permissions Violation for Publish to "$O.FB_job_BLOBS.C.x""#;
        assert_eq!(barred(&[]), None);
        assert_eq!(barred(&[object, "Permissions Violation", "Slow Consumer Detected"]), None);
        assert_eq!(barred(&[object, asks, object]).as_deref(), Some(asks));
        for subject in ["fb.job.up", "fb.job.down.7.1", "_INBOX.x", "$JS.ACK.FB_job_TASKS.workers.1"] {
            let text = format!(r#"Permissions Violation for Subscription to "{subject}""#);
            assert_eq!(barred(&[&text]), Some(text));
        }
        let granted = complaints(&[asks]);
        granted.forget_refusals();
        assert_eq!(granted.bars_worker(&names).now_or_never(), None);
        assert_eq!(barred(&[&asks.replace("FB_job", "FB_another")]), None);
    }

    #[test]
    fn what_is_known_of_refusals_is_bounded() {
        let all = complaints(&[]);
        for n in 0..10 * MOST {
            let text = format!(r#"Permissions Violation for Publish to "subject {n}""#);
            all.hear(&Event::ServerError(ServerError::Other(text)));
        }
        assert_eq!(all.0.borrow().refusals.len(), MOST);
    }
}

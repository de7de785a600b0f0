//! The thread of the engine, as others see it: whether it has begun, what came of that, and whether it has ended.
//!
//! A caller of [`start`] may give up before the thread has begun: its request is cancelled. It drops [`Wanted`] then, as a link does that is dropped, and the thread removes what it has made.
//! However the thread ends, by a panic too, [`Ends`] tells those who wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use forebear::sync::Event as Wake;
use forebear::{TimeoutError, shield};
use forebear_cluster::ClusterError;
use forebear_cluster::engine::{Event, EventSink, Job, start_error};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{oneshot, watch};

use super::parts::begin;
use super::{Engine, Plan, Wish};
use crate::launch::Launcher;
use crate::objects::Objects;

/// So long a start that fails or is cancelled waits for the thread to remove what it has made.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// What is known of the thread.
#[derive(Default)]
pub(crate) struct Progress {
    answer: Mutex<Option<Result<Arc<Objects>, String>>>,
    begun: Wake,
    ended: Wake,
    thread: Mutex<Option<ThreadId>>,
}

/// Somebody wants the engine. When this is dropped, it closes.
pub(crate) struct Wanted {
    _sender: oneshot::Sender<()>,
}

/// Resolves when nobody wants the engine any more.
pub(super) type Unwanted = oneshot::Receiver<()>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    fn begun(&self, answer: Result<Arc<Objects>, String>) {
        lock(&self.answer).get_or_insert(answer);
        self.begun.set();
    }

    /// Nobody needs to wait any more.
    pub(super) fn ended(&self) {
        self.ended.set();
    }

    /// Waits until the thread has ended, so long at most. At once on that thread itself.
    pub(crate) fn wait_ended(&self, timeout: Duration) -> Result<(), TimeoutError> {
        if self.ended.is_set() || *lock(&self.thread) == Some(thread::current().id()) {
            return Ok(());
        }
        match timeout {
            Duration::ZERO => Err(TimeoutError::TimedOut),
            timeout => self.ended.wait_timeout(timeout),
        }
    }

    fn wait_begun(&self) -> Result<Arc<Objects>, ClusterError> {
        self.begun.wait()?;
        let answer = lock(&self.answer).clone();
        answer.unwrap_or_else(|| Err("its thread has ended".into())).map_err(start_error)
    }
}

/// Tells that the thread has ended.
struct Ends {
    progress: Arc<Progress>,
    launcher: Arc<Launcher>,
    events: EventSink,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = "its thread has panicked, see standard error: shut this coordinator down";
            self.progress.begun(Err(why.into()));
            self.launcher.release_all();
            self.events.tell(Event::Unavailable { reason: format!("the engine has ended: {why}") });
        }
        self.progress.ended();
    }
}

/// Starts the thread, and waits until it is connected and the streams are there.
///
/// After an error nothing of the job is left that the thread has made, if the server says so in time.
pub(crate) fn start(
    plan: Plan,
    job: Job,
    wishes: UnboundedReceiver<Wish>,
) -> Result<(Arc<Objects>, Arc<Progress>, Wanted), ClusterError> {
    let progress = Arc::new(Progress::default());
    let (sender, unwanted) = oneshot::channel();
    let wanted = Wanted { _sender: sender };
    let (launcher, events) = (plan.launcher.clone(), job.events.clone());
    let ends = Ends { progress: progress.clone(), launcher, events };
    let run = move || {
        let ends = ends;
        *lock(&ends.progress.thread) = Some(thread::current().id());
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                runtime.block_on(live(plan, job, wishes, unwanted, &ends.progress));
                // The runtime's own end may wait for the name of a server to be looked up.
                ends.progress.ended();
            }
            Err(error) => ends.progress.begun(Err(error.to_string())),
        }
    };
    thread::Builder::new().name("cluster: nats".into()).spawn(run).map_err(start_error)?;
    match progress.wait_begun() {
        Ok(objects) => Ok((objects, progress, wanted)),
        Err(error) => {
            drop(wanted);
            let _ = shield(|| progress.wait_ended(FAREWELL));
            Err(error)
        }
    }
}

async fn live(
    plan: Plan,
    job: Job,
    wishes: UnboundedReceiver<Wish>,
    mut unwanted: Unwanted,
    progress: &Progress,
) {
    let begun = match begin(&plan, &mut unwanted).await {
        Ok(begun) => begun,
        Err(why) => return progress.begun(Err(why)),
    };
    let (lost, away) = watch::channel(None);
    let objects = Objects::of_coordinator(&begun.store, away);
    let (engine, news) = Engine::new(plan, job, begun, lost);
    progress.begun(Ok(objects));
    engine.run(wishes, news, unwanted, progress).await;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use forebear_cluster::engine::WarningHook;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::access::Access;
    use crate::launch::Handover;

    #[test]
    fn a_thread_that_panics_is_the_error_of_the_start_and_the_coordinator_is_told() {
        let handover = Handover {
            access: Access::new("nats://127.0.0.1"),
            job: "job".into(),
            name: String::new(),
            slots: 1,
            launch: 0,
            grace: Duration::ZERO,
            cache: 0,
        };
        let (wishes, _taken) = unbounded_channel();
        let launcher = Arc::new(Launcher::new(handover, 0, None, Vec::new(), WarningHook::default(), wishes));
        let (progress, (send, events)) = (Arc::new(Progress::default()), mpsc::channel());
        let events_of = EventSink::new(move |event| _ = send.send(event));
        let ends = Ends { progress: progress.clone(), launcher: launcher.clone(), events: events_of };
        let panics = thread::spawn(move || {
            let _ends = ends;
            panic!("the thread of this test");
        });
        let answer = progress.wait_begun();
        assert!(
            matches!(&answer, Err(ClusterError::Start { message, .. }) if message.contains("its thread has panicked"))
        );
        progress.wait_ended(Duration::MAX).unwrap();
        assert!(panics.join().is_err() && launcher.is_closed());
        assert!(matches!(events.recv(), Ok(Event::Unavailable { reason }) if reason.contains("panicked")));
    }
}

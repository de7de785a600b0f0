//! [`Map`]: tasks over an iterator of arguments, in a window.

use std::collections::VecDeque;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::coordinator::ClusterCoordinator;
use crate::engine::WorkerState;
use crate::error::{ClusterError, FetchError};
use crate::remote::RemoteValue;
use crate::task::TaskFn;

/// Results in the order of their arguments: see [`ClusterCoordinator::map`].
///
/// So many tasks are scheduled at once as the [window](Self::window) allows. [`next`](Iterator::next) suspends, and is a cancellation point. After an error there is nothing
/// more. If this is dropped before its end, the tasks that it has scheduled are cancelled.
///
/// An error of a task is raised here, and not again by the coordinator.
#[must_use = "it schedules when it is iterated"]
pub struct Map<I, A, R> {
    cluster: ClusterCoordinator,
    task: TaskFn<A, R>,
    args: I,
    /// `None`: by the workers.
    window: Option<usize>,
    ahead: VecDeque<RemoteValue<R>>,
    ended: bool,
}

impl<I: Iterator<Item = A>, A: Serialize, R> Map<I, A, R> {
    pub(crate) fn new(cluster: ClusterCoordinator, task: TaskFn<A, R>, args: I) -> Self {
        Map { cluster, task, args, window: None, ahead: VecDeque::new(), ended: false }
    }

    /// At most so many tasks are scheduled whose results have not been taken. If not told otherwise, twice as many as the workers can run at once.
    pub fn window(mut self, tasks: usize) -> Self {
        self.window = Some(tasks.max(1));
        self
    }

    fn room(&self) -> usize {
        self.window.unwrap_or_else(|| {
            let workers = self.cluster.workers();
            let ready = workers.iter().filter(|worker| worker.state == WorkerState::Ready);
            (2 * ready.map(|worker| worker.slots).sum::<usize>()).max(2)
        })
    }

    fn fill(&mut self) -> Result<(), ClusterError> {
        let room = self.room();
        while self.ahead.len() < room {
            let Some(args) = self.args.next() else { break };
            self.ahead.push_back(self.cluster.schedule(&self.task, args)?);
        }
        Ok(())
    }

    /// The cause, if a value has not come.
    fn cause(&self, error: FetchError) -> ClusterError {
        match error {
            FetchError::Cancelled => ClusterError::Cancelled,
            FetchError::Closed => ClusterError::Closed,
            FetchError::Task(_) | FetchError::Dropped => match (self.cluster.raise(), error) {
                (Err(cause), _) => cause,
                // Somebody else has been given it.
                (Ok(()), FetchError::Task(failure)) => ClusterError::Task(failure),
                (Ok(()), error) => ClusterError::Fetch(error),
            },
            error => ClusterError::Fetch(error),
        }
    }
}

impl<I: Iterator<Item = A>, A: Serialize, R: DeserializeOwned> Iterator for Map<I, A, R> {
    type Item = Result<R, ClusterError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let answer = match self.fill() {
            Ok(()) => self.ahead.pop_front()?.fetch().map_err(|error| self.cause(error)),
            Err(error) => Err(error),
        };
        if answer.is_err() {
            self.ended = true;
            self.cancel();
        }
        Some(answer)
    }
}

impl<I, A, R> Map<I, A, R> {
    /// The last first: a queued one is not to start in the place of a running one.
    fn cancel(&mut self) {
        self.ahead.drain(..).rev().for_each(|value| value.cancel());
    }
}

impl<I, A, R> Drop for Map<I, A, R> {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl<I, A, R> fmt::Debug for Map<I, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("task", &self.task)
            .field("ahead", &self.ahead.len())
            .finish_non_exhaustive()
    }
}

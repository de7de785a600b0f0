//! [`EventSink`]: where an engine reports events.

use std::fmt;
use std::sync::Arc;

use super::Event;

/// Where an engine reports events.
///
/// The engine reports without its own locks, since the coordinator may call the [`Link`](super::Link) from within. Events that are there together are reported together: the coordinator
/// then takes its lock once, and wakes a caller once.
///
/// ```
/// use forebear_cluster::engine::{Event, EventSink};
/// use std::sync::mpsc;
///
/// let (send, events) = mpsc::channel();
/// let sink = EventSink::new(move |event| _ = send.send(event));
/// sink.tell(Event::Drained { before: 2 });
/// assert!(matches!(events.recv(), Ok(Event::Drained { before: 2 })));
/// ```
#[derive(Clone)]
pub struct EventSink(Arc<Batches>);

/// What takes events that are reported together.
type Batches = dyn Fn(&mut dyn Iterator<Item = Event>) + Send + Sync;

impl EventSink {
    /// Each event goes there, in its order.
    pub fn new(each: impl Fn(Event) + Send + Sync + 'static) -> EventSink {
        EventSink::of_batches(move |events| events.for_each(&each))
    }

    /// Events that are reported together go there together.
    pub(crate) fn of_batches(
        all: impl Fn(&mut dyn Iterator<Item = Event>) + Send + Sync + 'static,
    ) -> EventSink {
        EventSink(Arc::new(all))
    }

    /// Reports an event.
    pub fn tell(&self, event: Event) {
        self.tell_all([event]);
    }

    /// Reports events that are there together, in their order.
    ///
    /// ```
    /// use forebear_cluster::engine::{Event, EventSink};
    /// use std::sync::mpsc;
    ///
    /// let (send, events) = mpsc::channel();
    /// let sink = EventSink::new(move |event| _ = send.send(event));
    /// sink.tell_all([Event::Unavailable { reason: "the server is away".into() }, Event::Available]);
    /// assert!(matches!(events.iter().nth(1), Some(Event::Available)));
    /// ```
    pub fn tell_all(&self, events: impl IntoIterator<Item = Event>) {
        (self.0)(&mut events.into_iter());
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSink").finish_non_exhaustive()
    }
}

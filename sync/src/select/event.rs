//! An event as an arm of `select!`.

use std::fmt;
use std::mem::MaybeUninit;

use forebear_context::context::{Cause, Context, Ticket};
use forebear_context::error::Cancelled;
use forebear_context::source::{Arm, LeaveResult, Output, ReportsCancel, Source};

use crate::Event;
use crate::lock_queue::Place;

/// The arm of an event.
pub struct EventArm<'a> {
    event: &'a Event,
    place: MaybeUninit<Place>,
    listed: bool,
    output: Option<Result<(), Cancelled>>,
}

impl<'a> Source for &'a Event {
    type Output = Result<(), Cancelled>;
    type Arm = EventArm<'a>;

    fn into_arm(self) -> EventArm<'a> {
        EventArm { event: self, place: MaybeUninit::uninit(), listed: false, output: None }
    }
}

// SAFETY: the place is out of its list when `leave` returns; nothing is handed over.
unsafe impl Arm for EventArm<'_> {
    fn try_complete(&mut self, _: &Context) -> bool {
        self.output = self.event.is_set().then_some(Ok(()));
        self.output.is_some()
    }

    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool {
        // SAFETY: L4: by contract it is the calling context, and the arm leaves before its frame goes (A1).
        let place = self.place.write(unsafe { Place::new(context, ticket, ()) });
        // SAFETY: by contract.
        self.listed = unsafe { self.event.enter(place) };
        self.listed
    }

    unsafe fn leave(&mut self, _: &Context, _: Cause) -> LeaveResult {
        // The thread that took it out made the event happen, even if the event is reset by now.
        // SAFETY: `listed`, so `enter` has written the place and put it into the event's queue, and it is taken out once.
        if std::mem::take(&mut self.listed) && !unsafe { self.event.leave(self.place.assume_init_ref()) } {
            self.output = Some(Ok(()));
            return LeaveResult::Completed;
        }
        LeaveResult::Nothing
    }

    fn reports_cancel(&self) -> ReportsCancel {
        ReportsCancel::Output
    }

    fn cancel(&mut self) {
        self.output = Some(Err(Cancelled::new()));
    }
}

impl Output for EventArm<'_> {
    type Output = Result<(), Cancelled>;

    fn output(&mut self) -> Self::Output {
        match self.output.take() {
            Some(output) => output,
            None => unreachable!("A3"),
        }
    }
}

impl fmt::Debug for EventArm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventArm").field("listed", &self.listed).finish_non_exhaustive()
    }
}

//! A thread that has claimed requests, and has links to release: it ends the requests first. An error that goes with a header may wait for one of them.

use std::fmt;
use std::iter;
use std::sync::mpsc; // not modelled: a test

use super::*;
use crate::api::any::AnyRequest;
use crate::cancel::message::Message;
use crate::state::word::{Cancel, SUBMITTED};
use crate::{Error, Request, Runtime};

/// An error that says, when it is dropped, whether a request is over.
#[derive(Debug)]
struct Looks(AnyRequest, mpsc::Sender<bool>);

impl fmt::Display for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("looks")
    }
}

impl std::error::Error for Looks {}

impl Drop for Looks {
    fn drop(&mut self) {
        self.1.send(self.0.is_done()).unwrap();
    }
}

/// A request that has not started, and one that has failed, of which only a link is left. The error of the second says whether the first is over.
fn claimed_and_failed(runtime: &Runtime) -> (Request<()>, NonNull<Header>, mpsc::Receiver<bool>) {
    let unstarted = runtime.enter(|| Request::new(|| ()));
    let (tell, told) = mpsc::channel();
    let error = Looks(unstarted.to_untyped(), tell);
    let failed = runtime.enter(|| Request::try_new(move || -> Result<(), Error> { Err(error.into()) }));
    assert!(failed.wait().is_err());
    failed.header().word().add_link();
    (unstarted, failed.header_ptr(), told)
}

#[test]
fn what_is_refused_ends_before_a_stale_entry_goes_with_its_error() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (refused, stale, told) = claimed_and_failed(&runtime);
    assert!(refused.header().word().submit(SUBMITTED));
    // SAFETY: the link of the submission, and the one that was added.
    unsafe { end_refused(vec![refused.header_ptr(), stale]) };
    assert_eq!(told.try_recv(), Ok(true));
}

#[test]
fn what_a_closed_mailbox_has_to_end_ends_before_its_other_messages_release_an_error() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (claimed, failed, told) = claimed_and_failed(&runtime);
    let answer = claimed.header().word().abort(|| ());
    assert_eq!(answer, Cancel::Ended);
    // SAFETY: M3: this thread's own, which has made both.
    let arena = unsafe { foreign::arena_for(runtime.shared()).unwrap().as_ref() };
    for message in [Message::NewChild(failed), Message::End(claimed.header_ptr())] {
        assert!(arena.owner_mailbox.send(message, false).is_ok());
    }
    cancel::close_owner_mailboxes(iter::once(arena));
    assert_eq!(told.try_recv(), Ok(true));
}

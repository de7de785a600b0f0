//! Messages: what is left for the owner of an arena to do about requests that ran, or were made, there. Invariant O1 is in the head of
//! `cancel/message.rs`, which sends them.

use std::ptr::NonNull;

/// What the owner of an arena is to do. `H` is a request's header.
#[derive(Debug)]
pub(crate) enum Message<H> {
    /// This request ran here and is cancelled, or is over and its parent is cancelled: the cancel continues from it.
    Cancelled(NonNull<H>),
    /// This request was made here, and was submitted or claimed elsewhere: it belongs into its parent's list.
    NewChild(NonNull<H>),
    /// A scope in this request, which runs here, was stopped.
    Scope(NonNull<H>),
    /// This request was claimed unstarted, and the link is the runner's: it is to be ended, as cancelled. Or it has failed, and was
    /// let go of by the last who knew it: it has no link, and its header is to be ended. To a worker.
    End(NonNull<H>),
}

impl<H> Clone for Message<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for Message<H> {}

impl<H> Message<H> {
    /// The request it is about.
    pub(crate) fn header(self) -> NonNull<H> {
        match self {
            Message::Cancelled(header)
            | Message::NewChild(header)
            | Message::Scope(header)
            | Message::End(header) => header,
        }
    }
}

// SAFETY: a message is a link, which any thread may use (O1).
unsafe impl<H: Sync> Send for Message<H> {}

//! The side block: what few requests have. See [`crate::slot`] for how the header leads to it.

use std::borrow::Cow;
use std::cell::{Cell, UnsafeCell};
use std::panic::Location;
use std::ptr;

use forebear_context::error::{CancelReason, Failure};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::AtomicU64;

use crate::callbacks::Callbacks;
use crate::climb::Shortcut;
use crate::due::Due;
use crate::header::Header;
use crate::request_pool::Board;
use crate::slot::{Block, Slot};

/// The header's word for it.
pub(crate) type SideSlot = Slot<Side>;

impl Block for Side {
    type Kin = Header;

    fn first_kin(&self) -> &Cell<*const Header> {
        &self.kin
    }
}

/// What few requests have.
pub(crate) struct Side {
    /// Written before anybody else knows the header.
    pub name: Option<Cow<'static, str>>,
    /// As `name`.
    pub location: Option<&'static Location<'static>>,
    /// Written by the finisher before terminal, constant after.
    pub failure: UnsafeCell<Option<Failure>>,
    /// The number by which this request is known, if anybody asked.
    pub id: AtomicU64,
    /// Why it was cancelled, if not because somebody asked. Written under the word's lock before the mark, or by the claimer
    /// of an unstarted one; read by who has seen the mark or the end.
    pub reason: Cell<Option<CancelReason>>,
    /// The root key of the most urgent that waits for it; see [`crate::urgency`].
    pub urgency: AtomicU64,
    /// What is to be called at the end; see [`crate::callbacks`].
    pub callbacks: Callbacks,
    /// The pool that holds it back, or has. Written under the word's lock while it is new, read under the lock while it is
    /// held (W15).
    pub held_by: UnsafeCell<Option<Arc<Board>>>,
    /// Its own deadline, not one that it has inherited. Written as `name`.
    pub due: Option<Box<Due>>,
    /// How a question goes on from it once it is over ([`crate::climb`]).
    pub shortcut: Shortcut<Header>,
    /// The first of its children that stand in its family's list.
    kin: Cell<*const Header>,
}

impl Default for Side {
    fn default() -> Side {
        Side {
            name: None,
            location: None,
            failure: UnsafeCell::new(None),
            id: AtomicU64::new(0),
            reason: Cell::new(None),
            urgency: AtomicU64::new(NO_KEY),
            callbacks: Callbacks::default(),
            held_by: UnsafeCell::new(None),
            due: None,
            shortcut: Shortcut::default(),
            kin: Cell::new(ptr::null()),
        }
    }
}

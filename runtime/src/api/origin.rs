//! Where a new request comes from: the fiber it is made on, the runtime it belongs to, its parent, its arena.
//!
//! A request belongs to the runtime that is current where it is made: the one entered, else the worker's, else the
//! default. Its parent is the request on top, if that is of the same runtime. In a foreign thread that runs a request
//! directly, that is its parent too.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::time::Instant;

use forebear_context::lineage::{Lineage, Priority, next_root, root_key, root_key_with_deadline};
use forebear_context::shim::Arc;

use crate::api::runtime;
use crate::foreign;
use crate::record::arena::Arena;
use crate::record::callback;
use crate::record::children::{child_of, count_child};
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::shared::Shared;
use crate::shared::worker::OnRecord;

/// See the module head.
pub(crate) struct Origin<'a> {
    pub fiber: &'a Fiber,
    pub shared: HeldRuntime<'a>,
    pub arena: &'a Arena,
    /// The request on top, if it is of this runtime.
    pub maker: Option<&'a Header>,
}

/// A runtime's record. It has a count of its own only if nothing else is sure to keep the record meanwhile. A count
/// would be two exchanges on a line that all threads share, for each request that is made outside.
pub(crate) struct HeldRuntime<'a> {
    shared: ManuallyDrop<Arc<Shared>>,
    counted: bool,
    borrow: PhantomData<&'a Shared>,
}

impl<'a> HeldRuntime<'a> {
    /// A record that another owner keeps for as long as this is used.
    fn kept(shared: &'a Shared) -> HeldRuntime<'a> {
        // SAFETY: records are made in an `Arc`, and this one's count is not given back.
        let shared = ManuallyDrop::new(unsafe { Arc::from_raw(shared) });
        HeldRuntime { shared, counted: false, borrow: PhantomData }
    }

    fn counted(shared: Arc<Shared>) -> HeldRuntime<'a> {
        HeldRuntime { shared: ManuallyDrop::new(shared), counted: true, borrow: PhantomData }
    }
}

impl Deref for HeldRuntime<'_> {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for HeldRuntime<'_> {
    fn drop(&mut self) {
        if self.counted {
            // SAFETY: its own count, once.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
    }
}

/// The runtime that free functions mean on this fiber, whose own code holds what it answers no longer than the operation it is in.
fn runtime_here(fiber: &Fiber) -> HeldRuntime<'_> {
    // SAFETY: who enters a runtime holds it meanwhile.
    if let Some(entered) = unsafe { Shared::of_ptr(fiber.entered.get()) } {
        return HeldRuntime::kept(entered);
    }
    match fiber.worker_record() {
        Some(worker) => HeldRuntime::kept(worker.shared()),
        None => HeldRuntime::counted(runtime::default_shared()),
    }
}

/// The runtime that free functions mean here.
pub(crate) fn current_runtime(fiber: &Fiber) -> Arc<Shared> {
    Arc::clone(&runtime_here(fiber))
}

/// Where a request of `shared` (or else of the current runtime) would come from.
///
/// # Panics
///
/// While the thread's locals are being destroyed; in a call of the runtime's own ([`callback`]).
#[inline]
pub(crate) fn here(of: Option<&Arc<Shared>>) -> Origin<'_> {
    let Some(fiber) = foreign::fiber() else {
        panic!("forebear: a request cannot be made while the thread's locals are being destroyed")
    };
    // In such a call the count is up.
    if fiber.context().no_suspend().get() != 0 {
        callback::refuse("make a request");
    }
    let shared = match of {
        Some(shared) => HeldRuntime::kept(shared),
        None => runtime_here(fiber),
    };
    let arena: *const Arena = match fiber.worker_record() {
        Some(worker) if ptr::eq(worker.shared(), &**shared) => worker.arena(),
        _ if shared.is_inherited() => refuse_inherited(&shared),
        _ => match foreign::arena_for(&shared) {
            Some(arena) => arena.as_ptr(),
            None => {
                panic!("forebear: a request cannot be made while the thread's locals are being destroyed")
            }
        },
    };
    // SAFETY: the record, held by the caller's thread or by `shared`, holds its arenas.
    let arena = unsafe { &*arena };
    // A request of another runtime may be on top: then this one is a root.
    let maker = fiber.request().filter(|top| {
        let ran_on = top.ran_on.load(forebear_context::shim::atomic::Ordering::Relaxed);
        ptr::eq(ran_on, arena)
    });
    Origin { fiber, shared, arena, maker }
}

#[cold]
#[track_caller]
fn refuse_inherited(shared: &Shared) -> ! {
    shared.check_process();
    unreachable!("asked of one that is inherited")
}

/// What the builder may ask of a new request's place in the order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rank {
    pub priority: Option<Priority>,
    pub detached: bool,
    /// Its own deadline, which orders roots only.
    pub deadline: Option<Instant>,
}

impl Origin<'_> {
    /// The lineage of a new request, counted with its parent if it gets one.
    #[inline]
    pub(crate) fn lineage(&self, rank: Rank) -> Lineage {
        let maker = self.maker.filter(|_| !rank.detached);
        if let (Some(maker), None) = (maker, rank.priority) {
            return child_of(maker);
        }
        let number = next_root();
        let priority = rank.priority.unwrap_or_default();
        let key = match rank.deadline {
            None => root_key(priority, number),
            Some(at) => root_key_with_deadline(priority, at),
        };
        match maker {
            // SAFETY: LN1: a child's header keeps its parent's.
            Some(maker) => unsafe { Lineage::rooted_child(&maker.lineage, count_child(maker), key) },
            None => Lineage::root(key, number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, Runtime};

    fn counts(shared: &Arc<Shared>) -> usize {
        Arc::strong_count(shared)
    }

    #[test]
    fn a_record_that_another_keeps_is_not_counted_and_not_given_back() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let shared = runtime.shared();
        // The thread's arena counts the record, too.
        drop(runtime.enter(|| Request::new(|| ())));
        let before = counts(shared);
        for _ in 0..3 {
            let origin = here(Some(shared));
            assert!(ptr::eq(&**origin.shared, &**shared));
            assert_eq!(counts(shared), before, "named");
            drop(origin);
            assert_eq!(counts(shared), before);
            runtime.enter(|| {
                let origin = here(None);
                assert!(ptr::eq(&**origin.shared, &**shared));
                assert_eq!(counts(shared), before, "entered");
            });
            assert_eq!(counts(shared), before);
        }
        let on_a_worker = runtime.run(|| {
            let before = counts(&current_runtime(crate::record::fiber::get().unwrap()));
            let origin = here(None);
            let during = counts(&origin.shared) + 1;
            drop(origin);
            (before, during, counts(&current_runtime(crate::record::fiber::get().unwrap())))
        });
        assert!(on_a_worker.0 == on_a_worker.1 && on_a_worker.1 == on_a_worker.2, "{on_a_worker:?}");
    }

    #[test]
    fn a_record_that_nobody_is_sure_to_keep_is_counted_and_given_back() {
        let fiber = foreign::fiber().unwrap();
        let shared = runtime::default_shared();
        // Other tests of this process use the default runtime, too: so its count is only looked at from two sides at once.
        let held = runtime_here(fiber);
        assert!(held.counted && Arc::ptr_eq(&held, &shared));
        drop(held);

        let runtime = Runtime::builder().workers(1).build().unwrap();
        let before = counts(runtime.shared());
        let held = HeldRuntime::counted(runtime.shared().clone());
        assert_eq!(counts(&held), before + 1);
        drop(held);
        assert_eq!(counts(runtime.shared()), before);
        let held = HeldRuntime::kept(runtime.shared());
        assert_eq!(counts(&held), before);
        drop(held);
        assert_eq!(counts(runtime.shared()), before);
    }
}

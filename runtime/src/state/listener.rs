//! Listeners: what is notified of a request's end and has no stack that waits. Futures are, and the members of sets.
//!
//! # Vocabulary
//!
//! * **listener**: a node in a request's list of waiters that is nobody's place ([`WaitNode::listening`]). It lies in counted memory.
//! * **notice**: what a listener does when the request is over.
//! * **maker**: the request that has made the listener, if any.
//! * **framed**: made, enlisted and delisted by one call, as those of `wait_all` are. Any other is *loose*: it may pass from one request to another, or to
//!   a thread.
//! * **to enlist, to delist**: to put a listener into the list, to take it out before the end.
//!
//! # States
//!
//! ```text
//!   made ──enlist──▶ listed ──delist──▶ out         the owner, under the word's lock
//!                       └────end──────▶ notified    the finisher, which holds nothing by then
//! ```
//!
//! # The race
//!
//! The owner delists while the request ends. Both go through the word. An owner that gets the word's lock before the
//! terminal exchange unlinks the node, and the finisher never sees it. A later owner finds the word terminal, and
//! leaves the node to the finisher. The thread that takes the node out gets the list's count, and the last count frees
//! the memory.
//!
//! After the terminal exchange the finisher may have no count of the request. It still reads the list there, whose head lies in the request's header. What keeps the
//! header are the counts of those who stand in the list. So an owner that finds the word terminal waits until the finisher has taken the whole list
//! and come to this node ([`Listener::left`]), before it may give its handle up. It does not wait for the notice.
//!
//! # Invariants
//!
//! * **LI1** While the node is listed the list has a count of the listener. The thread that takes the node out gets that count.
//! * **LI2** The links of the node are touched as those of any other: under the word's lock, or by the finisher (W3).
//! * **LI3** The owner keeps its count of the request until it has delisted the node, or [`Listener::left`] has returned.
//! * **LI4** A notice is given once at most, by the finisher, which then holds no lock and has no waiter left to wake. One that may call user
//!   code ([`Notice::CALLS_USER_CODE`]) is given after all others: the user code may wait for what these wake.
//! * **LI5** The maker of a framed listener is not over while the node is listed: the call that has enlisted it delists it before it returns. The maker
//!   of a loose one may be over, so its address is only compared.

use std::mem;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::task::Waker;

use forebear_context::context::{Listening, WaitNode, user_code};
use forebear_context::error::internal::drop_contained;
use forebear_context::shim::{Arc, Mutex, MutexGuard, mutant};

/// What a listener does when its request is over.
pub trait Notice: Send + Sync + 'static {
    /// Whether [`over`](Self::over) may call user code.
    const CALLS_USER_CODE: bool;
    /// Whether its listeners are framed: LI5.
    const IS_FRAMED: bool = false;

    /// The request has ended as `life`. LI4.
    fn over(&self, life: u64);
}

/// See the module head.
#[repr(C)]
pub struct Listener<N> {
    node: WaitNode,
    /// LI5.
    maker: *const (),
    notice: N,
}

// SAFETY: of the node, the links are touched in turn (LI2), and the rest is constant, as the maker's address is; a notice is `Send` and `Sync`.
unsafe impl<N: Notice> Send for Listener<N> {}
// SAFETY: as above.
unsafe impl<N: Notice> Sync for Listener<N> {}

impl<N: Notice> Listener<N> {
    const LISTENING: &'static Listening = &Listening {
        notify: notify::<N>,
        calls_user_code: N::CALLS_USER_CODE,
        maker: maker::<N>,
        is_framed: N::IS_FRAMED,
    };

    /// A listener that stands nowhere. `key` is the root key of whose sake it is for; `maker` is the request that makes it, or null.
    pub fn new(notice: N, key: u64, maker: *const ()) -> Arc<Listener<N>> {
        Arc::new(Listener { node: WaitNode::listening(Self::LISTENING, key), maker, notice })
    }

    /// What it does at the end.
    pub fn notice(&self) -> &N {
        &self.notice
    }

    /// Its node.
    pub fn node(&self) -> &WaitNode {
        &self.node
    }

    /// Enlists it: `list` puts the node into a list, and answers whether it did.
    pub fn enlist<E>(
        this: &Arc<Listener<N>>,
        list: impl FnOnce(&WaitNode) -> Result<(), E>,
    ) -> Result<(), E> {
        // LI1: made before the node can be taken out.
        let count = Arc::clone(this);
        list(&this.node)?;
        mem::forget(count);
        Ok(())
    }

    /// It was delisted by its owner, who gives the list's count back.
    ///
    /// # Safety
    ///
    /// LI1: the caller has taken the node out of the list, and says so once.
    pub unsafe fn delisted(this: &Arc<Listener<N>>) {
        // SAFETY: by contract: the count that `enlist` gave to the list.
        mutant!("delisted_keeps_the_count", (), drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) }));
    }

    /// Its owner has found the request terminal, so the finisher takes the node out. Returns when the finisher touches the request's list no more.
    pub fn left(this: &Arc<Listener<N>>) {
        mutant!("listener_owner_goes_first", (), this.node.await_release());
    }
}

impl<N> std::fmt::Debug for Listener<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// Calls the notice of this listener, and gives up the list's count.
///
/// # Safety
///
/// LI1: the node is that of a `Listener<N>`, and the count that the list had is the caller's.
unsafe fn notify<N: Notice>(node: NonNull<WaitNode>, life: u64) {
    // SAFETY: by contract; the node is the first field.
    let this = unsafe { Arc::from_raw(node.as_ptr().cast_const().cast::<Listener<N>>()) };
    this.notice.over(life);
}

/// The request that has made the listener of this node.
///
/// # Safety
///
/// LI1: the node is that of a `Listener<N>`, and the list has its count.
unsafe fn maker<N: Notice>(node: NonNull<WaitNode>) -> *const () {
    // SAFETY: by contract; the node is the first field.
    unsafe { node.cast::<Listener<N>>().as_ref() }.maker
}

/// The notice of a future: wakes the task that polled it last.
///
/// No code of the user's runs under the lock: neither `clone`, nor `wake`, nor the destructor of a waker.
pub struct Wakes(Mutex<WakeState>);

enum WakeState {
    Waiting(Waker),
    /// Notified, or of no use any more.
    Over,
}

impl Wakes {
    /// Wakes by this one.
    pub fn by(waker: Waker) -> Wakes {
        Wakes(Mutex::new(WakeState::Waiting(waker)))
    }

    /// Wakes by a clone of this one.
    pub fn by_clone_of(waker: &Waker) -> Wakes {
        Wakes::by(copy(waker))
    }

    fn lock(&self) -> MutexGuard<'_, WakeState> {
        // Nothing that runs under it can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that polls now is the one to wake. False: it is over.
    pub fn renew(&self, waker: &Waker) -> bool {
        match &*self.lock() {
            WakeState::Over => return false,
            WakeState::Waiting(before) if before.will_wake(waker) => return true,
            WakeState::Waiting(_) => {}
        }
        let mut waker = WakeState::Waiting(copy(waker));
        mutant!("waker_renewed_past_the_end", {
            *self.lock() = waker;
            return true;
        });
        let mut state = self.lock();
        let goes_on = matches!(*state, WakeState::Waiting(_));
        if goes_on {
            mem::swap(&mut *state, &mut waker);
        }
        drop(state);
        // The waker before, or the one that came too late. What its destructor panics with goes no further.
        drop_contained(waker);
        goes_on
    }

    /// Nobody is to be woken any more.
    pub fn retire(&self) {
        let before = mem::replace(&mut *self.lock(), WakeState::Over);
        drop_contained(before);
    }

    /// Wakes the task, unless that was done before. What the waker panics with goes no further: the panic hook has shown it.
    pub fn wake(&self) {
        let before = mem::replace(&mut *self.lock(), WakeState::Over);
        let WakeState::Waiting(waker) = before else { return };
        user_code();
        if let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake())) {
            drop_contained(payload);
        }
    }
}

/// A waker's `clone` is user code.
fn copy(waker: &Waker) -> Waker {
    user_code();
    waker.clone()
}

/// A listener may go that has not been notified: what its waker's destructor panics with goes no further.
impl Drop for Wakes {
    fn drop(&mut self) {
        self.retire();
    }
}

impl Notice for Wakes {
    const CALLS_USER_CODE: bool = true;

    fn over(&self, _: u64) {
        self.wake();
    }
}

impl std::fmt::Debug for Wakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wakes").finish_non_exhaustive()
    }
}

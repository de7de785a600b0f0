//! The one allocation of a request: header, callable, then value in the callable's place. A dependent's edges stand behind it, if there is a class of
//! memory for the whole.
//!
//! All code that depends on the types of callable and value is here, behind the header's [`VTable`]. A failure is stored in the
//! side block and never overwrites a value, since a handle may have lent a reference to it.

use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::alloc::Layout;
use std::any::{TypeId, type_name};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop, offset_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use forebear_context::context::{self, WaitNode, WaitQueue};
use forebear_context::error::Error;
use forebear_context::lineage::Lineage;

use crate::record::arena::{self, Arena};
use crate::record::dropping;
use crate::record::fiber::PublishedPtr;
use crate::record::header::{Header, HeaderPlace, VTable};
use crate::record::no_value::NoValue;
use crate::record::report;
use crate::record::scope_core::ScopeCore;
use crate::record::side::SideSlot;
use crate::state::raid::Placed;
use crate::state::word::{LocalState, Word};

/// Callables above this size are boxed, so that cells stay within the free lists.
pub(crate) const BOXED_ABOVE: usize = 1 << 10;

/// What a request runs: a plain callable or a fallible one, each in its own wrapper.
pub(crate) trait Callable<T>: Send {
    /// Whether it begins with edges ([`crate::api::after`]).
    const IS_DEPENDENT: bool = false;
    /// Whether it is never run: a completer ends the request ([`crate::api::completer`]).
    const IS_COMPLETION: bool = false;

    /// Runs it.
    fn call(self) -> Result<T, Error>;

    /// The type of the user's closure: the name of a request that has no other.
    fn type_name() -> &'static str {
        type_name::<Self>()
    }
}

/// What a request is made from: its callable, or what a dependent's callable and its edges are made from when there is memory for them.
pub(crate) trait Construct<T> {
    /// What the request runs.
    type Callable: Callable<T>;

    /// How many edges it has.
    #[inline(always)]
    fn edges(&self) -> usize {
        0
    }

    /// The callable. Its edges are written to `nodes`; if that is null, to memory of their own. Does not panic.
    ///
    /// # Safety
    ///
    /// `nodes` is null, or fresh memory for [`edges`](Self::edges) nodes that lasts until the request's memory is freed.
    unsafe fn construct(self, nodes: *mut WaitNode) -> Self::Callable;
}

/// A callable that is there already, and has no edges.
pub(crate) struct Whole<C>(pub C);

impl<T, C: Callable<T>> Construct<T> for Whole<C> {
    type Callable = C;

    #[inline(always)]
    unsafe fn construct(self, _: *mut WaitNode) -> C {
        self.0
    }
}

/// A callable that returns the value.
pub(crate) struct Plain<F>(pub F);

impl<T, F: FnOnce() -> T + Send> Callable<T> for Plain<F> {
    #[inline(always)]
    fn call(self) -> Result<T, Error> {
        Ok((self.0)())
    }

    fn type_name() -> &'static str {
        type_name::<F>()
    }
}

/// A callable that returns the value or an error.
pub(crate) struct Fallible<F>(pub F);

impl<T, F: FnOnce() -> Result<T, Error> + Send> Callable<T> for Fallible<F> {
    #[inline(always)]
    fn call(self) -> Result<T, Error> {
        (self.0)()
    }

    fn type_name() -> &'static str {
        type_name::<F>()
    }
}

/// A callable too large for a cell.
pub(crate) struct Boxed<C>(pub Box<C>);

impl<T, C: Callable<T>> Callable<T> for Boxed<C> {
    fn call(self) -> Result<T, Error> {
        (*self.0).call()
    }

    fn type_name() -> &'static str {
        C::type_name()
    }
}

/// The type after which a request is named if it has no name of its own, and its callable is one of the runtime's own.
pub(crate) trait Named {
    fn type_name() -> &'static str;
}

/// The user's closure.
pub(crate) struct Closure<F>(PhantomData<fn(F)>);

impl<F> Named for Closure<F> {
    fn type_name() -> &'static str {
        type_name::<F>()
    }
}

/// Another callable, named after its own type.
pub(crate) struct Typed<C, T>(PhantomData<fn(C, T)>);

impl<C: Callable<T>, T> Named for Typed<C, T> {
    fn type_name() -> &'static str {
        C::type_name()
    }
}

/// A callable of the runtime's own that stands for what `U` names, and has its name.
pub(crate) struct For<U, C>(pub C, pub PhantomData<fn(U)>);

/// The type of a closure, for [`For`].
pub(crate) fn type_of<F>(_: &F) -> PhantomData<fn(Closure<F>)> {
    PhantomData
}

impl<T, U: Named, C: Callable<T>> Callable<T> for For<U, C> {
    #[inline(always)]
    fn call(self) -> Result<T, Error> {
        self.0.call()
    }

    fn type_name() -> &'static str {
        U::type_name()
    }
}

#[repr(C)]
struct RequestCell<C, T> {
    header: Header,
    body: UnsafeCell<Body<C, T>>,
}

union Body<C, T> {
    callable: ManuallyDrop<C>,
    value: ManuallyDrop<T>,
}

struct VTableOf<C, T>(PhantomData<(C, T)>);

impl<C: Callable<T>, T> VTableOf<C, T> {
    const VTABLE: &'static VTable = &VTable {
        call: call::<C, T>,
        drop_callable: drop_callable::<C, T>,
        value_needs_drop: std::mem::needs_drop::<T>(),
        drop_value: drop_value::<C, T>,
        value_offset: offset_of!(RequestCell<C, T>, body),
        layout: Layout::new::<RequestCell<C, T>>(),
        type_name: C::type_name,
        is_completion: C::IS_COMPLETION,
        type_id: type_id_of::<C>,
    };
    const CLASS: u8 = arena::class_of(Layout::new::<RequestCell<C, T>>());
}

/// The [`TypeId`] of a callable that may borrow. Types that differ in their lifetimes only have the same.
pub(crate) fn type_id_of<C>() -> TypeId {
    trait HasTypeId {
        fn type_id(&self) -> TypeId
        where
            Self: 'static;
    }
    impl<C> HasTypeId for PhantomData<C> {
        fn type_id(&self) -> TypeId
        where
            Self: 'static,
        {
            TypeId::of::<C>()
        }
    }
    let named: &dyn HasTypeId = &PhantomData::<C>;
    // SAFETY: the method touches nothing of the object, which has no size; only the name of a type has lifetimes.
    let named = unsafe { mem::transmute::<&dyn HasTypeId, &(dyn HasTypeId + 'static)>(named) };
    named.type_id()
}

/// Calls the callable, and writes its value to `out`. Answers the failure instead, if there is one.
///
/// # Safety
///
/// W1: `header` begins a `RequestCell<C, T>` that the caller has claimed, and the callable is still there.
/// `out` has room for a `T`.
unsafe fn call<C: Callable<T>, T>(header: NonNull<Header>, out: *mut ()) -> Option<Box<NoValue>> {
    // SAFETY: W1: the claimer calls this once, so the callable is there and belongs to it.
    let callable = unsafe {
        let body = (*header.cast::<RequestCell<C, T>>().as_ptr()).body.get();
        ManuallyDrop::into_inner(ptr::read(&raw const (*body).callable))
    };
    context::user_code();
    match catch_unwind(AssertUnwindSafe(|| callable.call())) {
        Ok(Ok(value)) => {
            // SAFETY: W1: `out` is the value's place, or the claimer's own.
            unsafe { out.cast::<T>().write(value) };
            None
        }
        Ok(Err(error)) => failed(NoValue::Error(error)),
        Err(payload) => failed(NoValue::Panic(payload)),
    }
}

#[cold]
fn failed(ending: NoValue) -> Option<Box<NoValue>> {
    Some(Box::new(ending))
}

/// Drops the callable, which was not called.
///
/// # Safety
///
/// As for [`call`].
unsafe fn drop_callable<C: Callable<T>, T>(header: NonNull<Header>) {
    // SAFETY: W1: the caller has claimed the request, so the body holds the callable, which no other thread reaches; it is dropped once.
    // `header` begins a `RequestCell<C, T>`.
    unsafe {
        let body = (*header.cast::<RequestCell<C, T>>().as_ptr()).body.get();
        ManuallyDrop::drop(&mut (*body).callable);
    }
}

/// Drops the value.
///
/// # Safety
///
/// W2: `header` begins a `RequestCell<C, T>` that has a value, to which no other thread has access any more.
unsafe fn drop_value<C: Callable<T>, T>(header: NonNull<Header>) {
    // SAFETY: W2 and the type of the cell, by contract: the body holds a value that no other thread reaches; it is dropped once.
    unsafe {
        let body = (*header.cast::<RequestCell<C, T>>().as_ptr()).body.get();
        ManuallyDrop::drop(&mut (*body).value);
    }
}

/// What a new request is, its types aside.
pub(crate) struct Birth {
    pub word: u64,
    pub lineage: Lineage,
    pub need_pages: u16,
    /// The scope that it is a job of, or null.
    pub scope: *const ScopeCore,
    /// The place where its maker puts it next.
    pub place: HeaderPlace,
}

/// Makes a request on `arena`, whose owner calls this. The parent's count of children already includes it.
///
/// # Safety
///
/// M1 for `arena`. The callable may borrow: the caller ensures that it is run or dropped while the borrow lasts.
#[inline(always)]
pub(crate) unsafe fn make<C: Callable<T>, T>(arena: &Arena, birth: Birth, callable: C) -> NonNull<Header> {
    // SAFETY: by contract.
    unsafe { make_with(arena, || birth, callable) }
}

/// The same, but the birth is determined only when there is memory. So the compiler need not keep it in registers
/// across the rare call that gets memory, for which every caller would pay by saving registers.
///
/// # Safety
///
/// As [`make`].
#[inline(always)]
pub(crate) unsafe fn make_with<C: Callable<T>, T>(
    arena: &Arena,
    birth: impl FnOnce() -> Birth,
    callable: C,
) -> NonNull<Header> {
    let layout = const { Layout::new::<RequestCell<C, T>>() };
    let at = arena.allocate(VTableOf::<C, T>::CLASS, layout);
    // SAFETY: by contract; fresh memory of this layout.
    unsafe { write::<C, T>(at, arena, birth(), callable) }
}

/// The same of what may have edges, whose nodes then stand behind the cell.
///
/// # Safety
///
/// As [`make`].
#[inline(always)]
pub(crate) unsafe fn make_from<K: Construct<T>, T>(arena: &Arena, birth: Birth, what: K) -> NonNull<Header> {
    let layout = const { Layout::new::<RequestCell<K::Callable, T>>() };
    let (class, behind) = match what.edges() {
        0 => (VTableOf::<K::Callable, T>::CLASS, None),
        edges => class_with_nodes(layout, edges),
    };
    let at = arena.allocate(class, layout);
    let nodes = behind.map_or(ptr::null_mut(), |offset| {
        // SAFETY: the class is that of the cell together with the nodes, which begin there.
        unsafe { at.add(offset) }.as_ptr().cast()
    });
    // SAFETY: fresh memory behind the cell, or null.
    let callable = unsafe { what.construct(nodes) };
    // SAFETY: by contract; fresh memory of this layout and class.
    unsafe { write_in::<K::Callable, T>(at, class, arena, birth, callable) }
}

/// The class of a cell with so many nodes behind it, and where they begin. If the whole is too large for a class, that of the cell alone.
fn class_with_nodes(cell: Layout, nodes: usize) -> (u8, Option<usize>) {
    if let Ok(nodes) = Layout::array::<WaitNode>(nodes)
        && let Ok((whole, offset)) = cell.extend(nodes)
    {
        let class = arena::class_of(whole);
        if class != arena::LARGE {
            return (class, Some(offset));
        }
    }
    (arena::class_of(cell), None)
}

/// A cell of the arena's free list for this callable and value; new memory if there is no such list. `None`: the list is empty.
#[inline(always)]
pub(crate) fn take_free<C: Callable<T>, T>(arena: &Arena) -> Option<NonNull<u8>> {
    if const { VTableOf::<C, T>::CLASS == arena::LARGE } {
        return Some(arena.allocate(arena::LARGE, Layout::new::<RequestCell<C, T>>()));
    }
    arena.pop_free(VTableOf::<C, T>::CLASS)
}

/// Makes the arena of the current fiber, which has one, fill that list. The caller looks up its arena again afterwards. Else it would have to save
/// registers over this call, at each birth.
#[inline(always)]
pub(crate) fn fill_here<C: Callable<T>, T>() {
    arena::fill_here(VTableOf::<C, T>::CLASS);
}

/// Makes a request in memory that `arena` has given.
///
/// # Safety
///
/// As [`make`]; the memory is a cell for this callable and value, and fresh.
#[inline(always)]
pub(crate) unsafe fn write<C: Callable<T>, T>(
    at: NonNull<u8>,
    arena: &Arena,
    birth: Birth,
    callable: C,
) -> NonNull<Header> {
    // SAFETY: by contract.
    unsafe { write_in(at, VTableOf::<C, T>::CLASS, arena, birth, callable) }
}

/// The same, in memory of this class.
///
/// # Safety
///
/// As [`write()`].
#[inline(always)]
unsafe fn write_in<C: Callable<T>, T>(
    at: NonNull<u8>,
    class: u8,
    arena: &Arena,
    birth: Birth,
    callable: C,
) -> NonNull<Header> {
    let cell = at.cast::<RequestCell<C, T>>();
    // SAFETY: by contract: the memory is a cell of these types that no other thread knows, so header and callable may be written.
    unsafe {
        write_header(cell.cast(), VTableOf::<C, T>::VTABLE, birth, arena, class);
        (*(*cell.as_ptr()).body.get()).callable = ManuallyDrop::new(callable);
    }
    cell.cast()
}

/// Makes a finished request that holds `value` and belongs to no runtime.
pub(crate) fn make_ready<T>(word: u64, lineage: Lineage, value: T) -> NonNull<Header> {
    struct Never;
    impl<T> Callable<T> for Never {
        fn call(self) -> Result<T, Error> {
            unreachable!("a ready request is never run")
        }

        fn type_name() -> &'static str {
            "ready"
        }
    }
    let layout = Layout::new::<RequestCell<Never, T>>();
    // SAFETY: a header makes the size more than zero.
    let Some(cell) = NonNull::new(unsafe { std::alloc::alloc(layout) }) else {
        std::alloc::handle_alloc_error(layout)
    };
    let cell = cell.cast::<RequestCell<Never, T>>();
    // SAFETY: fresh memory of this layout.
    unsafe {
        Header::prime(cell.cast());
        let birth = Birth { word, lineage, need_pages: 0, scope: ptr::null(), place: HeaderPlace::Nowhere };
        write_header(cell.cast(), VTableOf::<Never, T>::VTABLE, birth, ptr::null(), arena::NO_ARENA);
        (*(*cell.as_ptr()).body.get()).value = ManuallyDrop::new(value);
        cell.cast::<Header>().as_ref().has_value.set(true);
    }
    cell.cast()
}

/// Writes the header of a new request.
///
/// # Safety
///
/// `at` is memory of this arena and class that is large enough and that no other thread knows.
#[inline(always)]
unsafe fn write_header(
    at: NonNull<Header>,
    vtable: &'static VTable,
    birth: Birth,
    arena: *const Arena,
    class: u8,
) {
    // Class, no flags, need and no child gone: one store for the four (see `Header`).
    let need = birth.need_pages.to_ne_bytes();
    let small = u64::from_ne_bytes([class, 0, need[0], need[1], 0, 0, 0, 0]);
    // Place, no local request, no value, no state, and the first rank: the same.
    let state = u64::from_ne_bytes([birth.place as u8, 0, 0, 0, 0, 0, 0, 0]);
    #[cfg(not(shuttle))]
    const {
        let at = offset_of!(Header, place);
        assert!(at.is_multiple_of(8) && at + 8 == size_of::<Header>() && size_of::<HeaderPlace>() == 1);
    }
    const {
        let at = offset_of!(Header, memory_class);
        assert!(at.is_multiple_of(8) && offset_of!(Header, flags) == at + 1);
        assert!(offset_of!(Header, need_pages) == at + 2 && offset_of!(Header, gone) == at + 4);
    }
    let h = at.as_ptr();
    // SAFETY: the caller's fresh memory, which is primed: `next` and `prev` stay what they are, pointers.
    unsafe {
        if !cfg!(shuttle) {
            // Release: a raider may find the memory by an older link, and look at the place; it then looks at that link again
            // ([`crate::state::raid`]). First: so the stores that follow may be combined.
            (*(&raw mut (*h).place).cast::<AtomicU64>()).store(state, Ordering::Release);
        }
        (&raw mut (*h).bare).write(Word::new(birth.word));
        (&raw mut (*h).vtable).write(vtable);
        (&raw mut (*h).memory_class).cast::<u64>().write(small);
        (&raw mut (*h).lineage).write(birth.lineage);
        (&raw mut (*h).ran_on).write(AtomicPtr::new(ptr::null_mut()));
        (&raw mut (*h).fiber).write(AtomicPtr::new(ptr::null_mut()));
        (&raw mut (*h).last_child).write(Cell::new(ptr::null()));
        (&raw mut (*h).waiters).write(WaitQueue::new());
        (&raw mut (*h).side).write(SideSlot::new());
        (&raw mut (*h).lender).write(PublishedPtr::none());
        (&raw mut (*h).scope).write(Cell::new(birth.scope));
        (&raw mut (*h).arena).write(Cell::new(arena));
        if cfg!(shuttle) {
            // Its atomics are more than their bytes.
            (&raw mut (*h).place).write(Placed::new(birth.place));
            (&raw mut (*h).local).write(LocalState::new());
            (&raw mut (*h).has_value).write(Cell::new(false));
            (&raw mut (*h).state).write(Cell::new(0));
            (&raw mut (*h).next_rank).write(Cell::new(0));
            (&raw mut (*h).next).write(AtomicPtr::new(ptr::null_mut()));
        }
    }
}

/// Drops the value, if there is one, containing a panic of its destructor.
///
/// # Safety
///
/// W2.
pub(crate) unsafe fn drop_value_contained(header: NonNull<Header>) {
    // SAFETY: W2.
    let h = unsafe { header.as_ref() };
    if h.has_value.replace(false) {
        // SAFETY: W2.
        contained(h, || unsafe { (h.vtable.drop_value)(header) });
    }
}

/// The same by the end of the request, which is not over before: what the destructor waits for may wait for the request.
///
/// # Safety
///
/// W2.
pub(crate) unsafe fn drop_value_at_end(header: NonNull<Header>) {
    // SAFETY: W2.
    let h = unsafe { header.as_ref() };
    if h.has_value.replace(false) && h.vtable.value_needs_drop {
        // SAFETY: W2: the value was there, and it is taken out here.
        dropping::call_in_end(h, || contained(h, || unsafe { (h.vtable.drop_value)(header) }));
    }
}

/// Drops the callable unrun, containing a panic of a destructor.
///
/// # Safety
///
/// W1.
pub(crate) unsafe fn drop_callable_contained(header: NonNull<Header>) {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    // SAFETY: W1.
    contained(h, || unsafe { (h.vtable.drop_callable)(header) });
}

fn contained(header: &Header, f: impl FnOnce()) {
    context::user_code();
    if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
        report::aside_panicked(header, payload);
    }
}

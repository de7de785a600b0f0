//! Reports what goes wrong and has nobody to be told: to the runtime's hooks, or by their one-line defaults.
//!
//! With the feature `tracing` the default is an event, which a subscriber may take. The feature alone takes nothing away, since any crate of
//! a program can turn it on: if no subscriber takes the event, the line is written all the same.
//!
//! The first runtime wraps the panic hook of the process, once. For a panic inside a request the wrapper calls the
//! program's hook on the thread's own stack, since a backtrace needs more stack than a small request has. A hook that
//! is set later replaces the wrapper and runs on the request's stack. So a program should set its hook before the first
//! runtime, or ask for larger stacks.
//!
//! The wrapper also notes where the panic is. A thread keeps the last place only, with what was about to unwind there: the request on top and
//! what tells the payload from others. Code that catches a payload has a place for it only if both are the same. A payload that comes from another
//! thread by `resume_unwind` has none. Neither has one that was caught and resumed, if the thread has panicked again in between.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::panic;
use std::ptr;
use std::sync::Once;

use forebear_context::context;
use forebear_context::error::internal::drop_contained;
use forebear_context::error::{Failure, SourceLocation};

use crate::record::callback;
use crate::record::fiber;
use crate::record::header::Header;
use crate::record::hooks::Hooks;

/// Which request panics. Memory of requests is used again, so the address alone would not do.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Panicker {
    header: *const Header,
    root_key: u64,
    rank: u32,
}

impl Panicker {
    fn of(header: &Header) -> Panicker {
        Panicker { header, root_key: header.lineage.key(), rank: header.lineage.rank() }
    }

    /// The request on top of this stack, or that there is none.
    fn here() -> Panicker {
        let top = fiber::get().and_then(|fiber| fiber.request());
        top.map_or(Panicker { header: ptr::null(), root_key: 0, rank: 0 }, Panicker::of)
    }
}

/// What tells a payload from others. The hook sees it before it is boxed, so only its type and its text remain the same.
#[derive(PartialEq, Eq)]
struct PayloadMark {
    type_id: TypeId,
    /// Where the text lies, its length and its hash, so that nothing is copied in the hook.
    text: Option<(*const u8, usize, u64)>,
}

impl PayloadMark {
    fn of(payload: &(dyn Any + Send)) -> PayloadMark {
        let text = text_of(payload).map(|text| {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            (text.as_ptr(), text.len(), hasher.finish())
        });
        PayloadMark { type_id: payload.type_id(), text }
    }
}

/// What the hook has noted.
struct PanicPlace {
    panicker: Panicker,
    payload: PayloadMark,
    location: SourceLocation,
}

forebear_context::shim::thread_local! {
    static PANICKED_AT: RefCell<Option<PanicPlace>> = const { RefCell::new(None) };
}

/// Where the panic was that this thread has just caught with this payload, if the hook saw it: in the request `header`, or in the one on top.
pub(crate) fn take_location(header: &Header, payload: &(dyn Any + Send)) -> Option<SourceLocation> {
    let is_this = |place: &mut PanicPlace| {
        [Panicker::of(header), Panicker::here()].contains(&place.panicker)
            && place.payload == PayloadMark::of(payload)
    };
    let take = |at: &RefCell<Option<PanicPlace>>| at.borrow_mut().take_if(is_this);
    PANICKED_AT.try_with(take).ok().flatten().map(|place| place.location)
}

/// Wraps the panic hook, once in the life of the process.
pub(crate) fn wrap_panic_hook() {
    if cfg!(shuttle) {
        return; // the hook says in which schedule it was
    }
    static WRAPPED: Once = Once::new();
    WRAPPED.call_once(|| {
        let inner = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let here = info.location().map(|location| PanicPlace {
                panicker: Panicker::here(),
                payload: PayloadMark::of(info.payload()),
                location: SourceLocation::copied(location),
            });
            let _ = PANICKED_AT.try_with(|at| *at.borrow_mut() = here);
            let coroutine = fiber::get().filter(|fiber| fiber.has_worker());
            match (coroutine, context::current()) {
                (Some(fiber), Some(context)) => {
                    // SAFETY: the context of this stack is valid.
                    let context = unsafe { context.as_ref() };
                    // On the thread's stack nothing can be suspended, and what this fiber knows of its stack is not
                    // true: so the hook can neither wait nor run requests directly.
                    let arena = fiber.arena.replace(std::ptr::null());
                    context.no_suspend().set(context.no_suspend().get() + 1);
                    // SAFETY: we are on that context's stack (F2), and the hook does not wait. If it panics, the
                    // process aborts, as it does for any hook.
                    unsafe { context.switch().on_thread_stack(&mut || inner(info)) };
                    context.no_suspend().set(context.no_suspend().get() - 1);
                    fiber.arena.set(arena);
                }
                _ => inner(info),
            }
        }));
    });
}

/// Calls a hook of the user's. Its panic is contained; one line on standard error names the hook.
fn contained(name: &'static str, hook: impl FnOnce()) {
    if let Err(payload) = callback::call(name, hook) {
        say(&format_args!("{name} has panicked: {}", message_of(&*payload)));
        drop_contained(payload);
    }
}

fn text_of(payload: &(dyn Any + Send)) -> Option<&str> {
    let text = payload.downcast_ref::<&'static str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// What a panic says, if that is text.
pub(crate) fn message_of(payload: &(dyn Any + Send)) -> &str {
    text_of(payload).unwrap_or("(no text)")
}

/// One line on standard error, if that can be written to.
pub(crate) fn say(what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "forebear: {what}");
}

/// An event of `tracing`. Answers whether a subscriber has taken it; not if that has panicked. It is also made if there is no subscriber, since
/// `tracing` can pass it on to `log`.
#[cfg(feature = "tracing")]
macro_rules! taken_by_subscriber {
    ($level:expr, $($event:tt)+) => {{
        let mut taken = false;
        contained(callback::SUBSCRIBER, || {
            let enabled = tracing::event_enabled!($level);
            tracing::event!($level, $($event)+);
            taken = enabled;
        });
        taken
    }};
}

#[cfg(not(feature = "tracing"))]
macro_rules! taken_by_subscriber {
    ($($event:tt)+) => {
        false
    };
}

/// Reports a failure that nobody looked at: to the runtime's hook, else to a subscriber of `tracing` if that feature is on and one takes it,
/// else in one line on standard error.
#[cold]
pub(crate) fn unseen_failure(hooks: Option<&Hooks>, failure: &Failure) {
    match hooks.and_then(|hooks| hooks.on_unhandled_failure.as_ref()) {
        Some(hook) => {
            contained(callback::ON_UNSEEN_FAILURE, || hook(failure));
        }
        None => {
            // The error's own code writes this, and before anything is locked that it could ask for.
            let shown =
                callback::call(callback::DISPLAY, || format!("{failure:#}")).unwrap_or_else(|payload| {
                    drop_contained(payload);
                    format!(
                        "that of request '{}', whose `Display` has panicked",
                        failure.request().escape_debug()
                    )
                });
            if !taken_by_subscriber!(
                tracing::Level::ERROR,
                request = failure.request(),
                "unhandled failure: {shown}"
            ) {
                say(&format_args!("unhandled failure: {shown}"));
            }
        }
    }
}

/// A destructor of a request's value or captures, or a callback that cannot change the outcome, has panicked: reported like
/// a failure that no caller has read.
#[cold]
pub(crate) fn aside_panicked(header: &Header, payload: Box<dyn std::any::Any + Send>) {
    let location = take_location(header, &*payload);
    let failure = Failure::from_panic(payload, header.name().to_owned(), location);
    // SAFETY: the header is alive, hence the record of its arena (M3).
    let hooks = unsafe { header.arena.get().as_ref() }.map(|arena| &arena.runtime().hooks);
    unseen_failure(hooks, &failure);
}

/// Says what a user ought to know: to the runtime's hook, else to a subscriber of `tracing` if that feature is on and one takes it, else in
/// one line on standard error.
#[cold]
pub(crate) fn warn(hooks: &Hooks, what: &str) {
    match &hooks.on_warning {
        Some(hook) => {
            contained(callback::ON_WARNING, || hook(what));
        }
        None => {
            if !taken_by_subscriber!(tracing::Level::WARN, "{what}") {
                say(&what);
            }
        }
    }
}

/// A worker cannot do its work at all.
#[cold]
pub(crate) fn die(why: &dyn std::fmt::Display) -> ! {
    say(&format_args!("a worker cannot continue: {why}"));
    std::process::abort()
}

//! What a timer is for: the name under which a worker acquires it, and who holds it there.

use std::fmt;
use std::num::NonZeroU64;
use std::panic::Location;
use std::sync::Arc;

use forebear_context::context::{Caller, caller};
use forebear_context::error::internal::ShownName;

/// The name of a block of code that has a timer, and its holder. A name that was given is held by the whole worker; the file and the line of
/// a call are held by the request or thread that calls.
///
/// A worker has at most one timer for a scope: acquiring it again moves its deadline. Scopes are the same if their names and their
/// [holders](Self::holder) are. So two requests that pass the same line have a timer each, and so have two branches of a join that run in parallel. A
/// function that calls itself has one; by [`within`](super::within) it has one for each call. A clone
/// is another handle of the same text.
///
/// ```
/// use forebear::timer::Scope;
///
/// assert_eq!(Scope::named("load").name(), "load");
/// let here = || Scope::here();
/// assert_eq!(here().name(), format!("{}#{}", file!(), line!() - 1));
/// assert_eq!(here(), here());
/// assert_ne!(here(), std::thread::spawn(here).join().unwrap());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    name: Arc<str>,
    holder: Option<Holder>,
}

/// The holder of a timer within its worker: a request, a branch of a join on a stack of its own, or a thread outside any request.
///
/// It is a number that no other holder of the same process has or has had. It means nothing in another process, so a message has the
/// worker's name beside it.
///
/// ```
/// use forebear::timer::{Holder, Scope};
///
/// let me = Holder::here();
/// assert_eq!(Scope::here().holder(), Some(me));
/// let sent = me.number(); // in a message to a server
/// assert_eq!(Scope::named("load").held_by(Holder::from_number(sent)).holder(), Some(me));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(NonZeroU64);

/// The bit that tells threads from requests.
const THREAD: u64 = 1 << 63;

impl Holder {
    /// The calling request, else the thread. A region with a limit, and a branch of a join on the stack of its caller, count as the request that called them. A
    /// request that runs on its waiter's stack counts as itself. A branch of a join on another stack is a holder of its own, since both branches may pass
    /// one line at once. Does not suspend.
    #[must_use]
    pub fn here() -> Holder {
        match caller() {
            Caller::Request(number) => Holder(number),
            Caller::Thread(number) => Holder(number | THREAD),
        }
    }

    /// The holder as a number, for a message to a server.
    #[must_use]
    pub fn number(self) -> NonZeroU64 {
        self.0
    }

    /// The holder of that number, on the server's side.
    #[must_use]
    pub fn from_number(number: NonZeroU64) -> Holder {
        Holder(number)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.0.get() & THREAD == 0 { "request" } else { "thread" };
        write!(f, "{what} #{}", self.0.get() & !THREAD)
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({self})")
    }
}

impl Scope {
    /// The scope of that name, without a holder: one for all of the worker.
    pub fn named(name: impl Into<Arc<str>>) -> Scope {
        Scope { name: name.into(), holder: None }
    }

    /// The caller's place in the source, `file#line`, held by the request that calls, else by the thread.
    #[track_caller]
    #[must_use]
    pub fn here() -> Scope {
        let place = Location::caller();
        Scope::named(format!("{}#{}", place.file(), place.line())).held_by(Holder::here())
    }

    /// The scope of the same name that is held by this one.
    ///
    /// ```
    /// use forebear::timer::{Holder, Scope};
    ///
    /// let whole = Scope::named("load");
    /// let mine = whole.clone().held_by(Holder::here());
    /// assert!(whole != mine && whole.name() == mine.name());
    /// ```
    #[must_use]
    pub fn held_by(self, holder: Holder) -> Scope {
        Scope { holder: Some(holder), ..self }
    }

    /// The name, whole and as it was given. Different holders may have scopes of one name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The holder within its worker. `None`: the worker as a whole.
    ///
    /// ```
    /// use forebear::timer::{Holder, Scope};
    ///
    /// assert_eq!(Scope::here().holder(), Some(Holder::here()));
    /// assert_eq!(Scope::named("load").holder(), None);
    /// ```
    #[must_use]
    pub fn holder(&self) -> Option<Holder> {
        self.holder
    }
}

impl From<&str> for Scope {
    fn from(name: &str) -> Scope {
        Scope::named(name)
    }
}

impl From<String> for Scope {
    fn from(name: String) -> Scope {
        Scope::named(name)
    }
}

impl From<&Scope> for Scope {
    fn from(scope: &Scope) -> Scope {
        scope.clone()
    }
}

/// As messages show it: control characters escaped, and cut if it is long. A name may come from another process.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ShownName(&self.name).fmt(f)?;
        self.holder.map_or(Ok(()), |holder| write!(f, " of {holder}"))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_tuple("Scope");
        out.field(&self.name());
        if let Some(holder) = &self.holder {
            out.field(holder);
        }
        out.finish()
    }
}

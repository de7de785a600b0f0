//! What a timer is for: the name under which a worker acquires it.

use std::borrow::Borrow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use forebear_context::error::internal::ShownName;

/// The name of a block of code that has a timer: one that was given, or the file and the line of the call.
///
/// A worker has at most one timer for a scope: who acquires it again moves its deadline. Scopes are the same if their names are. A clone is
/// another handle of the same text.
///
/// ```
/// use forebear_timer::expiry::Scope;
///
/// assert_eq!(Scope::named("load").name(), "load");
/// assert_eq!(Scope::here().name(), format!("{}#{}", file!(), line!()));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// The scope of that name.
    pub fn named(name: impl Into<Arc<str>>) -> Scope {
        Scope(name.into())
    }

    /// The caller's place in the source: `file#line`.
    #[track_caller]
    pub fn here() -> Scope {
        let place = Location::caller();
        Scope(format!("{}#{}", place.file(), place.line()).into())
    }

    /// The name, whole and as it was given.
    pub fn name(&self) -> &str {
        &self.0
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

/// A map from scopes can be asked by name.
impl Borrow<str> for Scope {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// As messages show it: control characters escaped, and cut if it is long. A name may come from another process.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ShownName(&self.0).fmt(f)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&self.name()).finish()
    }
}

//! What the arguments of a resource hold: the [`Stored`](crate::Stored) values and the other resources whose tokens are among them.
//!
//! A worker that comes later makes the resource of the same bytes, so what the tokens name has to be there as long as the resource is. The bytes hold nothing, and the arguments are the caller's. So
//! each token that is encoded in [`noted`] leaves what keeps it.
//!
//! The list belongs to the caller: the request, or else the thread. A `Serialize` of the user may suspend, and the request goes on on another thread.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use forebear::{Request, RequestId};

/// What keeps a value or a resource.
pub(crate) type Hold = Arc<dyn Any + Send + Sync>;

/// Who encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Request(RequestId),
    Thread(ThreadId),
}

impl Caller {
    fn me() -> Caller {
        Request::current()
            .map_or_else(|| Caller::Thread(thread::current().id()), |me| Caller::Request(me.id()))
    }
}

/// The lists that are open, the newest last.
static OPEN: Mutex<Vec<(Caller, Vec<Hold>)>> = Mutex::new(Vec::new());
/// How many there are: mostly none, and then a token that is encoded takes no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
fn open() -> MutexGuard<'static, Vec<(Caller, Vec<Hold>)>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open list. It is closed when this is dropped, also by a panic of a `Serialize`.
struct Noting(Caller);

impl Noting {
    fn close(&self) -> Vec<Hold> {
        let mut open = open();
        let mine = open.iter().rposition(|(caller, _)| *caller == self.0);
        COUNT.fetch_sub(1, Ordering::Relaxed);
        mine.map(|at| open.remove(at).1).unwrap_or_default()
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        drop(self.close());
    }
}

/// Encodes something, and says what its tokens hold.
pub(crate) fn noted<T>(encode: impl FnOnce() -> T) -> (T, Vec<Hold>) {
    let noting = Noting(Caller::me());
    // The caller's own change: it sees that in each `note`.
    COUNT.fetch_add(1, Ordering::Relaxed);
    open().push((noting.0, Vec::new()));
    let encoded = encode();
    let holds = noting.close();
    std::mem::forget(noting);
    (encoded, holds)
}

/// A token is encoded that this keeps.
pub(crate) fn note(hold: impl FnOnce() -> Option<Hold>) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let (me, hold) = (Caller::me(), hold());
    let mut open = open();
    if let Some((_, holds)) = open.iter_mut().rev().find(|(caller, _)| *caller == me) {
        holds.extend(hold);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// How many hold it beside the test.
    fn held(token: &Hold) -> usize {
        Arc::strong_count(token) - 1
    }

    #[test]
    fn what_is_encoded_is_held_by_the_list_of_its_caller_and_by_no_other() {
        let token: Hold = Arc::new(1);
        note(|| Some(token.clone()));
        assert_eq!(held(&token), 0);
        let ((), holds) = noted(|| {
            note(|| Some(token.clone()));
            thread::scope(|scope| _ = scope.spawn(|| note(|| Some(token.clone()))).join());
            let ((), inner) = noted(|| note(|| Some(token.clone())));
            assert_eq!(inner.len(), 1);
        });
        assert_eq!((holds.len(), held(&token)), (1, 1));
        drop(holds);
        assert_eq!(held(&token), 0);
    }

    #[test]
    fn a_panic_closes_the_list() {
        let token: Hold = Arc::new(1);
        let panics = || {
            noted(|| {
                note(|| Some(token.clone()));
                panic!("it cannot be encoded");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(held(&token), 0);
        note(|| Some(token.clone()));
        assert_eq!(held(&token), 0);
    }
}

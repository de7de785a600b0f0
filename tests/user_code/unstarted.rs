//! Waits in the destructors of what requests have captured that never start: for what the same destructor has dropped or
//! cancelled, and for the request itself.

use std::sync::{Arc, Mutex};

use forebear::sync::Event;
use forebear::{Request, Runtime, WaitError};

use crate::support::on_each;

/// Calls its closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A request of this runtime that is not submitted, and calls `f` when its captures are dropped.
fn unstarted(runtime: &Runtime, f: impl FnMut() + Send + 'static) -> Request<()> {
    let captured = OnDrop(f);
    Request::builder().on(runtime).name("unstarted").build(move || drop(captured))
}

/// Drops what waits for the effect of a drop that is put off.
fn drop_and_wait(runtime: &Runtime) {
    let (over, within) = (Arc::new(Event::new()), runtime.clone());
    let outer = unstarted(runtime, {
        let over = over.clone();
        move || {
            let inner = unstarted(&within, || ());
            let over2 = over.clone();
            inner.on_done(move |_| over2.set());
            drop(inner);
            over.wait().unwrap();
        }
    });
    drop(outer);
    assert!(over.is_set());
}

/// Cancels what waits for a request whose cancel is put off.
fn cancel_and_wait(runtime: &Runtime) {
    let inner = unstarted(runtime, || ());
    let waited = Arc::new(Event::new());
    let outer = unstarted(runtime, {
        let (inner, waited) = (inner.clone(), waited.clone());
        move || {
            let _ = inner.cancel();
            assert!(matches!(inner.wait(), Err(WaitError::TargetCancelled(_))));
            waited.set();
        }
    });
    let _ = outer.cancel();
    assert!(waited.is_set());
}

/// Cancels a request whose captures wait for it.
fn wait_for_itself(runtime: &Runtime) {
    let this: Arc<Mutex<Option<Request<()>>>> = Arc::default();
    let found: Arc<Mutex<Option<String>>> = Arc::default();
    let request = unstarted(runtime, {
        let (this, found) = (this.clone(), found.clone());
        move || {
            let own = this.lock().unwrap().clone().unwrap();
            if let Err(WaitError::CircularWait(cycle)) = own.wait() {
                *found.lock().unwrap() = Some(cycle.to_string());
            }
        }
    });
    *this.lock().unwrap() = Some(request.clone());
    let _ = request.cancel();
    assert!(found.lock().unwrap().take().expect("a cycle was found").contains("unstarted"));
    drop(this.lock().unwrap().take());
}

/// In a request, on a thread that runs none, and when the runtime has been shut down.
fn everywhere(f: fn(&Runtime)) {
    on_each(|runtime| {
        runtime.run(|| f(runtime));
        f(runtime);
        runtime.shutdown(std::time::Duration::from_secs(60)).unwrap();
        f(runtime);
    });
}

#[test]
fn a_destructor_may_wait_for_what_comes_of_a_drop_that_is_put_off() {
    everywhere(drop_and_wait);
}

#[test]
fn a_destructor_may_wait_for_a_request_whose_end_is_put_off() {
    everywhere(cancel_and_wait);
}

#[test]
fn a_destructor_that_waits_for_the_request_it_belongs_to_is_answered_with_the_cycle() {
    everywhere(wait_for_itself);
}

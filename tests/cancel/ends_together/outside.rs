//! Cancels by threads that no runtime knows, and after the workers have gone.

use super::*;

/// Waits for its own request when it is dropped.
struct WaitsForItself(Arc<OnceLock<AnyRequest>>, Count);

impl Drop for WaitsForItself {
    fn drop(&mut self) {
        if matches!(self.0.get().unwrap().wait(), Err(WaitError::CircularWait(_))) {
            self.1.up();
        }
    }
}

#[test]
fn a_cancel_by_a_thread_that_no_runtime_has_met_names_a_wait_of_captures_for_their_own_request() {
    on_each(|runtime| {
        let (itself, told) = (Arc::new(OnceLock::new()), Count::new());
        let captures = WaitsForItself(itself.clone(), told.clone());
        let request = Request::builder().on(runtime).build(move || drop(captures));
        itself.set(request.to_untyped()).unwrap();
        let thread = thread::spawn(move || request.cancel());
        assert_eq!(thread.joined().unwrap(), Cancellation::Marked);
        assert_eq!(told.get(), 1);
    });
}

/// A thread that blocks in the first's captures leaves the second to workers, which have gone.
#[test]
fn what_a_thread_cancels_together_ends_also_when_the_workers_have_gone() {
    on_each_of(&[1, 2], |runtime| {
        let (captures, place, ends) = waits_for();
        let first = Request::builder().on(runtime).build(move || drop(captures));
        let second = Request::builder().on(runtime).build(|| ());
        place.set(second.clone()).unwrap();
        runtime.shutdown(Duration::from_secs(60)).unwrap();
        RequestSet::from_iter([first.clone(), second.clone()]).cancel();
        assert_eq!(ends.get(), 1);
        ends_cancelled(&first);
        ends_cancelled(&second);
    });
}

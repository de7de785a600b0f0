//! What a runtime refuses that was shut after the last look of the thread that submits.

use std::sync::Arc; // not modelled: a test
use std::time::Duration;

use super::*;
use crate::{CancelReason, Outcome, Request, Runtime};

const LONG: Duration = Duration::from_secs(60);

/// Several are submitted: the captures of one may wait for another.
#[test]
fn what_is_refused_at_its_push_ends_when_the_caller_carries_it_out() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let probe = Arc::new(());
    let captured = probe.clone();
    let request = runtime.enter(|| Request::new(move || drop(captured)));
    // The word is submitted before the shutdown, and the entry is pushed after it.
    assert!(request.header().word().submit(SUBMITTED));
    runtime.shutdown(LONG).unwrap();
    let mut refused = Marked::default();
    // SAFETY: the entry's link is that of the submission; the handle.
    unsafe { enter_roots(request.header_ptr(), Some(&mut refused)) };
    assert_eq!(
        (Arc::strong_count(&probe), request.is_done()),
        (2, false),
        "the caller has yet to submit others"
    );
    refused.carry_out();
    assert_eq!(Arc::strong_count(&probe), 1);
    assert!(matches!(request.outcome(), Some(Outcome::Cancelled(CancelReason::Shutdown))));
}

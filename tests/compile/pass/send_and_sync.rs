//! What may go to other threads, or be used by several at once; and what may be moved about and caught.
use forebear::{
    AnyRequest, BuildError, CancelReason, Cancelled, Cycle, Error, Failure, Metrics, Outcome, Priority,
    Request, RequestBuilder, RequestId, Runtime, RuntimeBuilder, Scope, StackError, State, TimeoutError,
    WaitError,
};
use std::cell::Cell;
use std::panic::{RefUnwindSafe, UnwindSafe};

fn both<T: Send + Sync + 'static>() {}
fn send<T: Send + 'static>() {}
fn sync<T: Sync>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}
fn handle<T: Clone + Unpin + std::fmt::Debug>() {}
fn unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}

struct Bare;

fn main() {
    both::<Request<String>>();
    both::<AnyRequest>();
    both::<RequestBuilder>();
    both::<RequestId>();
    both::<Runtime>();
    both::<Metrics>();
    both::<(Priority, State, CancelReason)>();
    both::<Outcome<'static, String>>();
    both::<(Error, Cycle)>();
    send::<RuntimeBuilder>();
    sync::<Scope<'static, 'static>>();
    error::<WaitError>();
    error::<TimeoutError>();
    error::<Cancelled>();
    error::<Failure>();
    error::<StackError>();
    error::<BuildError>();
    // A handle asks nothing of its value.
    handle::<Request<Bare>>();
    handle::<Request<Cell<u32>>>();
    handle::<Request<*const ()>>();
    unwind_safe::<Request<String>>();
    handle::<AnyRequest>();
}

//! How a callable ended, if not with a value.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebear_context::error::internal::{drop_contained, payload_into_error};
use forebear_context::error::{CancelReason, Error, WaitError};

/// How the callable ended, if not with a value.
pub(crate) enum NoValue {
    /// A `try_` form returned an error.
    Error(Error),
    /// It panicked.
    Panic(Box<dyn std::any::Any + Send>),
}

impl NoValue {
    /// Why the target was cancelled, if it is the answer to a wait for such a one, or was caused by one.
    pub(crate) fn target_cancelled(&self) -> Option<CancelReason> {
        let NoValue::Error(error) = self else { return None };
        let find = |error: &Error| {
            error.chain().find_map(|link| match link.downcast_ref() {
                Some(WaitError::TargetCancelled(reason)) => Some(*reason),
                _ => None,
            })
        };
        ask(error, find).ok().flatten()
    }

    /// The same with an error that travelled as an unwind for what it is; and whether it means a cancellation.
    pub(crate) fn looked_into(self) -> (NoValue, bool) {
        let ending = match self {
            NoValue::Panic(payload) => match payload_into_error(payload) {
                Ok(error) => NoValue::Error(error),
                Err(payload) => NoValue::Panic(payload),
            },
            error => error,
        };
        let NoValue::Error(error) = ending else { return (ending, false) };
        match ask(&error, Error::is_cancelled) {
            Ok(of_cancel) => (NoValue::Error(error), of_cancel),
            Err(payload) => {
                drop_contained(error);
                (NoValue::Panic(payload), false)
            }
        }
    }
}

/// Calls a method of an error that reads its source. It is the user's, and may panic.
fn ask<'a, R>(error: &'a Error, what: impl FnOnce(&'a Error) -> R) -> std::thread::Result<R> {
    catch_unwind(AssertUnwindSafe(|| what(error)))
}

//! No fibers: under loom a context is a loom thread, which blocks where a fiber would leave.

use std::ptr::NonNull;

use super::{Body, StackMemory};
use crate::context::Context;

/// The face of a fiber, for code that a model compiles but never runs.
#[derive(Debug, Default)]
pub struct Switch;

impl Switch {
    /// A fiber without a stack.
    pub const fn none() -> Switch {
        Switch
    }

    /// Not in a model.
    ///
    /// # Safety
    ///
    /// None to keep: it always panics.
    pub unsafe fn start(&self, _: StackMemory, _: Body, _: NonNull<Context>) {
        unreachable!("a model has no fibers")
    }

    /// Not in a model.
    ///
    /// # Safety
    ///
    /// None to keep: it always panics.
    pub unsafe fn resume(&self) -> Option<NonNull<Context>> {
        unreachable!("a model has no fibers")
    }

    /// Not in a model.
    ///
    /// # Safety
    ///
    /// None to keep: it always panics.
    pub unsafe fn leave(&self, _: Option<NonNull<Context>>) {
        unreachable!("a model has no fibers")
    }

    /// Calls `f`.
    ///
    /// # Safety
    ///
    /// None to keep.
    pub unsafe fn on_thread_stack(&self, f: &mut dyn FnMut()) {
        f();
    }

    /// Nothing to forget.
    ///
    /// # Safety
    ///
    /// None to keep.
    pub unsafe fn reset(&self) {}
}

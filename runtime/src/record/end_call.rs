//! User code that the end of a request calls, on the stack that calls it: as a list, since that code may run other requests there.

/// Such a call, in the frame that makes it. `H` is a request's header. Written when it is made; read by the stack itself, and by a thread that holds
/// the stack's wait.
pub(crate) struct EndCall<H> {
    /// Whose end it is. The request is not over, and no longer on the stack.
    pub header: *const H,
    /// What was on top of the stack at the call.
    pub below: *const H,
    /// The one further down on the same stack.
    pub prev: *const EndCall<H>,
}

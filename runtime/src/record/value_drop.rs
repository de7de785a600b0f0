//! The value of a request that its end drops, on the stack that calls the destructor: as a list, since a destructor may run other requests there.

/// One of them, in the frame that calls the destructor. `H` is a request's header. Written when it is made; read by the stack itself, and by a thread
/// that holds the stack's wait.
pub(crate) struct ValueDrop<H> {
    /// Whose value it is. It is not over.
    pub header: *const H,
    /// What was on top of the stack when the destructor was called.
    pub below: *const H,
    /// The one further down on the same stack.
    pub prev: *const ValueDrop<H>,
}

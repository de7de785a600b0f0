//! What a request is made of: its header, the cell of its callable and value, its side block, and the lists that it stands in.

pub(crate) mod callback;
pub(crate) mod cell;
pub(crate) mod children;
pub(crate) mod header;
pub(crate) mod hooks;
pub(crate) mod prefetch;
pub(crate) mod private_queue;
pub(crate) mod side;

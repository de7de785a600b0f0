//! Who waits for whom: the owners of locks, urgency along waits, and the search for a cycle.

pub(crate) mod cycle;
pub(crate) mod owner;
pub(crate) mod strays;
pub(crate) mod urgency;

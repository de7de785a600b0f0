//! What waits for what: the owners of locks, urgency along waits, and the search for a cycle.

pub(crate) mod cycle;
pub(crate) mod declared;
pub(crate) mod foreign_stacks;
pub(crate) mod owner;
pub(crate) mod urgency;

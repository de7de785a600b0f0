//! Deadlines of a runtime, and the estimate of the time that spares reading the clock.

pub(crate) mod coarse;
pub(crate) mod deadlines;

//! Storms: cancels by the hundred thousand, and in the middle of everything. Nobody can say what comes of them; but every request ends,
//! once, as it was told to.

#[path = "../../support/cancelling.rs"]
mod cancelling;
mod many;
mod programs;
mod races;
#[path = "../../support/mod.rs"]
mod support;

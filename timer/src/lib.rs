//! What is due when: a hierarchical timing wheel, which is passive. It has no thread, looks at no clock and calls nobody: its owner says
//! what time it is, and does what is due.

#![forbid(unsafe_code)]

mod moment;
mod wheel;

pub use self::wheel::{Key, Wheel};

//! Values that notice what must not happen to them, and what is reported when it does.
//!
//! A [`Value`] counts itself in its world from its making to its drop, notices a second drop, and may run a body of the program in
//! its destructor. A [`Frame`] stands on the stack of a function that lends it to others; it notices when the function is
//! left while somebody still uses it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::act::act;
use crate::program::Body;
use crate::world::World;

const LIVE: u64 = 0x11fe_11fe_11fe_11fe;
const DEAD: u64 = 0xdead_dead_dead_dead;

/// Reports a broken promise and ends the process; the supervisor finds the line.
pub(crate) fn violation(what: std::fmt::Arguments<'_>) -> ! {
    eprintln!("VIOLATION: {what}");
    std::process::abort()
}

/// What requests return, what channels carry, and what closures capture.
#[derive(Debug)]
pub(crate) struct Value {
    world: Arc<World>,
    magic: AtomicU64,
    bomb: Option<Body>,
}

impl Value {
    /// A value whose destructor runs `bomb`.
    pub(crate) fn new(world: &Arc<World>, bomb: Option<Body>) -> Value {
        world.live.fetch_add(1, Ordering::Relaxed);
        Value { world: world.clone(), magic: AtomicU64::new(LIVE), bomb }
    }

    pub(crate) fn check(&self) {
        let magic = self.magic.load(Ordering::Relaxed);
        if magic != LIVE {
            violation(format_args!("a value is used that was dropped ({magic:x})"));
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let magic = self.magic.swap(DEAD, Ordering::Relaxed);
        if magic != LIVE {
            violation(format_args!("a value is dropped a second time ({magic:x})"));
        }
        self.world.live.fetch_sub(1, Ordering::Relaxed);
        let Some(bomb) = self.bomb.take() else { return };
        if std::thread::panicking() {
            // A panic that leaves a destructor during an unwind aborts, by the rules of Rust.
            let _ = catch_unwind(AssertUnwindSafe(|| act(&self.world, &bomb)));
        } else {
            let _ = act(&self.world, &bomb);
        }
    }
}

/// What a function lends to others for the length of a call.
#[derive(Debug)]
pub(crate) struct Frame {
    magic: AtomicU64,
    users: AtomicU32,
}

impl Frame {
    pub(crate) fn new() -> Frame {
        Frame { magic: AtomicU64::new(LIVE), users: AtomicU32::new(0) }
    }

    /// Uses the frame until the answer is dropped.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.check();
        self.users.fetch_add(1, Ordering::SeqCst);
        Inside(self)
    }

    fn check(&self) {
        let magic = self.magic.load(Ordering::SeqCst);
        if magic != LIVE {
            violation(format_args!("a borrowed frame is gone ({magic:x})"));
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.magic.store(DEAD, Ordering::SeqCst);
        if self.users.load(Ordering::SeqCst) != 0 {
            violation(format_args!("a frame is left while somebody who borrowed it runs"));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Frame);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.check();
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

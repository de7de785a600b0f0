//! Values that notice what must not happen to them, and what is reported when it does.
//!
//! A [`Value`] counts itself in its world from its making to its drop, notices a second drop, and may run a body of the program in
//! its destructor. A [`Frame`] stands on the stack of a function that lends it to others; it notices when the function is
//! left while somebody still uses it.

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::act::act;
use crate::program::{Body, ErrorKind};
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
    /// No panic leaves its destructor.
    quiet: bool,
}

impl Value {
    /// A value whose destructor runs `bomb`.
    pub(crate) fn new(world: &Arc<World>, bomb: Option<Body>) -> Value {
        world.live.fetch_add(1, Ordering::Relaxed);
        Value { world: world.clone(), magic: AtomicU64::new(LIVE), bomb, quiet: false }
    }

    /// The same, and no panic leaves the destructor. For what is dropped while something is returned: rustc leaks what a function returns
    /// if a local of it panics in its destructor.
    pub(crate) fn quiet(world: &Arc<World>, bomb: Option<Body>) -> Value {
        let mut value = Value::new(world, bomb);
        value.quiet = true;
        value
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
        if self.quiet || std::thread::panicking() {
            // A panic that leaves a destructor during an unwind aborts, by the rules of Rust.
            let _ = catch_unwind(AssertUnwindSafe(|| act(&self.world, &bomb)));
        } else {
            let _ = act(&self.world, &bomb);
        }
    }
}

/// An error that runs a body of the program when it is dropped, or asked.
#[derive(Debug)]
pub(crate) struct HostileError {
    value: Value,
    asked: Mutex<Option<Body>>,
}

impl HostileError {
    /// One of this kind, with the first body of its node.
    pub(crate) fn new(world: &Arc<World>, kind: ErrorKind, bodies: &[Body]) -> HostileError {
        let body = |wanted| (kind == wanted).then(|| bodies[0].clone());
        let value = Value::quiet(world, body(ErrorKind::Dropped));
        HostileError { value, asked: Mutex::new(body(ErrorKind::Asked)) }
    }
}

impl fmt::Display for HostileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.check();
        f.write_str("on purpose")
    }
}

impl Error for HostileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.value.check();
        let body = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(body) = body {
            let _ = act(&self.value.world, &body);
        }
        None
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

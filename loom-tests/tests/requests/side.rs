//! A side block is made while the owner of the list of children moves its head; both are one word.
//!
//! Shipped: `BlockSlot`. The block here has nothing but the head.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::cell::Cell;
use std::ptr;

use forebear_context::shim::Arc;
use forebear_context::shim::thread;
use forebear_runtime::model::slot::{Block, BlockSlot};

use self::cell::exhaust;

/// The head of the list, and who made the block.
struct Side(Cell<*const u64>, &'static str);

impl Side {
    fn by(maker: &'static str) -> Box<Side> {
        Box::new(Side(Cell::new(ptr::null()), maker))
    }
}

impl Default for Side {
    fn default() -> Side {
        *Side::by("nobody in particular")
    }
}

impl Block for Side {
    type Child = u64;

    fn first_child(&self) -> &Cell<*const u64> {
        &self.0
    }
}

static CHILDREN: [u64; 2] = [0, 1];

struct Shared(BlockSlot<Side>);

// SAFETY: the head is touched by one thread alone, which is what the model is about.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

#[test]
fn a_block_is_made_while_the_head_moves() {
    exhaust(&["before", "after"], |answers| {
        let shared = Arc::new(Shared(BlockSlot::new()));
        let maker = {
            let shared = shared.clone();
            thread::spawn(move || ptr::from_ref(shared.0.get_or_make(Box::default)) as usize)
        };
        // SAFETY: this thread is the list's owner.
        unsafe {
            shared.0.set_first_child(&CHILDREN[0]);
            shared.0.set_first_child(&CHILDREN[1]);
            answers.note(if shared.0.get().is_some() { "before" } else { "after" });
            assert!(ptr::eq(shared.0.first_child(), &CHILDREN[1]), "the owner's last word is what it finds");
        }
        let made = maker.join().unwrap();
        let found = shared.0.get().map(|side| ptr::from_ref(side) as usize);
        assert_eq!(found, Some(made), "the block that was answered stays");
        // SAFETY: as above; the maker is over.
        unsafe {
            assert!(ptr::eq(shared.0.first_child(), &CHILDREN[1]), "the block has the last head");
            shared.0.set_first_child(ptr::null());
            drop(shared.0.take());
        }
    });
}

#[test]
fn two_make_a_block() {
    exhaust(&["mine", "theirs"], |answers| {
        let shared = Arc::new(Shared(BlockSlot::new()));
        // SAFETY: this thread is the list's owner.
        unsafe { shared.0.set_first_child(&CHILDREN[0]) };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.0.put(Side::by("theirs")).1)
        };
        let made = shared.0.put(Side::by("mine")).1;
        assert_eq!(other.join().unwrap(), made, "both are answered the same block");
        answers.note(made);
        // SAFETY: as above.
        unsafe {
            assert!(ptr::eq(shared.0.first_child(), &CHILDREN[0]));
            drop(shared.0.take());
        }
    });
}

//! Raises of urgency that are left with a worker: the shipped list and attention word, and the worker's look at them.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::sync::Arc;

use forebear_runtime::model::attention::{Attention, RAISED};
use forebear_runtime::model::raises::Raises;

use self::cell::{exhaust, with};

struct Post {
    raises: Raises<u8>,
    attention: Attention,
}

impl Post {
    fn new() -> Arc<Post> {
        Arc::new(Post { raises: Raises::default(), attention: Attention::new() })
    }

    fn leave(&self, raise: u8) {
        self.raises.leave(&self.attention, raise);
    }

    /// What a worker does at a scheduling point.
    fn attend(&self) -> Vec<u8> {
        if self.attention.get() & RAISED == 0 { Vec::new() } else { self.raises.take(&self.attention) }
    }
}

/// The bit is up for one raise, and the worker takes it down while another one is left: is that followed then, or at the next look?
#[test]
fn a_raise_left_as_the_bit_goes_down_is_followed_then_or_at_the_next_look() {
    exhaust(&["at once", "later"], |answers| {
        let post = Post::new();
        post.leave(1);
        let other = with(&post, |post| post.leave(2));
        let first = post.attend();
        other.join().unwrap();
        answers.note(["later", "at once"][first.len() - 1]);
        assert_eq!([first, post.attend()].concat(), [1, 2], "a raise that nobody follows");
    });
}

/// A thread takes its raise back, since the runtime may have ended, while the worker takes what was left: exactly one of them has it.
#[test]
fn a_raise_that_is_taken_back_is_not_followed() {
    exhaust(&["taken back", "followed"], |answers| {
        let post = Post::new();
        let other = with(&post, |post| {
            post.leave(1);
            post.raises.take_back(|raise| *raise == 1).is_some()
        });
        // Whether it saw the bit or not: the loop takes what is there before it closes the runtime, too.
        let followed = post.raises.take(&post.attention);
        let taken_back = other.join().unwrap();
        let followed = [followed, post.attend()].concat();
        answers.note(if taken_back { "taken back" } else { "followed" });
        assert_eq!(followed.len() + usize::from(taken_back), 1, "a raise that two have, or nobody");
    });
}

//! No runtime: one thread that touches, for each cancel of one among many, the memory that a stackful runtime has to touch. A bound, not a rival: how long the
//! page tables and the memory take, in this process on this machine.
//!
//! Each task has a slot of 64 KiB, of which the highest page is used, and stands in a ring. Who leaves the ring reads its own page, which says where its two neighbours are, and
//! then writes to theirs.

use std::hint::black_box;
use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::load::Load;
use crate::rival::{Rival, Run};

/// Cold pages.
#[derive(Debug)]
pub struct Pages;

/// Words of a slot, of a page, and of a memory line.
const SLOT: usize = 64 * 1024 / 8;
const PAGE: usize = 4096 / 8;
const LINE: usize = 8;
/// So many lines of its page a suspended request has in use.
const LINES: usize = 25;

/// Where the links of a task stand: in the last line of its slot.
const fn links(task: usize) -> usize {
    (task + 1) * SLOT - LINE
}

impl Rival for Pages {
    fn run(&self, load: Load) -> Option<Run> {
        let Load::CancelSome { among, victims } = load else { return None };
        let (tasks, apart) = (among as usize, (among / victims) as usize);
        // Mapped, and not touched yet.
        let mut words = vec![0_u64; tasks * SLOT];
        for task in 0..tasks {
            words[(task + 1) * SLOT - PAGE..(task + 1) * SLOT].fill(1);
            words[links(task)] = ((task + tasks - 1) % tasks) as u64;
            words[links(task) + 1] = ((task + 1) % tasks) as u64;
        }
        Some(Run::timed(|| {
            let (mut left, mut nothing) = (0, 0);
            for victim in (0..tasks).step_by(apart).take(victims as usize) {
                // One victim is over before the next one is cancelled: no processor may begin with the next one meanwhile.
                let at = links(victim + nothing);
                let own = &words[at - (LINES - 1) * LINE..at + LINE];
                let sum: u64 = own.iter().step_by(LINE).sum();
                let (before, after) = (words[at] as usize, words[at + 1] as usize);
                words[links(before) + 1] = after as u64;
                words[links(after)] = before as u64;
                let written = black_box(&words)[links(before) + 1] ^ words[links(after)];
                nothing = ((sum ^ written) >> 63) as usize;
                // The end of a wait has an exchange, which waits for the writes before it.
                fence(SeqCst);
                left += 1;
            }
            left
        }))
    }
}

//! Rectangles, the grid that cuts a picture into them, and blocks: the pixels of a rectangle, counted while they live.
//!
//! A [`Block`] holds a token of its [`Live`] counter from birth to drop. The counter is how this example shows that the
//! values of requests go as soon as nobody needs them: its peak must stay under a bound that does not depend on the
//! height of the picture.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A rectangle of pixels; the right and bottom edges are outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Rect {
    /// The first column to the right of it.
    pub(crate) fn right(self) -> usize {
        self.x + self.width
    }

    /// The first row below it.
    pub(crate) fn bottom(self) -> usize {
        self.y + self.height
    }

    /// The number of its pixels.
    pub(crate) fn len(self) -> usize {
        self.width * self.height
    }

    /// This one and `margin` pixels around it, as far as they lie within `width` x `height`.
    pub(crate) fn grown(self, margin: usize, width: usize, height: usize) -> Rect {
        let (x, y) = (self.x.saturating_sub(margin), self.y.saturating_sub(margin));
        let (right, bottom) = ((self.right() + margin).min(width), (self.bottom() + margin).min(height));
        Rect { x, y, width: right - x, height: bottom - y }
    }

    /// What it has in common with `other`, if anything.
    pub(crate) fn common(self, other: Rect) -> Option<Rect> {
        let (x, y) = (self.x.max(other.x), self.y.max(other.y));
        let (right, bottom) = (self.right().min(other.right()), self.bottom().min(other.bottom()));
        (x < right && y < bottom).then(|| Rect { x, y, width: right - x, height: bottom - y })
    }
}

/// A picture cut into squares of `block` pixels; those at the right and at the bottom may be smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) width: usize,
    pub(crate) height: usize,
    block: usize,
}

impl Grid {
    pub(crate) fn new(width: usize, height: usize, block: usize) -> Grid {
        assert!(width > 0 && height > 0 && block > 0, "a grid of nothing");
        Grid { width, height, block }
    }

    pub(crate) fn columns(self) -> usize {
        self.width.div_ceil(self.block)
    }

    pub(crate) fn rows(self) -> usize {
        self.height.div_ceil(self.block)
    }

    /// The number of blocks.
    pub(crate) fn len(self) -> usize {
        self.columns() * self.rows()
    }

    /// The rectangle of one block.
    pub(crate) fn rect(self, column: usize, row: usize) -> Rect {
        let (x, y) = (column * self.block, row * self.block);
        let (width, height) = (self.block.min(self.width - x), self.block.min(self.height - y));
        Rect { x, y, width, height }
    }

    /// The columns of the blocks that lie under `margin` pixels around a block of `column`.
    pub(crate) fn columns_near(self, column: usize, margin: usize) -> Range<usize> {
        self.near(column, margin, self.width)
    }

    /// The same for rows.
    pub(crate) fn rows_near(self, row: usize, margin: usize) -> Range<usize> {
        self.near(row, margin, self.height)
    }

    /// How many blocks away, at most, pixels in a margin of `margin` are.
    pub(crate) fn reach(self, margin: usize) -> usize {
        margin.div_ceil(self.block)
    }

    fn near(self, index: usize, margin: usize, size: usize) -> Range<usize> {
        let first = index * self.block;
        let end = (first + self.block).min(size) + margin;
        first.saturating_sub(margin) / self.block..end.min(size).div_ceil(self.block)
    }
}

/// Counts blocks: how many are alive, were alive at once, and have been made. Its clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    peak: AtomicUsize,
    made: AtomicUsize,
}

impl Live {
    /// The most that were alive at the same time.
    pub(crate) fn peak(&self) -> usize {
        self.0.peak.load(Relaxed)
    }

    /// All that were ever made.
    pub(crate) fn made(&self) -> usize {
        self.0.made.load(Relaxed)
    }

    /// Those that are alive.
    #[cfg(test)]
    pub(crate) fn now(&self) -> usize {
        self.0.now.load(Relaxed)
    }
}

/// The pixels of one rectangle, row by row. It moves from request to request and is never copied.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) rect: Rect,
    pub(crate) pixels: Vec<f32>,
    live: Live,
}

impl Block {
    /// A block that counts in `live` until it is dropped.
    pub(crate) fn new(rect: Rect, pixels: Vec<f32>, live: &Live) -> Block {
        assert_eq!(pixels.len(), rect.len());
        // Relaxed: each counter is exact by itself, and nothing else is read because of what it says.
        let now = live.0.now.fetch_add(1, Relaxed) + 1;
        live.0.peak.fetch_max(now, Relaxed);
        live.0.made.fetch_add(1, Relaxed);
        Block { rect, pixels, live: live.clone() }
    }

    /// Its part of the picture's row `y`, from column `from` to column `to`.
    pub(crate) fn row(&self, y: usize, from: usize, to: usize) -> &[f32] {
        let row = &self.pixels[(y - self.rect.y) * self.rect.width..][..self.rect.width];
        &row[from - self.rect.x..to - self.rect.x]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.live.0.now.fetch_sub(1, Relaxed);
    }
}

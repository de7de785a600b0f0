//! The requests: how a picture is ordered, block by block, and how little of it is alive at a time.
//!
//! Every handle to a block's request is a claim to its value, and the value goes with the last of them. So the whole
//! memory plan is a matter of who holds which handle, and until when:
//!
//! - an **input** is held by the rows that the loop below still orders from, and by each smoothing request, until that
//!   has pasted it;
//! - a **smoothed** block is held by the one difference that wants it, which takes it, and subtracts in place;
//! - a **difference** is held by the loop, which takes it, copies it into the picture and drops it.
//!
//! The loop goes through the picture in row order and stays at most [`ahead`](Job) differences in front of the one it
//! copies next. Only a band of rows is therefore alive, however high the picture: see [`Job::bound`].

use std::collections::VecDeque;
use std::sync::Arc;

use forebear::prelude::*;

use crate::blocks::{Block, Grid, Live, Rect};
use crate::picture::Source;
use crate::smooth::{Kernel, Tile};

/// One picture to be computed.
#[derive(Debug)]
pub(crate) struct Job {
    source: Arc<Source>,
    grid: Grid,
    kernels: [Arc<Kernel>; 2],
    live: Live,
    /// How many differences may be ordered and not yet copied: enough to keep every thread busy while the loop waits
    /// for the oldest.
    ahead: usize,
}

impl Job {
    pub(crate) fn new(source: Arc<Source>, grid: Grid, kernels: [Arc<Kernel>; 2], threads: usize) -> Job {
        Job { source, grid, kernels, live: Live::default(), ahead: 4 * threads.max(1) }
    }

    pub(crate) fn grid(&self) -> Grid {
        self.grid
    }

    /// The count of its blocks.
    pub(crate) fn live(&self) -> &Live {
        &self.live
    }

    /// The most blocks that can be alive at once: the rows of inputs under the halo of a row, as many more as the loop
    /// runs ahead, and two for each difference under way.
    pub(crate) fn bound(&self) -> usize {
        let under_way = self.ahead + 1;
        let reach = self.grid.reach(self.margin());
        let rows = 2 * reach + 1 + under_way.div_ceil(self.grid.columns());
        self.grid.columns() * rows.min(self.grid.rows()) + 2 * under_way
    }

    /// The halo of the wider kernel.
    fn margin(&self) -> usize {
        self.kernels.iter().map(|kernel| kernel.radius()).max().unwrap_or(0)
    }

    /// Orders, awaits and assembles the whole picture, inside a request; calls `done` once for each block.
    pub(crate) fn run(&self, mut done: impl FnMut()) -> Result<Vec<f32>, WaitError> {
        let grid = self.grid;
        let mut picture = vec![0.0; grid.width * grid.height];
        let mut inputs = Inputs::default();
        let mut ordered: VecDeque<Request<Block>> = VecDeque::new();
        let mut collect = |difference: Request<Block>| -> Result<(), WaitError> {
            copy(&difference.take()?, &mut picture, grid.width);
            done();
            Ok(())
        };
        for row in 0..grid.rows() {
            inputs.advance(self, row);
            for column in 0..grid.columns() {
                let difference = self.difference(&inputs, column, row);
                difference.submit();
                ordered.push_back(difference);
                if ordered.len() > self.ahead
                    && let Some(oldest) = ordered.pop_front()
                {
                    collect(oldest)?;
                }
            }
        }
        drop(inputs);
        ordered.into_iter().try_for_each(collect)?;
        Ok(picture)
    }

    /// Decodes one block: colour to linear light, normalised. Runs once, for whoever waits first.
    fn input(&self, column: usize, row: usize) -> Request<Block> {
        let (source, live, rect) = (self.source.clone(), self.live.clone(), self.grid.rect(column, row));
        Request::builder()
            .name("input")
            .try_build(move || Ok(Block::new(rect, source.luminance(rect)?, &live)))
    }

    /// Smooths one block, for which it waits for all inputs within the kernel's radius.
    fn smoothed(&self, inputs: &Inputs, column: usize, row: usize, kernel: &Arc<Kernel>) -> Request<Block> {
        let (grid, live, kernel) = (self.grid, self.live.clone(), kernel.clone());
        let rect = grid.rect(column, row);
        let needed = inputs.near(grid, column, row, kernel.radius());
        Request::builder().name("smooth").try_build(move || {
            let mut tile = Tile::new(rect, &kernel, grid.width, grid.height);
            for input in needed {
                // The neighbours wait for the same requests. Each handle goes as soon as it has served.
                tile.paste(input.wait()?);
            }
            Ok(Block::new(rect, tile.smoothed()?, &live))
        })
    }

    /// Subtracts the two scales of one block.
    fn difference(&self, inputs: &Inputs, column: usize, row: usize) -> Request<Block> {
        let [fine, coarse] = self.kernels.each_ref().map(|kernel| self.smoothed(inputs, column, row, kernel));
        Request::builder().name("difference").try_build(move || {
            coarse.submit(); // elsewhere, if anybody is idle
            let mut fine = fine.take()?; // right here, most likely
            let coarse = coarse.take()?;
            for (fine, coarse) in fine.pixels.iter_mut().zip(&coarse.pixels) {
                *fine -= coarse;
            }
            Ok(fine)
        })
    }
}

/// The rows of input requests that are still to be shared out. Nothing in them runs before somebody waits for it.
#[derive(Debug, Default)]
struct Inputs {
    rows: VecDeque<Vec<Request<Block>>>,
    /// The row of the grid that `rows` begins with.
    first: usize,
}

impl Inputs {
    /// Lets go of the rows that no block from `row` on needs, and makes those that `row` needs.
    fn advance(&mut self, job: &Job, row: usize) {
        let needed = job.grid.rows_near(row, job.margin());
        while self.first < needed.start {
            self.rows.pop_front();
            self.first += 1;
        }
        for row in self.first + self.rows.len()..needed.end {
            self.rows.push_back((0..job.grid.columns()).map(|column| job.input(column, row)).collect());
        }
    }

    /// Handles to the inputs that lie under a block and `margin` pixels around it.
    fn near(&self, grid: Grid, column: usize, row: usize, margin: usize) -> Vec<Request<Block>> {
        let columns = grid.columns_near(column, margin);
        let rows = grid.rows_near(row, margin).map(|row| &self.rows[row - self.first]);
        rows.flat_map(|row| row[columns.clone()].iter().cloned()).collect()
    }
}

/// Puts a finished block in its place.
fn copy(block: &Block, picture: &mut [f32], width: usize) {
    let Rect { x, y, .. } = block.rect;
    for (i, row) in block.pixels.chunks_exact(block.rect.width).enumerate() {
        picture[(y + i) * width + x..][..row.len()].copy_from_slice(row);
    }
}

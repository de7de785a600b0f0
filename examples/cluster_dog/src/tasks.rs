//! What runs on workers.

use forebear_cluster::{PerWorker, Stored, TaskCtx, Tasks, resource, task, tasks};
use serde::{Deserialize, Serialize};

use crate::blocks::{Block, Live, Rect};
use crate::picture::Source;
use crate::smooth::{Kernel, Tile};

/// The standard deviations of the two Gaussians, in pixels.
pub(crate) const SIGMA: [f64; 2] = [1.0, 3.0];

/// So many pixels around a block its result depends on.
pub(crate) fn margin() -> usize {
    SIGMA.map(|sigma| Kernel::gaussian(sigma).radius()).into_iter().max().unwrap_or(0)
}

/// The pixels of a block, row by row.
pub(crate) type Pixels = Vec<f32>;

/// A [`Rect`], as it travels.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

impl From<Rect> for Place {
    fn from(rect: Rect) -> Place {
        Place { x: rect.x, y: rect.y, width: rect.width, height: rect.height }
    }
}

impl Place {
    fn rect(self) -> Rect {
        Rect { x: self.x, y: self.y, width: self.width, height: self.height }
    }
}

/// A finished block, and who has made it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) pixels: Pixels,
    pub(crate) worker: String,
    pub(crate) pid: u32,
}

/// The picture, which each worker reads once.
#[resource]
pub(crate) fn picture(scale: u32) -> forebear::Result<Source> {
    Source::open(None, scale).map_err(|error| forebear::Error::other(format!("{error:#}")))
}

/// Decodes a block: colour to linear light.
#[task]
pub(crate) fn luminance(ctx: &TaskCtx, source: PerWorker<Source>, place: Place) -> forebear::Result<Pixels> {
    Ok(ctx.local(&source)?.luminance(place.rect())?)
}

/// Smooths a block twice, and subtracts. `size`: of the picture. `around`: the block itself and those that lie under its margin.
#[task]
pub(crate) fn difference(
    ctx: &TaskCtx,
    place: Place,
    size: (usize, usize),
    around: Vec<(Place, Stored<Pixels>)>,
) -> forebear::Result<Made> {
    let live = Live::default();
    let mut blocks = Vec::with_capacity(around.len());
    for (place, pixels) in &around {
        blocks.push(Block::new(place.rect(), pixels.get(ctx)?.to_vec(), &live));
    }
    let smoothed = |sigma: f64| {
        let kernel = Kernel::gaussian(sigma);
        let mut tile = Tile::new(place.rect(), &kernel, size.0, size.1);
        blocks.iter().for_each(|block| tile.paste(block));
        tile.smoothed()
    };
    let [mut pixels, coarse] = [smoothed(SIGMA[0])?, smoothed(SIGMA[1])?];
    for (fine, coarse) in pixels.iter_mut().zip(&coarse) {
        *fine -= coarse;
    }
    Ok(Made { pixels, worker: ctx.worker().to_string(), pid: std::process::id() })
}

/// What coordinator and workers know.
pub(crate) fn known() -> Tasks {
    tasks![picture::RESOURCE, luminance::TASK, difference::TASK]
}

//! Smoothing with a Gaussian, rows first and columns then, of one *tile*: a rectangle with a margin as wide as the kernel
//! on every side.
//!
//! Beyond the edge of the picture the nearest pixel is repeated. Every result is the sum `0 + w₀·p₀ + w₁·p₁ + …` in this
//! order, in `f32`, wherever it is computed: this, and nothing else, is why blocks and the whole picture agree in every bit.

use forebear::{Cancelled, check_cancelled};

use crate::blocks::{Block, Rect};

/// A normalised Gaussian, cut off at three standard deviations.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    weights: Vec<f32>,
}

impl Kernel {
    /// The kernel for a standard deviation of `sigma` pixels, which must be positive and sane.
    pub(crate) fn gaussian(sigma: f64) -> Kernel {
        assert!(sigma.is_finite() && sigma >= 0.01, "sigma {sigma}");
        let radius = (3.0 * sigma).ceil() as i32;
        let bell = |x: i32| (-0.5 * (f64::from(x) / sigma).powi(2)).exp();
        let sum: f64 = (-radius..=radius).map(bell).sum();
        Kernel { weights: (-radius..=radius).map(|x| (bell(x) / sum) as f32).collect() }
    }

    /// How many pixels on each side of a pixel contribute to it.
    pub(crate) fn radius(&self) -> usize {
        self.weights.len() / 2
    }

    /// One row: `out[x]` becomes the weighted sum of `padded[x..]`. `padded` is longer than `out` by two radii.
    pub(crate) fn along_row(&self, padded: &[f32], out: &mut [f32]) {
        self.sum(out, |k, n| &padded[k..k + n]);
    }

    /// One row from the rows around it: `row(0)` is the one a radius above, `row(radius)` the one itself.
    pub(crate) fn across_rows<'a>(&self, row: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
        self.sum(out, |k, _| row(k));
    }

    /// Tap by tap over the whole row: the loop inside is what a compiler turns into vector instructions, and for each
    /// pixel the order of the sum is that of the taps.
    fn sum<'a>(&self, out: &mut [f32], input: impl Fn(usize, usize) -> &'a [f32]) {
        out.fill(0.0);
        let n = out.len();
        for (k, weight) in self.weights.iter().enumerate() {
            for (out, value) in out.iter_mut().zip(input(k, n)) {
                *out += weight * value;
            }
        }
    }
}

/// A rectangle and its margin: filled from blocks, one by one and in any order, then smoothed.
#[derive(Debug)]
pub(crate) struct Tile<'a> {
    kernel: &'a Kernel,
    rect: Rect,
    /// The part of rectangle and margin that lies within the picture.
    inside: Rect,
    pixels: Vec<f32>,
}

impl<'a> Tile<'a> {
    /// An empty tile around `rect` of a picture of `width` x `height`.
    pub(crate) fn new(rect: Rect, kernel: &'a Kernel, width: usize, height: usize) -> Tile<'a> {
        let radius = kernel.radius();
        let pixels = vec![0.0; (rect.width + 2 * radius) * (rect.height + 2 * radius)];
        Tile { kernel, rect, inside: rect.grown(radius, width, height), pixels }
    }

    fn width(&self) -> usize {
        self.rect.width + 2 * self.kernel.radius()
    }

    /// Where the picture's pixel (x, y) stands in the tile.
    fn at(&self, x: usize, y: usize) -> usize {
        let radius = self.kernel.radius();
        (y + radius - self.rect.y) * self.width() + (x + radius - self.rect.x)
    }

    /// Copies what `block` has of it.
    pub(crate) fn paste(&mut self, block: &Block) {
        let Some(part) = self.inside.common(block.rect) else { return };
        for y in part.y..part.bottom() {
            let at = self.at(part.x, y);
            self.pixels[at..at + part.width].copy_from_slice(block.row(y, part.x, part.right()));
        }
    }

    /// The smoothed rectangle. Every pixel of the picture that it needs must have been pasted. Stops, between two rows, if
    /// the request that asks is cancelled.
    pub(crate) fn smoothed(mut self) -> Result<Vec<f32>, Cancelled> {
        self.repeat_edges();
        let (width, radius) = (self.rect.width, self.kernel.radius());
        let mut half = vec![0.0; width * (self.rect.height + 2 * radius)];
        for (padded, out) in self.pixels.chunks_exact(self.width()).zip(half.chunks_exact_mut(width)) {
            check_cancelled()?;
            self.kernel.along_row(padded, out);
        }
        let mut smoothed = vec![0.0; self.rect.len()];
        for (y, out) in smoothed.chunks_exact_mut(width).enumerate() {
            check_cancelled()?;
            self.kernel.across_rows(|k| &half[(y + k) * width..][..width], out);
        }
        Ok(smoothed)
    }

    /// Fills what lies outside the picture with the nearest pixel inside: first along the rows, then whole rows.
    fn repeat_edges(&mut self) {
        let (width, inside) = (self.width(), self.inside);
        let (top, bottom) =
            (self.at(inside.x, inside.y) / width, self.at(inside.x, inside.bottom() - 1) / width);
        let left = self.at(inside.x, inside.y) % width;
        let right = left + inside.width - 1;
        for row in self.pixels.chunks_exact_mut(width).take(bottom + 1).skip(top) {
            let (first, last) = (row[left], row[right]);
            row[..left].fill(first);
            row[right + 1..].fill(last);
        }
        for row in (0..top).chain(bottom + 1..self.pixels.len() / width) {
            let from = row.clamp(top, bottom) * width;
            self.pixels.copy_within(from..from + width, row * width);
        }
    }
}

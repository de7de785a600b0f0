//! The same picture without requests, blocks or threads: what the pipeline is measured against and must agree with.
//! (`main` calls it in a request, for one thing: so that Ctrl-C reaches it. Outside any, nothing is ever cancelled.)
//!
//! It is no straw man: it makes the same passes over rows that a block does, on rows as long as the picture.

use forebear::{Cancelled, check_cancelled};

use crate::blocks::Rect;
use crate::picture::Source;
use crate::smooth::Kernel;

/// The whole picture smoothed with `fine`, minus the whole picture smoothed with `coarse`.
pub(crate) fn difference(source: &Source, fine: &Kernel, coarse: &Kernel) -> Result<Vec<f32>, Cancelled> {
    let (width, height) = (source.width(), source.height());
    let luminance = source.luminance(Rect { x: 0, y: 0, width, height })?;
    let mut difference = smooth(&luminance, width, fine)?;
    let coarse = smooth(&luminance, width, coarse)?;
    for (fine, coarse) in difference.iter_mut().zip(&coarse) {
        *fine -= coarse;
    }
    Ok(difference)
}

/// A picture with rows of `width` pixels, smoothed; beyond its edges the nearest pixel is repeated.
fn smooth(pixels: &[f32], width: usize, kernel: &Kernel) -> Result<Vec<f32>, Cancelled> {
    let (height, radius) = (pixels.len() / width, kernel.radius());
    let mut half = vec![0.0; pixels.len()];
    let mut padded = vec![0.0; width + 2 * radius];
    for (row, out) in pixels.chunks_exact(width).zip(half.chunks_exact_mut(width)) {
        check_cancelled()?;
        padded[..radius].fill(row[0]);
        padded[radius..radius + width].copy_from_slice(row);
        padded[radius + width..].fill(row[width - 1]);
        kernel.along_row(&padded, out);
    }
    let mut smoothed = vec![0.0; pixels.len()];
    for (y, out) in smoothed.chunks_exact_mut(width).enumerate() {
        check_cancelled()?;
        let row = |k: usize| (y + k).saturating_sub(radius).min(height - 1) * width;
        kernel.across_rows(|k| &half[row(k)..][..width], out);
    }
    Ok(smoothed)
}

/// The first pixel in which two pictures differ in any bit (so `0.0` and `-0.0` differ, and `NaN` equals itself).
pub(crate) fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}

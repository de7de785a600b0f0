//! The promises of this program's parts: blocks and whole agree in every bit, whatever the cut; few blocks are alive; the
//! plain version is a difference of Gaussians.

use std::sync::Arc;

use forebear::prelude::*;

use crate::blocks::{Grid, Rect};
use crate::picture::{Rgb, Source, grey};
use crate::pipeline::Job;
use crate::plain::{self, first_difference};
use crate::smooth::Kernel;

/// Noise that is the same every time (a linear congruential generator).
fn noise(width: usize, height: usize) -> Rgb {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    Rgb::from_fn(width, height, |_, _| [next(), next(), next()])
}

fn kernels(fine: f64, coarse: f64) -> [Arc<Kernel>; 2] {
    [fine, coarse].map(|sigma| Arc::new(Kernel::gaussian(sigma)))
}

#[test]
fn blocks_and_whole_agree_in_every_bit_whatever_the_cut() {
    // Pictures smaller than a block and than a halo, blocks smaller than a halo, blocks that do not divide the picture.
    let cases =
        [(1, 1, 8, 1), (7, 90, 8, 1), (90, 7, 16, 1), (61, 47, 8, 1), (40, 40, 20, 2), (33, 31, 64, 3)];
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        for (width, height, block, scale) in cases {
            let source = Arc::new(Source::new(noise(width, height), scale));
            let kernels = kernels(0.7, 4.0);
            let expected = plain::difference(&source, &kernels[0], &kernels[1]).unwrap();
            let grid = Grid::new(source.width(), source.height(), block);
            let job = Job::new(source, grid, kernels, workers);
            let mut done = 0;
            let values = rt.run(|| job.run(|| done += 1)).unwrap();
            assert_eq!(first_difference(&values, &expected), None, "{grid:?} on {workers} workers");
            assert_eq!(done, grid.len());
            assert_eq!(job.live().made(), 3 * grid.len(), "each block is made once, whoever shares it");
            assert_eq!(job.live().now(), 0, "nothing outlives the job");
            assert!(job.live().peak() <= job.bound(), "{} of {}", job.live().peak(), job.bound());
        }
    }
}

#[test]
fn few_blocks_are_alive_however_high_the_picture() {
    let rt = Runtime::builder().workers(2).build().unwrap();
    let bounds = [4, 40].map(|scale| {
        let source = Arc::new(Source::new(noise(32, 32), scale));
        let grid = Grid::new(32, source.height(), 8);
        let job = Job::new(source, grid, kernels(1.0, 2.0), 2);
        rt.run(|| job.run(|| ())).unwrap();
        assert!(job.live().peak() <= job.bound(), "{} of {}", job.live().peak(), job.bound());
        job.bound()
    });
    assert_eq!(bounds[0], bounds[1], "ten times as high, and not one block more");
}

/// The definition, pixel by pixel, in f64: no passes, no tiles.
fn by_definition(luminance: &[f32], width: usize, height: usize, sigma: f64) -> Vec<f64> {
    let radius = (3.0 * sigma).ceil() as isize;
    let bell = |x: isize, y: isize| (-0.5 * ((x * x + y * y) as f64) / (sigma * sigma)).exp();
    let offsets = || (-radius..=radius).flat_map(|dy| (-radius..=radius).map(move |dx| (dx, dy)));
    let sum: f64 = offsets().map(|(dx, dy)| bell(dx, dy)).sum();
    let pixel = |x: usize, y: usize, (dx, dy): (isize, isize)| {
        let x = x.saturating_add_signed(dx).min(width - 1);
        let y = y.saturating_add_signed(dy).min(height - 1);
        f64::from(luminance[y * width + x]) * bell(dx, dy) / sum
    };
    (0..width * height).map(|i| offsets().map(|at| pixel(i % width, i / width, at)).sum()).collect()
}

#[test]
fn the_plain_version_is_a_difference_of_gaussians() {
    let (width, height) = (23, 17);
    let source = Source::new(noise(width, height), 1);
    let luminance = source.luminance(Rect { x: 0, y: 0, width, height }).unwrap();
    let values = plain::difference(&source, &Kernel::gaussian(1.0), &Kernel::gaussian(3.0)).unwrap();
    let fine = by_definition(&luminance, width, height, 1.0);
    let coarse = by_definition(&luminance, width, height, 3.0);
    for (i, value) in values.iter().enumerate() {
        assert!((f64::from(*value) - (fine[i] - coarse[i])).abs() < 1e-5, "pixel {i}");
    }
}

#[test]
fn scale_repeats_the_picture() {
    let source = Source::new(noise(5, 3), 4);
    assert_eq!((source.width(), source.height()), (20, 12));
    let one = source.luminance(Rect { x: 0, y: 0, width: 5, height: 3 }).unwrap();
    assert_eq!(source.luminance(Rect { x: 10, y: 9, width: 5, height: 3 }).unwrap(), one);
    let across = source.luminance(Rect { x: 3, y: 0, width: 4, height: 1 }).unwrap();
    assert_eq!(across, [one[3], one[4], one[0], one[1]]);
}

#[test]
fn white_is_one_and_black_is_zero() {
    let source = Source::new(Rgb::from_fn(2, 1, |x, _| [255 * x as u8; 3]), 1);
    let values = source.luminance(Rect { x: 0, y: 0, width: 2, height: 1 }).unwrap();
    assert_eq!(values[0], 0.0);
    assert!((values[1] - 1.0).abs() < 1e-6);
}

#[test]
fn zero_is_mid_grey_and_the_largest_magnitude_reaches_an_end() {
    let picture = grey(&[0.0, 0.25, -0.25, 0.0625], 2, 2);
    assert_eq!(picture.bytes()[..], [128, 255, 0, 191]);
    assert_eq!(grey(&[0.0; 4], 2, 2).bytes()[..], [128; 4], "a picture without any difference");
}

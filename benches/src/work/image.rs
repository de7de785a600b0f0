//! The image work of `tree_dog`: differences of Gaussians of a picture's tiles at six scales, separable, edges mirrored.
//!
//! Each task reads a tile with its halo, allocates what it needs, and returns a number that depends on every pixel
//! it computed. The sum over all tasks is the load's value.

use std::sync::OnceLock;

const WIDTH: usize = 1_536;
const HEIGHT: usize = 1_152;
/// The tiles' edge. 1536 x 1152 in tiles of 48 makes 32 x 24 = 768.
const TILE: usize = 48;
const ACROSS: u64 = (WIDTH / TILE) as u64;
const SIGMAS: [f32; 6] = [0.7, 1.0, 1.6, 3.5, 5.0, 10.0];
/// The narrower Gaussian of a pair.
const NARROWER: f32 = 0.66;

/// Noise with structure, the same in every process.
fn picture() -> &'static [f32] {
    static PICTURE: OnceLock<Vec<f32>> = OnceLock::new();
    PICTURE.get_or_init(|| {
        let mut x = 2_463_534_242_u32;
        let mut noise = || {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            (x >> 8) as f32 / (1 << 24) as f32
        };
        let pixel = |i: usize| ((i % WIDTH) as f32 / 37.0).sin() * ((i / WIDTH) as f32 / 53.0).cos();
        (0..WIDTH * HEIGHT).map(|i| pixel(i) + noise()).collect()
    })
}

fn kernel(sigma: f32) -> Vec<f32> {
    let radius = (3.0 * sigma).ceil() as i32;
    let mut taps: Vec<f32> =
        (-radius..=radius).map(|x| (-((x * x) as f32) / (2.0 * sigma * sigma)).exp()).collect();
    let sum: f32 = taps.iter().sum();
    taps.iter_mut().for_each(|tap| *tap /= sum);
    taps
}

fn mirrored(at: isize, size: usize) -> usize {
    let last = size as isize - 1;
    let at = at.abs();
    (if at > last { 2 * last - at } else { at }) as usize
}

/// One tile, smoothed.
fn smooth(source: &[f32], left: usize, top: usize, sigma: f32) -> Vec<f32> {
    let taps = kernel(sigma);
    let radius = taps.len() / 2;
    let tall = TILE + 2 * radius;
    let wide = TILE + 2 * radius;
    let mut rows = vec![0.0_f32; tall * TILE];
    let mut line = vec![0.0_f32; wide];
    for y in 0..tall {
        let from = mirrored((top + y) as isize - radius as isize, HEIGHT) * WIDTH;
        for (x, pixel) in line.iter_mut().enumerate() {
            *pixel = source[from + mirrored((left + x) as isize - radius as isize, WIDTH)];
        }
        let row = &mut rows[y * TILE..][..TILE];
        for (k, tap) in taps.iter().enumerate() {
            row.iter_mut().zip(&line[k..]).for_each(|(out, pixel)| *out += tap * pixel);
        }
    }
    let mut tile = vec![0.0_f32; TILE * TILE];
    for y in 0..TILE {
        let out = &mut tile[y * TILE..][..TILE];
        for (k, tap) in taps.iter().enumerate() {
            let row = &rows[(y + k) * TILE..][..TILE];
            out.iter_mut().zip(row).for_each(|(out, pixel)| *out += tap * pixel);
        }
    }
    tile
}

/// The difference of two smoothed tiles, as a number.
fn difference(source: &[f32], left: usize, top: usize, sigma: f32) -> u64 {
    let wide = smooth(source, left, top, sigma);
    let narrow = smooth(source, left, top, NARROWER * sigma);
    wide.iter().zip(&narrow).map(|(wide, narrow)| u64::from((wide - narrow).to_bits() >> 8)).sum()
}

/// The `index`-th task.
#[must_use]
pub fn task(index: u64) -> u64 {
    let source = picture();
    let (left, top) = ((index % ACROSS) as usize * TILE, (index / ACROSS) as usize * TILE % HEIGHT);
    SIGMAS.iter().map(|&sigma| difference(source, left, top, sigma)).sum()
}

/// The sum over the first `tasks` tasks, computed once by a plain loop.
#[must_use]
pub fn digest(tasks: u64) -> u64 {
    static DIGEST: OnceLock<(u64, u64)> = OnceLock::new();
    let &(of, digest) = DIGEST.get_or_init(|| (tasks, (0..tasks).map(task).sum()));
    if of == tasks { digest } else { (0..tasks).map(task).sum() }
}

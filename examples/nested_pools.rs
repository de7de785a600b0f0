//! One picture, filled through pools in pools.
//!
//! A pool's members may borrow, so each gets its own `&mut` piece of one buffer: no copy, no `Arc`, no lock, no `unsafe`, and
//! the compiler sees that no two overlap. A member may use a pool itself: here a picture is cut into bands, a band into
//! rows of tiles, and those are painted by a third pool. Each pool has a bound of its own, and waiting for the inner ones
//! takes no thread, so three levels run on one worker as they do on eight.
//!
//! Rows come at different costs: inside the Mandelbrot set a point takes all its turns. Whoever is idle takes the next.
//!
//! ```text
//! cargo run --release --example nested_pools
//! ```

use forebear::prelude::*;

const WIDTH: usize = 480;
const HEIGHT: usize = 360;
const BAND: usize = 60;
const TURNS: u32 = 500;

/// How many turns the point takes to get away.
fn turns(re: f64, im: f64) -> u32 {
    let (mut x, mut y) = (0.0, 0.0);
    for turn in 0..TURNS {
        if x * x + y * y > 4.0 {
            return turn;
        }
        (x, y) = (x * x - y * y + re, 2.0 * x * y + im);
    }
    TURNS
}

/// Paints a piece of row `y` that begins at column `x`.
fn paint(piece: &mut [u8], x: usize, y: usize) {
    for (at, pixel) in piece.iter_mut().enumerate() {
        let re = (x + at) as f64 / WIDTH as f64 * 3.5 - 2.5;
        let im = y as f64 / HEIGHT as f64 * 2.5 - 1.25;
        *pixel = (turns(re, im) * 255 / TURNS) as u8;
    }
}

/// A pool of pieces of one row.
fn paint_row(row: &mut [u8], y: usize) -> Result<(), WaitError> {
    let mut pool = RequestPool::new();
    for (n, piece) in row.chunks_mut(WIDTH / 4).enumerate() {
        pool.add(move || paint(piece, n * (WIDTH / 4), y));
    }
    pool.wait()
}

/// A pool of rows.
fn paint_band(band: &mut [u8], top: usize) -> Result<(), WaitError> {
    let mut pool = RequestPool::new().max_active(8);
    for (n, row) in band.chunks_mut(WIDTH).enumerate() {
        pool.try_add(move || Ok(paint_row(row, top + n)?));
    }
    pool.wait()
}

/// A pool of bands.
fn paint_picture(picture: &mut [u8]) -> Result<(), WaitError> {
    let mut pool = RequestPool::new().max_active(2);
    for (n, band) in picture.chunks_mut(WIDTH * BAND).enumerate() {
        pool.try_add(move || Ok(paint_band(band, n * BAND)?));
    }
    // On this thread, as the bands come; in what order is not said.
    let mut bands = 0;
    pool.wait_each(|_, ()| bands += 1)?;
    assert_eq!(bands, HEIGHT.div_ceil(BAND));
    Ok(())
}

/// FNV-1a, so that one number says that every pixel is in its place.
fn checksum(picture: &[u8]) -> u64 {
    picture
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, pixel| (sum ^ u64::from(*pixel)).wrapping_mul(0x0100_0000_01b3))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut plain = vec![0; WIDTH * HEIGHT];
    plain.chunks_mut(WIDTH).enumerate().for_each(|(y, row)| paint(row, 0, y));

    for workers in [1, 4] {
        let mut picture = vec![0; WIDTH * HEIGHT];
        let runtime = Runtime::builder().workers(workers).build()?;
        // As a request, and from this thread: it is the same.
        runtime.run(|| paint_picture(&mut picture))?;
        assert!(picture == plain);
        picture.fill(0);
        runtime.enter(|| paint_picture(&mut picture))?;
        assert!(picture == plain);
        println!("{workers} workers: {WIDTH} x {HEIGHT} pixels, checksum {:016x}", checksum(&picture));
    }
    Ok(())
}

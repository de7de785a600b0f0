//! A pyramid of tiles: each tile of a level is the mean of two of the level below, and is declared to be after them.
//!
//! What is needed is known beforehand, so nothing waits on a stack of its own. Each tile is queued when both of its parts are over, and whichever worker is free
//! computes it.
//!
//! ```text
//! cargo run --release --example declared_graph
//! ```

use forebear::prelude::*;
use forebear::{Error, then_all};

/// A tile of the lowest level.
fn measured(number: u32) -> f64 {
    (0..1000).map(|n| f64::from((number * 31 + n) % 97)).sum::<f64>() / 1000.0
}

/// Tiles of the next level, each after two of this one.
fn next_level(tiles: &[Request<f64>]) -> Vec<Request<f64>> {
    let mean = |pair: &[Request<f64>]| match pair {
        [a, b] => then_all((a, b), |(a, b)| (a + b) / 2.0),
        rest => rest[0].then(|only| *only),
    };
    tiles.chunks(2).map(mean).collect()
}

fn main() -> Result<(), Error> {
    let mut level: Vec<_> = (0..1024).map(|number| Request::new(move || measured(number))).collect();
    let lowest = level.clone();
    let mut levels = 1;
    while level.len() > 1 {
        level = next_level(&level);
        levels += 1;
    }
    // Nothing has run so far. To wait for the top wants all the rest.
    assert!(lowest.iter().all(|tile| tile.get().is_none()));
    let top = *level[0].wait()?;
    let mean = lowest.iter().filter_map(Request::get).sum::<f64>() / lowest.len() as f64;
    assert!((top - mean).abs() < 1e-9);
    println!("{levels} levels, mean {top:.3}");
    Ok(())
}

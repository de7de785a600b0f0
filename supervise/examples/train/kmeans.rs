//! The colours of a picture, by k-means.
//!
//! A step looks for the nearest of the colours for each pixel, in blocks that run in parallel, then moves each colour to the middle of its pixels. The sums are whole
//! numbers, so the order of the blocks does not matter.

use std::path::Path;

use forebear::{Error, scope};
use serde::{Deserialize, Serialize};

pub(crate) type Pixel = [u8; 3];

/// The state of the job.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Model {
    pub(crate) colours: Vec<[f64; 3]>,
    /// The mean square distance of a pixel from its colour, before the last step.
    pub(crate) loss: f64,
    /// How many pixels each colour has.
    pub(crate) sizes: Vec<u64>,
}

/// What a block finds, for each colour: the sum of its pixels, their number, and their distances in 1/1024.
#[derive(Clone, Default)]
pub(crate) struct Found {
    sums: Vec<[u64; 3]>,
    sizes: Vec<u64>,
    distance: u64,
}

impl Model {
    /// Pixels from all over the picture; others for each of `starts`.
    pub(crate) fn initial(pixels: &[Pixel], colours: usize, start: usize, starts: usize) -> Model {
        let first = pixels.len() * (2 * start + 1) / (2 * starts);
        let at = |n: usize| pixels[(n * pixels.len() + first) / colours];
        let colours: Vec<_> = (0..colours).map(|n| at(n).map(f64::from)).collect();
        Model { sizes: vec![0; colours.len()], colours, loss: f64::INFINITY }
    }

    /// Each colour goes to the middle of its pixels. One that has none stays.
    pub(crate) fn step(&mut self, found: Found, pixels: usize) {
        for ((colour, sum), size) in self.colours.iter_mut().zip(&found.sums).zip(&found.sizes) {
            if *size > 0 {
                *colour = sum.map(|sum| sum as f64 / *size as f64);
            }
        }
        self.loss = found.distance as f64 / 1024.0 / pixels as f64;
        self.sizes = found.sizes;
    }
}

impl Found {
    fn of(colours: &[[f64; 3]], pixels: &[Pixel]) -> Found {
        let none = Found { sums: vec![[0; 3]; colours.len()], sizes: vec![0; colours.len()], distance: 0 };
        pixels.iter().fold(none, |mut found, pixel| {
            let distances = colours.iter().map(|colour| {
                colour.iter().zip(pixel).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>()
            });
            // There is at least one colour.
            let Some((nearest, distance)) = distances.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)) else {
                return found;
            };
            found.sums[nearest].iter_mut().zip(pixel).for_each(|(sum, value)| *sum += u64::from(*value));
            found.sizes[nearest] += 1;
            found.distance += (distance * 1024.0) as u64;
            found
        })
    }

    fn with(mut self, other: &Found) -> Found {
        for (sum, more) in self.sums.iter_mut().zip(&other.sums) {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        self.sizes.iter_mut().zip(&other.sizes).for_each(|(size, more)| *size += more);
        self.distance += other.distance;
        self
    }

    /// The same of all pixels, a block to a request. A stop ends it: the waits answer with an error.
    pub(crate) fn of_all(colours: &[[f64; 3]], pixels: &[Pixel], block: usize) -> Result<Found, Error> {
        scope(|scope| {
            let blocks: Vec<_> =
                pixels.chunks(block).map(|block| scope.spawn(move || Found::of(colours, block))).collect();
            let mut all = Found::of(colours, &[]);
            for block in blocks {
                all = all.with(block.wait()?);
            }
            Ok(all)
        })
    }
}

/// The pixels of a picture.
pub(crate) fn read(picture: &Path) -> Result<Vec<Pixel>, Error> {
    let opened = image::open(picture).map_err(|why| Error::other(format!("{}: {why}", picture.display())))?;
    let pixels: Vec<Pixel> = opened.to_rgb8().pixels().map(|pixel| pixel.0).collect();
    if pixels.is_empty() {
        return Err(Error::other(format!("{}: the picture has no pixels", picture.display())));
    }
    Ok(pixels)
}

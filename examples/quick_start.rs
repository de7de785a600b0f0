//! Quick start: a picture is smoothed at two scales, and the results are subtracted.
//!
//! The same small computation, written three times. Which form to take depends on who owns the picture:
//!
//! - it is still to be computed, and several want it: a [`Request`] each, and [`Request::wait`];
//! - it is here, and the two halves only borrow it: [`join`];
//! - something in between, with any number of parts that borrow: [`scope`] and [`Request::force`].
//!
//! ```text
//! cargo run --example quick_start
//! ```

use std::ops::Sub;

use forebear::prelude::*;

/// A row of grey values is picture enough to smooth.
#[derive(Clone, Debug, PartialEq)]
struct Image(Vec<f64>);

impl Sub for &Image {
    type Output = Image;

    fn sub(self, other: &Image) -> Image {
        Image(self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect())
    }
}

/// Black, with a white line in the middle.
fn compute_sample_image() -> Image {
    let mut pixels = vec![0.0; 101];
    pixels[50] = 1.0;
    Image(pixels)
}

/// Smooths with a Gaussian; beyond the ends it is black.
fn smooth(image: &Image, sigma: f64) -> Image {
    let radius = (4.0 * sigma).ceil() as usize;
    let bell = |distance: usize| (-0.5 * (distance as f64 / sigma).powi(2)).exp();
    let sum = bell(0) + 2.0 * (1..=radius).map(bell).sum::<f64>();
    let pixel = |x: usize| {
        let near = x.saturating_sub(radius)..(x + radius + 1).min(image.0.len());
        near.map(|i| image.0[i] * bell(i.abs_diff(x)) / sum).sum()
    };
    Image((0..image.0.len()).map(pixel).collect())
}

/// Nothing is here yet: the image is a request, shared by the two that wait for it. It is computed once, by whoever
/// waits first.
fn diff_of_smoothed() -> forebear::Result<Image> {
    let image = Request::new(compute_sample_image); // nothing runs yet
    let smoothed = |sigma: f64| {
        let image = image.clone();
        Request::try_new(move || Ok(smooth(image.wait()?, sigma)))
    };
    let (fine, coarse) = (smoothed(1.0), smoothed(3.0));
    coarse.submit(); // elsewhere, if anybody is idle
    Ok(fine.wait()? - coarse.wait()?) // `fine` runs right here
}

/// The image is here and stays here: both halves borrow it.
fn borrowed(image: &Image) -> Image {
    let (fine, coarse) = join(|| smooth(image, 1.0), || smooth(image, 3.0));
    &fine - &coarse
}

/// Two requests borrow a third. An error, had there been one, would unwind to the end of the scope.
fn unwinding() -> Image {
    let image = Request::new(compute_sample_image);
    scope(|s| {
        let fine = s.spawn(|| smooth(image.force(), 1.0));
        let coarse = s.spawn(|| smooth(image.force(), 3.0));
        fine.force() - coarse.force()
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The plain version: no request, one thread.
    let image = compute_sample_image();
    let expected = &smooth(&image, 1.0) - &smooth(&image, 3.0);

    // `main` is no request. It may wait all the same: it blocks, or runs what it waits for.
    let waited = Request::try_new(diff_of_smoothed).take()?;
    assert_eq!(waited, expected);
    assert_eq!(borrowed(&image), expected);
    assert_eq!(unwinding(), expected);

    println!("The line, with a fine brush minus a broad one:");
    for (x, value) in waited.0.iter().enumerate().skip(40).take(21) {
        println!("{x:3} {value:+.3} {}", "#".repeat((value.abs() * 100.0).round() as usize));
    }
    Ok(())
}

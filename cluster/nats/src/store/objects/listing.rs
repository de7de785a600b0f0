//! [`Listing`]: what the entry of an object says of its chunks.
//!
//! It is the value of a header of the entry: `SIZE;DIGEST;FIRST+COUNT,FIRST+COUNT`. Chunks have the numbers of their messages in the stream. Those of one object have one *run* of numbers, or
//! several if something else was put at the same time. So a reader asks for each chunk by its number, several at a time, and needs no consumer.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use ring::digest::{SHA256, digest};

use super::CHUNK;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    /// So many bytes the object has.
    pub(super) size: usize,
    /// SHA-256 of its bytes, in base64.
    pub(super) digest: String,
    /// Runs of numbers: the first, and how many.
    runs: Vec<(u64, u64)>,
}

impl Listing {
    /// Of an object of which no chunk is stored yet.
    pub(super) fn of(bytes: &[u8]) -> Listing {
        Listing { size: bytes.len(), digest: URL_SAFE.encode(digest(&SHA256, bytes)), runs: Vec::new() }
    }

    /// The next chunk has this number.
    pub(super) fn note(&mut self, number: u64) {
        match self.runs.last_mut() {
            Some((first, count)) if number == *first + *count => *count += 1,
            _ => self.runs.push((number, 1)),
        }
    }

    /// So many chunks there are of so many bytes.
    pub(super) fn chunks(&self) -> u64 {
        self.size.div_ceil(CHUNK) as u64
    }

    /// The numbers of the chunks, in their order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|&(first, count)| first..first + count)
    }

    /// `None`: that is no listing, or does not fit together.
    pub(super) fn read(text: &str) -> Option<Listing> {
        let mut parts = text.split(';');
        let (size, digest, runs) = (parts.next()?.parse().ok()?, parts.next()?.to_owned(), parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let run = |text: &str| {
            let (first, count) = text.split_once('+')?;
            let (first, count): (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
            first.checked_add(count).filter(|_| count > 0).map(|_| (first, count))
        };
        let runs = match runs {
            "" => Vec::new(),
            runs => runs.split(',').map(run).collect::<Option<Vec<_>>>()?,
        };
        let chunks = runs.iter().try_fold(0_u64, |sum, (_, count)| sum.checked_add(*count))?;
        let listing = Listing { size, digest, runs };
        let fits = chunks == listing.chunks();
        // A planted bug for `ci/fuzz`: a torn listing is read.
        #[cfg(canary)]
        let fits = fits || chunks > 0;
        fits.then_some(listing)
    }

    /// Whether these are the bytes of the object.
    pub(super) fn is_of(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.size && URL_SAFE.encode(digest(&SHA256, bytes)) == self.digest
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{};{};", self.size, self.digest)?;
        for (n, (first, count)) in self.runs.iter().enumerate() {
            write!(f, "{}{first}+{count}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fuzz::{decoder, fuzz};

    /// Whoever has the credentials may have written the entry.
    #[test]
    fn a_listing_is_refused_or_read_back_whatever_the_text_is() {
        let read = |bytes: &[u8]| Listing::read(std::str::from_utf8(bytes).ok()?);
        let listings = [vec![], vec![7], vec![1 << 40, 9, 10], (100..130).collect()].map(|numbers| {
            let mut listing = Listing::of(&vec![1; CHUNK * numbers.len()]);
            numbers.iter().for_each(|&number| listing.note(number));
            listing.to_string().into_bytes()
        });
        let decoder = decoder::<Listing>(|listing| listing.to_string().into_bytes(), read);
        fuzz(&[("Listing", decoder)], &listings);
    }

    #[test]
    fn a_listing_is_read_as_it_was_written() {
        for numbers in [vec![], vec![7], vec![7, 8, 9], vec![7, 9, 10, 4]] {
            let bytes = vec![1; CHUNK * numbers.len()];
            let mut listing = Listing::of(&bytes);
            numbers.iter().for_each(|&number| listing.note(number));
            let read = Listing::read(&listing.to_string()).unwrap();
            assert_eq!(read, listing);
            assert_eq!(read.numbers().collect::<Vec<_>>(), numbers);
            assert!(read.is_of(&bytes) && !read.is_of(&vec![2; bytes.len() + 1]));
        }
        let mut listing = Listing::of(&[1; 3 * CHUNK]);
        [5, 6, 7].into_iter().for_each(|number| listing.note(number));
        assert!(listing.to_string().ends_with(";5+3"), "one run: {listing}");
    }

    #[test]
    fn other_bytes_of_the_same_size_are_not_the_object() {
        let mut listing = Listing::of(&[1; 10]);
        listing.note(1);
        assert!(listing.is_of(&[1; 10]) && !listing.is_of(&[2; 10]) && !listing.is_of(&[1; 9]));
    }

    #[test]
    fn what_does_not_fit_together_is_no_listing() {
        let two = 2 * CHUNK;
        for text in [
            String::new(),
            "x;d;1+1".into(),
            format!("{two};d"),
            format!("{two};d;1+1"),
            format!("{two};d;1+3"),
            format!("{two};d;1+2,"),
            format!("{two};d;1+2;"),
            format!("{two};d;{}+2", u64::MAX),
            format!("{two};d;1+{},1+{}", u64::MAX - 1, 4),
            format!("{two};d;-1+2"),
            format!("{two};d;1+2,9+0"),
            "0;d;1+1".into(),
        ] {
            assert_eq!(Listing::read(&text), None, "{text}");
        }
        assert!(Listing::read(&format!("{two};d;1+1,9+1")).is_some());
        assert!(Listing::read("0;d;").is_some());
    }
}

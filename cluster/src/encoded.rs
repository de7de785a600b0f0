//! [`encoded`]: a value as bytes that many hold.

use std::sync::Arc;

use postcard::ser_flavors::Flavor;
use serde::Serialize;

/// So many bytes need no memory but that of the answer.
const SMALL: usize = 128;

/// A value in postcard. A small one takes one piece of memory.
pub(crate) fn encoded<T: Serialize>(value: &T) -> Result<Arc<[u8]>, postcard::Error> {
    postcard::serialize_with_flavor(value, SharedBytes { small: [0; SMALL], length: 0, large: Vec::new() })
}

/// Bytes, on the stack as long as they are few.
struct SharedBytes {
    small: [u8; SMALL],
    length: usize,
    /// All of them, if they are more.
    large: Vec<u8>,
}

impl Flavor for SharedBytes {
    type Output = Arc<[u8]>;

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        let end = self.length + bytes.len();
        if self.large.is_empty() {
            if let Some(place) = self.small.get_mut(self.length..end) {
                place.copy_from_slice(bytes);
                self.length = end;
                return Ok(());
            }
            self.large.reserve(end.max(2 * SMALL));
            self.large.extend_from_slice(&self.small[..self.length]);
        }
        self.large.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn finalize(self) -> postcard::Result<Arc<[u8]>> {
        Ok(if self.large.is_empty() { Arc::from(&self.small[..self.length]) } else { Arc::from(self.large) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_any_size_is_encoded_as_by_postcard() {
        for length in [0, 1, SMALL - 3, SMALL - 2, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL] {
            let text: String = ('a'..='z').cycle().take(length).collect();
            let value = (&text, 7_u8, text.as_bytes());
            assert_eq!(*encoded(&value).unwrap(), postcard::to_stdvec(&value).unwrap(), "{length}");
        }
    }
}

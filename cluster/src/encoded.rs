//! [`encoded`]: a value as bytes that many hold.

use std::sync::Arc;

use serde::Serialize;

/// So many bytes need no memory but that of the answer.
const SMALL: usize = 128;

/// A value in postcard. A small one takes one piece of memory.
pub(crate) fn encoded<T: Serialize>(value: &T) -> Result<Arc<[u8]>, postcard::Error> {
    postcard::to_extend(value, SharedBytes { small: [0; SMALL], length: 0, large: Vec::new() })
        .map(SharedBytes::into_arc)
}

/// Bytes, on the stack as long as they are few.
struct SharedBytes {
    small: [u8; SMALL],
    length: usize,
    /// All of them, if they are more.
    large: Vec<u8>,
}

impl SharedBytes {
    fn into_arc(self) -> Arc<[u8]> {
        if self.large.is_empty() { Arc::from(&self.small[..self.length]) } else { Arc::from(self.large) }
    }
}

impl Extend<u8> for SharedBytes {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        let mut bytes = bytes.into_iter();
        if self.large.is_empty() {
            for byte in bytes.by_ref() {
                if self.length == SMALL {
                    self.large.reserve(2 * SMALL);
                    self.large.extend(self.small);
                    self.large.push(byte);
                    break;
                }
                self.small[self.length] = byte;
                self.length += 1;
            }
        }
        if !self.large.is_empty() {
            self.large.extend(bytes);
        }
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

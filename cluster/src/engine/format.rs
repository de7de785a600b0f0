//! [`Format`]: what the messages of an engine look like as bytes.

use std::fmt;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The form of an engine's messages: a letter that says whose they are, the version, and a value in postcard.
///
/// For authors of engines. A change of a type that travels makes the next version.
///
/// ```
/// use forebear_cluster::engine::{Format, Refused};
///
/// let [old, new] = [1, 2].map(|version| Format::new(b'E', version));
/// let bytes = new.encode(&("a message", 7)).unwrap();
/// assert_eq!(new.decode::<(String, i32)>(&bytes), Ok(("a message".to_owned(), 7)));
/// assert_eq!(old.decode::<(String, i32)>(&bytes), Err(Refused::Version { theirs: 2, ours: 1 }));
/// assert_eq!(new.decode::<(String, i32)>(&bytes[..4]), Err(Refused::Garbage));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    mark: u8,
    version: u8,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// They do not begin with the letter of the engine.
    Stranger,
    /// They are of another version.
    Version {
        /// That of the sender.
        theirs: u8,
        /// That of this program.
        ours: u8,
    },
    /// They are torn, too long, or no value of the type that is expected.
    Garbage,
}

impl Format {
    /// A form with this letter, in that version.
    #[must_use]
    pub const fn new(mark: u8, version: u8) -> Format {
        Format { mark, version }
    }

    /// A message as bytes.
    ///
    /// # Errors
    ///
    /// The text of serde's error, for a type that cannot be encoded.
    pub fn encode<T: Serialize>(&self, message: &T) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        self.encode_behind(&mut bytes, message)?;
        Ok(bytes)
    }

    /// The same, behind these bytes. If that fails, a part of the message may be there.
    ///
    /// ```
    /// use forebear_cluster::engine::Format;
    ///
    /// let format = Format::new(b'E', 1);
    /// let mut frame = vec![0; 4]; // for the length
    /// format.encode_behind(&mut frame, &"a message").unwrap();
    /// let length = frame.len() as u32 - 4;
    /// frame[..4].copy_from_slice(&length.to_le_bytes());
    /// assert_eq!(format.decode(&frame[4..]), Ok("a message".to_owned()));
    /// ```
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode).
    pub fn encode_behind<T: Serialize>(&self, bytes: &mut Vec<u8>, message: &T) -> Result<(), String> {
        bytes.extend([self.mark, self.version]);
        postcard::serialize_with_flavor(message, Behind(bytes)).map_err(|error| error.to_string())
    }

    /// A message from bytes: from all of them. A length that the bytes claim and do not have takes no memory.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, Refused> {
        match bytes {
            [mark, version, rest @ ..] if (*mark, *version) == (self.mark, self.version) => {
                match postcard::take_from_bytes(rest) {
                    // A planted bug for `ci/fuzz`: what stands behind a message is passed over.
                    #[cfg(canary)]
                    Ok((message, _)) => Ok(message),
                    #[cfg(not(canary))]
                    Ok((message, [])) => Ok(message),
                    _ => Err(Refused::Garbage),
                }
            }
            [mark, theirs, ..] if *mark == self.mark => {
                Err(Refused::Version { theirs: *theirs, ours: self.version })
            }
            _ => Err(Refused::Stranger),
        }
    }
}

/// Where a message goes behind what is there.
struct Behind<'a>(&'a mut Vec<u8>);

impl Flavor for Behind<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Stranger => f.write_str("it is no message of a cluster"),
            Refused::Version { theirs, ours } => {
                write!(
                    f,
                    "it has version {theirs}, this program {ours}: build both with the same forebear-cluster"
                )
            }
            Refused::Garbage => f.write_str("it is torn or garbage"),
        }
    }
}

impl std::error::Error for Refused {}

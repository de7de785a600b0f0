//! Sections of a checkpoint as a file in the format `safetensors`, which programs of other languages read.
//!
//! The bytes are streamed from one file to the other, after all of the checkpoint has been verified. The crate `safetensors` gives the header and verifies it; its own
//! writer wants all arrays in memory.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use forebear::{Error, blocking};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::disk::{Disk, Real};
use super::sections::{SavedSections, SectionError};
use super::{Checkpoint, CheckpointError, file, io_at};

/// The header is filled up to a multiple of so many bytes.
const ALIGNMENT: usize = 8;
/// In a header this name is no tensor's.
const RESERVED: &str = "__metadata__";

/// A section that [`Checkpoint::export_safetensors`] exports as a tensor. With the feature `safetensors`.
///
/// ```
/// use forebear_supervise::{Checkpoint, CheckpointError, Dtype, Tensor};
///
/// fn export(saved: &Checkpoint) -> Result<(), CheckpointError> {
///     let weights = Tensor::new("weights", Dtype::F32, [2, 3]); // a section of 24 bytes
///     let bias = Tensor::new("bias", Dtype::F32, [3]);
///     saved.export_safetensors("model.safetensors", [weights, bias])
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Tensor {
    section: String,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Tensor {
    /// The bytes of this section are the elements of an array: little-endian, the last index first to change.
    pub fn new(section: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<usize>>) -> Tensor {
        Tensor { section: section.into(), dtype, shape: shape.into() }
    }
}

impl Checkpoint {
    /// Writes sections of this checkpoint into a file in the format `safetensors`. A file that is there is replaced as a whole. With the feature `safetensors`.
    ///
    /// Every byte of the checkpoint is verified before. No array is held in memory.
    ///
    /// Suspends. A cancellation point: an export that has begun then goes on to its end.
    ///
    /// ```
    /// use forebear::Error;
    /// use forebear_supervise::{Checkpoints, Dtype, SavedSections, Sections, State, Tensor};
    /// use std::sync::Arc;
    ///
    /// struct Weights(Vec<f32>);
    ///
    /// impl State for Weights {
    ///     fn schema(&self) -> u64 {
    ///         1
    ///     }
    ///     fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
    ///         let bytes: Vec<u8> = self.0.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    ///         out.put_bytes("weights", &bytes)
    ///     }
    ///     fn restore(&self, _: &SavedSections) -> Result<(), Error> {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # let dir = std::env::temp_dir().join(format!("export-{}", std::process::id()));
    /// let saved = Checkpoints::open(&dir)?.save(1, &Arc::new(Weights(vec![0.5; 6])))?;
    /// saved.export_safetensors(dir.join("weights.safetensors"), [Tensor::new("weights", Dtype::F32, [2, 3])])?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::CheckpointError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CheckpointError`]: `Io`, `Corrupt`, `Version`, `Busy`, `NoThread`, `Cancelled`; `State`, with a [`SectionError`], if there is no such section, one is given twice, or its length is not that
    /// of the array. The file that was there is untouched.
    pub fn export_safetensors(
        &self,
        to: impl Into<PathBuf>,
        tensors: impl IntoIterator<Item = Tensor>,
    ) -> Result<(), CheckpointError> {
        let (from, to) = (self.path.clone(), to.into());
        let tensors: Vec<Tensor> = tensors.into_iter().collect();
        blocking(move || export(&from, &to, tensors))?
    }
}

fn export(from: &Path, to: &Path, mut tensors: Vec<Tensor>) -> Result<(), CheckpointError> {
    let (_, sections) = file::open(from)?;
    // What has the longest elements comes first, so that all are aligned.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype));
    let refused = |source| CheckpointError::State { path: from.to_owned(), source };
    let header = header(&sections, &tensors).map_err(refused)?;

    let mut beside = to.to_owned().into_os_string();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    let mut out = Real.create(&beside).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => CheckpointError::Busy { path: to.to_owned() },
        _ => io_at(&beside)(error),
    })?;
    let mut write = || {
        out.write_all(&header).map_err(io_at(&beside))?;
        for tensor in &tensors {
            let mut section = sections.reader(&tensor.section).map_err(refused)?;
            io::copy(&mut section, &mut out).map_err(io_at(&beside))?;
        }
        out.sync().and_then(|()| Real.rename(&beside, to)).map_err(io_at(to))
    };
    if let Err(error) = write() {
        let _ = Real.remove(&beside);
        return Err(error);
    }
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Real.sync_names(parent).map_err(io_at(parent))
}

/// What stands before the arrays: its own length, and a description of them.
fn header(sections: &SavedSections, tensors: &[Tensor]) -> Result<Vec<u8>, Error> {
    let (mut at, mut names, mut described) = (0, HashSet::new(), Vec::new());
    for Tensor { section, dtype, shape } in tensors {
        if !names.insert(section) {
            return Err(SectionError::Twice { section: section.clone() }.into());
        }
        let bytes = sections.reader(section)?.section_len();
        let wants = shape.iter().try_fold(dtype.bitsize(), |bits, length| bits.checked_mul(*length));
        let wrong = |why| Err(SectionError::NoTensor { section: section.clone(), why }.into());
        if section == RESERVED {
            return wrong("the format has another use for this name".to_owned());
        }
        match wants {
            Some(bits) if bits % 8 == 0 && (bits / 8) as u64 == bytes => {}
            _ => {
                return wrong(format!("it has {bytes} bytes, which are no {dtype} array of shape {shape:?}"));
            }
        }
        // It fits: the lengths of all sections add up to less than that of a file.
        let end = at + bytes as usize;
        let info = TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (at, end) };
        described.push((section.clone(), info));
        at = end;
    }
    let described = Metadata::new(None, described).map_err(Error::other)?;
    let mut json = serde_json::to_vec(&described).map_err(Error::other)?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use safetensors::SafeTensors;

    use super::super::{Checkpoints, Sections, State};
    use super::*;

    struct Arrays;

    fn bytes<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
        values.into_iter().flatten().collect()
    }

    fn weights() -> Vec<u8> {
        bytes((0..6).map(|n| (n as f32 / 2.0).to_le_bytes()))
    }

    fn sums() -> Vec<u8> {
        bytes((0..100_000).map(|n| f64::from(n).to_le_bytes()))
    }

    impl State for Arrays {
        fn schema(&self) -> u64 {
            1
        }
        fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
            out.put_bytes("odd", b"123")?;
            out.put_bytes("weights", &weights())?;
            out.put_bytes("sums", &sums())?;
            out.put_bytes("none", b"")?;
            out.put_bytes(RESERVED, b"1")
        }
        fn restore(&self, _: &SavedSections) -> Result<(), Error> {
            Ok(())
        }
    }

    #[test]
    fn what_is_exported_is_read_by_the_formats_own_crate() {
        let dir = tempfile::tempdir().unwrap();
        let saved =
            Checkpoints::open(dir.path().join("checkpoints")).unwrap().save(1, &Arc::new(Arrays)).unwrap();
        let to = dir.path().join("out.safetensors");
        let tensors = [
            Tensor::new("odd", Dtype::U8, [3]),
            Tensor::new("weights", Dtype::F32, [2, 3]),
            Tensor::new("sums", Dtype::F64, [100_000]),
            Tensor::new("none", Dtype::I16, [0, 7]),
        ];
        // The second one replaces the first.
        saved.export_safetensors(&to, tensors.clone()).unwrap();
        saved.export_safetensors(&to, tensors).unwrap();
        let file = fs::read(&to).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.len(), 4);
        let tensor = |name: &str| read.tensor(name).unwrap();
        assert_eq!((tensor("odd").dtype(), tensor("odd").data()), (Dtype::U8, &b"123"[..]));
        assert_eq!((tensor("weights").shape(), tensor("weights").data()), (&[2, 3][..], &weights()[..]));
        assert_eq!((tensor("sums").dtype(), tensor("sums").data()), (Dtype::F64, &sums()[..]));
        assert_eq!(tensor("none").shape(), [0, 7]);
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn a_section_that_is_no_such_array_is_refused_by_name_and_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let saved = Checkpoints::open(dir.path()).unwrap().save(1, &Arc::new(Arrays)).unwrap();
        let to = dir.path().join("out.safetensors");
        let refused = |tensors: &[Tensor]| {
            let error = saved.export_safetensors(&to, tensors.to_vec()).unwrap_err();
            let CheckpointError::State { source, .. } = error else { panic!("{error:?}") };
            assert!(!to.exists());
            source.downcast::<SectionError>().unwrap()
        };
        let of = |shape: &[usize]| Tensor::new("weights", Dtype::F32, shape);
        assert!(matches!(refused(&[Tensor::new("w", Dtype::U8, [1])]), SectionError::Missing { .. }));
        assert!(matches!(refused(&[of(&[6]), of(&[6])]), SectionError::Twice { .. }));
        for wrong in [of(&[7]), of(&[]), of(&[usize::MAX, 8]), Tensor::new("odd", Dtype::F4, [5])] {
            assert!(matches!(refused(&[wrong]), SectionError::NoTensor { .. }));
        }
        let reserved = refused(&[Tensor::new(RESERVED, Dtype::U8, [1])]);
        assert!(matches!(&reserved, SectionError::NoTensor { section, .. } if section == RESERVED));
        let mut bytes = fs::read(&saved.path).unwrap();
        bytes[41] ^= 1;
        fs::write(&saved.path, bytes).unwrap();
        let damaged = saved.export_safetensors(&to, [of(&[6])]).unwrap_err();
        assert!(matches!(damaged, CheckpointError::Corrupt { .. }) && !to.exists());
    }
}

//! Files: a picture in, a picture out.
//!
//! The output appears whole or not at all: it is written beside its place under a name of its own and then renamed.
//! Whatever goes wrong before the rename leaves an older picture as it was, and nothing new in the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use forebear::{Cancelled, check_cancelled};
use image::{GrayImage, ImageFormat, RgbImage};

use crate::blocks::Rect;

/// The picture that is used when none is given; its credit is in `examples/data/README.md`.
const HUBBLE: &[u8] = include_bytes!("../data/hubble_deep_field.jpg");

/// The input: 8-bit RGB, repeated `scale` times in both directions. The copies exist only as a rule, not in memory.
#[derive(Debug)]
pub(crate) struct Source {
    rgb: RgbImage,
    scale: usize,
    /// Linear light for each 8-bit value: the table is the inverse of the sRGB transfer function.
    linear: [f32; 256],
}

impl Source {
    /// Reads `path`, or the bundled picture. What the file is, its content says, not its name. Alpha is dropped, deeper
    /// channels are cut to 8 bits.
    pub(crate) fn open(path: Option<&Path>, scale: u32) -> anyhow::Result<Source> {
        let rgb = match path {
            None => decode(HUBBLE).context("cannot read the bundled picture")?,
            Some(path) => File::open(path)
                .map_err(anyhow::Error::from)
                .and_then(decode)
                .with_context(|| format!("cannot read {path:?}"))?,
        };
        Ok(Source::new(rgb, scale))
    }

    /// A source from pixels that are already there.
    pub(crate) fn new(rgb: RgbImage, scale: u32) -> Source {
        let linear = std::array::from_fn(|i| {
            let v = i as f64 / 255.0;
            (if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }) as f32
        });
        Source { rgb, scale: scale as usize, linear }
    }

    pub(crate) fn width(&self) -> usize {
        self.rgb.width() as usize * self.scale
    }

    pub(crate) fn height(&self) -> usize {
        self.rgb.height() as usize * self.scale
    }

    /// The luminance, from 0 to 1, of the pixels of `rect`, row by row. Stops if the request that asks is cancelled.
    pub(crate) fn luminance(&self, rect: Rect) -> Result<Vec<f32>, Cancelled> {
        let (width, height) = (self.rgb.width() as usize, self.rgb.height() as usize);
        let mut out = Vec::with_capacity(rect.len());
        for y in rect.y..rect.bottom() {
            check_cancelled()?;
            let row = &self.rgb.as_raw()[y % height * width * 3..][..width * 3];
            let pixels = row.chunks_exact(3).cycle().skip(rect.x % width).take(rect.width);
            out.extend(pixels.map(|p| {
                let [r, g, b] = [p[0], p[1], p[2]].map(|v| self.linear[usize::from(v)]);
                0.2126 * r + 0.7152 * g + 0.0722 * b
            }));
        }
        Ok(out)
    }
}

/// Reads a picture from anything that can be read, a pipe too. What is no picture is known by its first bytes.
fn decode(mut input: impl Read) -> anyhow::Result<RgbImage> {
    let mut bytes = Vec::new();
    input.by_ref().take(16).read_to_end(&mut bytes)?;
    match image::guess_format(&bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg)) => {
            input.read_to_end(&mut bytes)?;
            Ok(image::load_from_memory_with_format(&bytes, format)?.into_rgb8())
        }
        _ => bail!("this is neither a PNG nor a JPEG picture"),
    }
}

/// Makes the signed differences visible: zero is mid-grey, the largest magnitude is black or white. The square root
/// between them shows what is faint beside what is bright.
pub(crate) fn grey(values: &[f32], width: usize, height: usize) -> GrayImage {
    let largest = values.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    let gain = if largest > 0.0 { largest.recip() } else { 0.0 };
    let level = |v: f32| (127.5 + 127.5 * (v.abs() * gain).sqrt().copysign(v)).round() as u8;
    GrayImage::from_fn(width as u32, height as u32, |x, y| {
        image::Luma([level(values[y as usize * width + x as usize])])
    })
}

/// The picture as a PNG.
pub(crate) fn encode(picture: &GrayImage) -> anyhow::Result<Vec<u8>> {
    let mut png = Vec::new();
    picture.write_to(&mut Cursor::new(&mut png), ImageFormat::Png).context("cannot encode the picture")?;
    Ok(png)
}

/// A place where a picture can be written.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    place: Place,
}

/// What stands at the path.
#[derive(Debug)]
enum Place {
    /// A file, or nothing yet: write beside it, in `dir`, and rename. An older file lends its permissions.
    File { target: PathBuf, dir: PathBuf, older: Option<fs::Permissions> },
    /// A device or a pipe: a rename would replace it, so it is written to.
    Device,
}

impl Output {
    /// Finds out, before any work is done, whether a picture can be written to `path`. Leaves no trace.
    pub(crate) fn prepare(path: &Path) -> anyhow::Result<Output> {
        let place = Output::look(path).with_context(|| format!("cannot write {path:?}"))?;
        Ok(Output { path: path.to_owned(), place })
    }

    fn look(path: &Path) -> io::Result<Place> {
        let (target, older) = match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(meta) if !meta.is_file() => return Ok(Place::Device),
            // The rename would ask only the directory; a file that is read-only is meant to be kept.
            Ok(meta) if meta.permissions().readonly() => return Err(io::ErrorKind::PermissionDenied.into()),
            // A link stays a link: what it points to is replaced.
            Ok(meta) => (fs::canonicalize(path)?, Some(meta.permissions())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_owned(), None),
            Err(error) => return Err(error),
        };
        if target.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this names no file"));
        }
        let dir = match target.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            _ => PathBuf::from("."),
        };
        fs::metadata(&dir)?; // says it best if there is no such directory
        beside(&dir)?;
        Ok(Place::File { target, dir, older })
    }

    /// Whether a write may take as long as whoever reads, and cannot be taken back.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self.place, Place::Device)
    }

    /// Writes an encoded picture.
    pub(crate) fn write(&self, png: &[u8]) -> anyhow::Result<()> {
        self.put(png).with_context(|| format!("cannot write {:?}", self.path))
    }

    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.place {
            Place::Device => OpenOptions::new().write(true).open(&self.path)?.write_all(bytes),
            Place::File { target, dir, older } => {
                let mut file = beside(dir)?;
                file.write_all(bytes)?;
                if let Some(permissions) = older {
                    file.as_file().set_permissions(permissions.clone())?;
                }
                file.persist(target)?;
                Ok(())
            }
        }
    }
}

/// A file in `dir` that goes with its handle unless it is renamed.
fn beside(dir: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".difference_of_gaussians-");
    // A temporary file is private by default; this one is to become an ordinary one, as the umask has it.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // The library's own error names the temporary file, which the user did not.
    builder.tempfile_in(dir).map_err(|error| error.kind().into())
}

//! Files: a picture in, a picture out.
//!
//! The output appears whole or not at all: it is written beside its place under a name of its own and then renamed.
//! Whatever goes wrong before the rename leaves an older picture as it was, and nothing new in the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use forebear::{Cancelled, check_cancelled};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::blocks::Rect;

/// The picture that is used when none is given; its credit is in `examples/data/README.md`.
const HUBBLE: &[u8] = include_bytes!("../../data/hubble_deep_field.jpg");

/// Pixels, row by row: of three bytes each (RGB), or of one (grey).
#[derive(Debug)]
pub(crate) struct Picture<const CHANNELS: usize> {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

pub(crate) type Rgb = Picture<3>;
pub(crate) type Grey = Picture<1>;

impl<const CHANNELS: usize> Picture<CHANNELS> {
    /// A picture whose pixels `pixel` gives, by column and row.
    pub(crate) fn from_fn(
        width: usize,
        height: usize,
        mut pixel: impl FnMut(usize, usize) -> [u8; CHANNELS],
    ) -> Self {
        let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        Picture { width, height, bytes: places.flat_map(|(x, y)| pixel(x, y)).collect() }
    }

    /// Its bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The input: 8-bit RGB, repeated `scale` times in both directions. The copies exist only as a rule, not in memory.
#[derive(Debug)]
pub(crate) struct Source {
    rgb: Rgb,
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
    pub(crate) fn new(rgb: Rgb, scale: u32) -> Source {
        let linear = std::array::from_fn(|i| {
            let v = i as f64 / 255.0;
            (if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }) as f32
        });
        Source { rgb, scale: scale as usize, linear }
    }

    pub(crate) fn width(&self) -> usize {
        self.rgb.width * self.scale
    }

    pub(crate) fn height(&self) -> usize {
        self.rgb.height * self.scale
    }

    /// The luminance, from 0 to 1, of the pixels of `rect`, row by row. Stops if the request that asks is cancelled.
    pub(crate) fn luminance(&self, rect: Rect) -> Result<Vec<f32>, Cancelled> {
        let (width, height) = (self.rgb.width, self.rgb.height);
        let mut out = Vec::with_capacity(rect.len());
        for y in rect.y..rect.bottom() {
            check_cancelled()?;
            let row = &self.rgb.bytes[y % height * width * 3..][..width * 3];
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
fn decode(mut input: impl Read) -> anyhow::Result<Rgb> {
    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
    const JPEG: &[u8] = b"\xff\xd8\xff";
    let mut bytes = Vec::new();
    input.by_ref().take(16).read_to_end(&mut bytes)?;
    let decode = match &bytes[..] {
        start if start.starts_with(PNG) => decode_png,
        start if start.starts_with(JPEG) => decode_jpeg,
        _ => bail!("this is neither a PNG nor a JPEG picture"),
    };
    input.read_to_end(&mut bytes)?;
    decode(&bytes)
}

fn decode_jpeg(bytes: &[u8]) -> anyhow::Result<Rgb> {
    let most = usize::from(u16::MAX); // what a JPEG can say
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(
        ZCursor::new(bytes),
        options.set_max_width(most).set_max_height(most).set_strict_mode(false),
    );
    let bytes = decoder.decode()?;
    let (width, height) = decoder.dimensions().context("it has no size")?;
    if bytes.len() != width * height * 3 {
        bail!("its colours are of a kind that cannot be read");
    }
    Ok(Picture { width, height, bytes })
}

fn decode_png(bytes: &[u8]) -> anyhow::Result<Rgb> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    // A palette becomes its colours, and what is deeper or shallower becomes 8 bits.
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info()?;
    let mut bytes = vec![0; reader.output_buffer_size().context("it is too large")?];
    let info = reader.next_frame(&mut bytes)?;
    bytes.truncate(info.buffer_size());
    let channels = info.color_type.samples();
    let rgb = |pixel: &[u8]| match *pixel {
        [r, g, b] | [r, g, b, _] => [r, g, b],
        _ => [pixel[0]; 3],
    };
    Ok(Picture {
        width: info.width as usize,
        height: info.height as usize,
        bytes: bytes.chunks_exact(channels).flat_map(rgb).collect(),
    })
}

/// Makes the signed differences visible: zero is mid-grey, the largest magnitude is black or white. The square root
/// between them shows what is faint beside what is bright.
pub(crate) fn grey(values: &[f32], width: usize, height: usize) -> Grey {
    let largest = values.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    let gain = if largest > 0.0 { largest.recip() } else { 0.0 };
    let level = |v: f32| (127.5 + 127.5 * (v.abs() * gain).sqrt().copysign(v)).round() as u8;
    Grey::from_fn(width, height, |x, y| [level(values[y * width + x])])
}

/// The picture as a PNG.
pub(crate) fn encode(picture: &Grey) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encode = || {
        let mut encoder =
            png::Encoder::new(&mut bytes, picture.width.try_into()?, picture.height.try_into()?);
        encoder.set_color(png::ColorType::Grayscale);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&picture.bytes)?;
        anyhow::Ok(writer.finish()?)
    };
    encode().context("cannot encode the picture")?;
    Ok(bytes)
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

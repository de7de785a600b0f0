//! [`Summary`]: values of a job at a step, as the message `Summary` of TensorFlow.

use super::proto::{Message, histogram};

/// Values of a job at a step, each with a name (*tag*).
///
/// ```
/// use forebear_supervise::{EventWriter, Summary};
///
/// # let dir = std::env::temp_dir().join(format!("summary-{}", std::process::id()));
/// # let png = [];
/// let events = EventWriter::create(&dir)?;
/// let summary = Summary::new()
///     .scalar("loss", 0.25)
///     .histogram("weights", &[0.1, 0.2, 0.2, 0.9])
///     .text("notes", "the **first** run")
///     .image_png("centres", (16, 16), &png);
/// assert!(!summary.is_empty());
/// events.write(10, summary)?;
/// events.flush()?;
/// assert!(events.path().starts_with(&dir));
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub(super) values: Message,
}

impl Summary {
    /// A summary without values.
    #[must_use]
    pub fn new() -> Summary {
        Summary::default()
    }

    /// Adds a scalar. TensorBoard keeps it as an `f32`.
    #[must_use]
    pub fn scalar(self, tag: &str, value: f64) -> Self {
        self.value(tag, |message| message.float(2, value as f32))
    }

    /// Adds a histogram of these numbers. Infinite ones and NaN are left out.
    #[must_use]
    pub fn histogram(self, tag: &str, values: &[f64]) -> Self {
        self.value(tag, |message| message.message(5, &histogram(values)))
    }

    /// Adds an image: the bytes of a PNG file, and its `size` (width, height) in pixels.
    #[must_use]
    pub fn image_png(self, tag: &str, size: (u32, u32), png: &[u8]) -> Self {
        let image = Message::default()
            .integer(1, size.1.into())
            .integer(2, size.0.into())
            .integer(3, 3)
            .bytes(4, png);
        self.value(tag, |message| message.message(4, &image))
    }

    /// Adds a text, which TensorBoard reads as Markdown.
    #[must_use]
    pub fn text(self, tag: &str, text: &str) -> Self {
        let plugin = Message::default().bytes(1, b"text");
        let metadata = Message::default().message(1, &plugin);
        let shape = Message::default().message(2, &Message::default().integer(1, 1));
        let tensor = Message::default().integer(1, 7).message(2, &shape).bytes(8, text.as_bytes());
        self.value(tag, |message| message.message(9, &metadata).message(8, &tensor))
    }

    /// Whether it has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn value(mut self, tag: &str, add: impl FnOnce(Message) -> Message) -> Self {
        self.values = self.values.nested(1, |message| add(message.bytes(1, tag.as_bytes())));
        self
    }
}

//! As much of protocol buffers as an event needs: fields are written one after another, and never read.
//!
//! Source: the encoding guide of protocol buffers. A field is its number and kind, as a varint, then its value: a varint (kind 0), 8 bytes (1), a length and
//! bytes (2), 4 bytes (5).

/// Most events and summaries need no more bytes, and so no second allocation.
const MOST_EVENTS: usize = 64;

/// The bytes of a message that is being put together.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn integer(mut self, field: u32, value: u64) -> Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    pub(super) fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    pub(super) fn message(self, field: u32, message: &Message) -> Self {
        self.bytes(field, &message.0)
    }

    /// A message that is put together in its place.
    pub(super) fn nested(mut self, field: u32, add: impl FnOnce(Message) -> Message) -> Self {
        self.key(field, 2);
        let begin = self.0.len() + 1;
        // The length of most takes one byte.
        self.0.push(0);
        self = add(self);
        let length = self.0.len() - begin;
        if length < 0x80 {
            self.0[begin - 1] = length as u8;
        } else {
            let message = self.0.split_off(begin);
            self.0.pop();
            self.varint(length as u64);
            self.0.extend(message);
        }
        self
    }

    /// A message behind these bytes, with room for so many more than most events have.
    pub(super) fn behind(bytes: &[u8], more: usize) -> Message {
        let mut message = Vec::with_capacity(bytes.len() + MOST_EVENTS + more);
        message.extend(bytes);
        Message(message)
    }

    fn doubles(self, field: u32, values: &[f64]) -> Self {
        let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(field, &packed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn key(&mut self, field: u32, kind: u32) {
        if self.0.capacity() == 0 {
            self.0.reserve(MOST_EVENTS);
        }
        self.varint(u64::from(field << 3 | kind));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// How many buckets a histogram has at most.
const BUCKETS: usize = 30;

/// The message `HistogramProto`: buckets of one width, from the least value to the greatest.
pub(super) fn histogram(values: &[f64]) -> Message {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let count = finite().count();
    if count == 0 {
        return Message::default().double(3, 0.0).doubles(6, &[0.0]).doubles(7, &[0.0]);
    }
    let (least, most) =
        finite().fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    let buckets = if least == most { 1 } else { BUCKETS };
    // Halved first: the distance of two finite numbers may be no finite one.
    let width = (most / 2.0 - least / 2.0) / buckets as f64 * 2.0;
    let mut counts = vec![0.0; buckets];
    for value in finite() {
        let at = if width > 0.0 { ((value / 2.0 - least / 2.0) / width * 2.0) as usize } else { 0 };
        counts[at.min(buckets - 1)] += 1.0;
    }
    let mut limits: Vec<f64> = (1..=buckets).map(|n| least + width * n as f64).collect();
    if let Some(last) = limits.last_mut() {
        *last = most;
    }
    let (sum, squares) =
        finite().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
    Message::default()
        .double(1, least)
        .double(2, most)
        .double(3, count as f64)
        .double(4, sum)
        .double(5, squares)
        .doubles(6, &limits)
        .doubles(7, &counts)
}

//! Bytes at random for decoders. `ci/fuzz` asks for more of them, and plants a bug that must be found.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// A decoder, by what it makes of bytes: nothing, or the bytes of the message that it has read.
pub(crate) type Decoder = Box<dyn Fn(&[u8]) -> Option<Vec<u8>>>;

/// The decoder of a message.
pub(crate) fn decoder<T>(
    encode: impl Fn(&T) -> Vec<u8> + 'static,
    decode: impl Fn(&[u8]) -> Option<T> + 'static,
) -> Decoder {
    Box::new(move |bytes| Some(encode(&decode(bytes)?)))
}

/// What must hold of any bytes: no panic; a message that was read is not written longer, but for durations, and read the same again; and it is refused
/// with a byte less, or more.
fn check(decode: &Decoder, bytes: &[u8]) -> Result<(), String> {
    let Some(written) = decode(bytes) else { return Ok(()) };
    // A duration with a second or more in its nanoseconds has six bytes at least. It is read, and may be written with seven, since its seconds grow.
    if written.len() > bytes.len() + bytes.len() / 6 {
        return Err(format!("{bytes:?} is read, and written longer: {written:?}"));
    }
    match decode(&written) {
        Some(again) if again == written => {}
        again => return Err(format!("{written:?} is read as {again:?}")),
    }
    for end in (0..written.len()).rev().take(40) {
        if decode(&written[..end]).is_some() {
            return Err(format!("{written:?} is read when it is torn at {end}"));
        }
    }
    if decode(&[&written[..], &[7]].concat()).is_some() {
        return Err(format!("{written:?} is read with a byte behind it"));
    }
    Ok(())
}

/// Tries random bytes and random changes of the samples: 20,000 times, or for `FOREBEAR_FUZZ_SECONDS`. The seed is `FOREBEAR_FUZZ_SEED`, or another one each time; that of a failure
/// is printed and finds it at once.
pub(crate) fn fuzz(decoders: &[(&str, Decoder)], samples: &[Vec<u8>]) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    for sample in samples {
        let readers = decoders.iter().filter(|(_, decode)| decode(sample).is_some());
        assert!(readers.count() > 0, "no decoder reads the sample {sample:?}");
    }
    let (begun, seconds) = (Instant::now(), number("FOREBEAR_FUZZ_SECONDS").map(Duration::from_secs));
    let mut seed = number("FOREBEAR_FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(1));
    println!("from seed {seed}");
    let (mut rounds, mut read) = (0_u64, 0_u64);
    while seconds.map_or(rounds < 20_000, |limit| begun.elapsed() < limit) {
        let bytes = draw(seed, samples);
        for (name, decode) in decoders {
            read += u64::from(decode(&bytes).is_some());
            if let Err(why) = check(decode, &bytes) {
                panic!("FOREBEAR_FUZZ_SEED={seed}: {name}: {why}");
            }
        }
        (seed, rounds) = (seed.wrapping_add(1), rounds + 1);
    }
    println!("{rounds} rounds, of which {read} were messages, the next seed is {seed}");
    assert!(read > rounds / 100, "hardly any of the bytes are messages");
}

/// A sample, changed in some places; or its head, and anything after that.
fn draw(seed: u64, samples: &[Vec<u8>]) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |end: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % end.max(1)
    };
    let mut bytes = samples[below(samples.len())].clone();
    match below(4) {
        0 => {
            bytes.truncate(2 + below(3));
            (0..below(60)).for_each(|_| bytes.push(below(256) as u8));
        }
        1 => {
            let (from, to) = (below(bytes.len()), below(bytes.len()));
            bytes.drain(from.min(to)..from.max(to));
        }
        2 => {
            let piece = samples[below(samples.len())].clone();
            let at = below(bytes.len());
            bytes.splice(at..at, piece[below(piece.len())..].iter().copied());
        }
        _ => {}
    }
    for _ in 0..below(4) {
        let at = below(bytes.len());
        match (bytes.get_mut(at), below(3)) {
            (Some(byte), 0) => *byte = below(256) as u8,
            (Some(byte), 1) => *byte ^= 1 << below(8),
            (Some(byte), _) => *byte = [0, 1, 0x7f, 0x80, 0xff][below(5)],
            (None, _) => {}
        }
    }
    bytes
}

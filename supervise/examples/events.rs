//! Writes what TensorBoard shows into the directory that is given: numbers, distributions, pictures and a text.
//!
//! `cargo run -p forebear-supervise --example events -- runs/one`, then `tensorboard --logdir runs`.

use forebear_supervise::{EventWriter, SessionLog, Summary};

/// A picture of one red pixel.
const PNG: [u8; 69] = [
    0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 13, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0, 0, 0,
    1, 8, 2, 0, 0, 0, 0x90, 0x77, 0x53, 0xde, 0, 0, 0, 12, b'I', b'D', b'A', b'T', 0x78, 0xda, 0x63, 0xf8,
    0xcf, 0xc0, 0, 0, 3, 1, 1, 0, 0xf7, 0x03, 0x41, 0x43, 0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42,
    0x60, 0x82,
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("give a directory")?;
    let events = EventWriter::create(dir)?;
    events.session(Some(100), SessionLog::Start)?;
    for step in 100..1_100 {
        let loss = 1.0 / (step - 99) as f64;
        let mut summary = Summary::new().scalar("loss", loss).scalar("global_step/sec", 7.5);
        if step % 100 == 0 {
            let weights: Vec<f64> = (0..1_000).map(|n| f64::from(n) * loss).collect();
            summary = summary.histogram("weights", &weights).image_png("pixel", (1, 1), &PNG);
        }
        events.write(step, summary)?;
    }
    events.write(1_099, Summary::new().text("note", "**the end**"))?;
    events.session(Some(1_099), SessionLog::Checkpoint("checkpoint-000000001099".into()))?;
    events.session(None, SessionLog::Stop)?;
    println!("{}", events.path().display());
    events.close()?;
    Ok(())
}

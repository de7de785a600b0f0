//! The figures that a candidate prints: rates, percentiles, and processor time.

use std::fs;
use std::time::{Duration, Instant};

/// Prints one figure, for [`rounds`](crate::rounds).
pub(crate) fn print(name: &str, value: f64) {
    println!("{name} {value}");
}

/// How many a second.
pub(crate) fn rate(n: u64, time: Duration) -> f64 {
    n as f64 / time.as_secs_f64()
}

/// Calls `one` again and again, and prints p50 and p99 in microseconds. The first tenth is not
/// counted.
pub(crate) fn one_by_one(n: u64, mut one: impl FnMut(u64) -> crate::Whether<()>) -> crate::Whether<()> {
    let mut all = Vec::new();
    for i in 0..n {
        let begun = Instant::now();
        one(i)?;
        if i >= n / 10 {
            all.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    print("p50 us", percentile(&mut all, 50));
    print("p99 us", percentile(&mut all, 99));
    Ok(())
}

/// The smallest value that so many percent of all do not exceed.
pub(crate) fn percentile(all: &mut [f64], percent: usize) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get((all.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// The processor time of a process so far, in seconds; in steps of 10 ms.
pub(crate) fn computed(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    // After the state: utime and stime are the twelfth and the thirteenth.
    let ticks: f64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    ticks / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let mut all: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&mut all, percent)), [100.0, 198.0, 200.0]);
        assert_eq!(percentile(&mut [7.0], 99), 7.0);
    }
}

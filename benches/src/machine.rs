//! What the figures were measured on: the machine, the rivals' versions, and how quiet the machine
//! was.
//!
//! Nothing here names a host, a user or a path, since the page is published.

use std::collections::HashMap;
use std::fs;

/// The lock file that this binary was built by.
const LOCK: &str = include_str!("../../Cargo.lock");

/// The facts about this machine, by name.
#[must_use]
pub fn facts() -> Vec<(&'static str, String)> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let of = |key| {
        let line = info.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let mut cpu = of("model name").unwrap_or_else(|| "unknown".into());
    if let (Some(family), Some(model)) = (of("cpu family"), of("model\t")) {
        cpu += &format!(" (family {family}, model {model})");
    }
    let is_virtual = of("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    if is_virtual {
        cpu += ", virtual";
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    // Only the number: what follows it is what its builder called it.
    let release = read("/proc/sys/kernel/osrelease");
    let kernel = release.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let governor = match governor.trim() {
        "" => "not to be read here".into(),
        governor => governor.to_string(),
    };
    vec![
        ("CPU", cpu),
        ("cores", cores.to_string()),
        ("kernel", format!("{} {kernel}", capital(std::env::consts::OS))),
        ("hypervisor", if is_virtual { hypervisor() } else { "none".into() }),
        ("governor", governor),
        ("versions", versions(LOCK).join(", ")),
    ]
}

/// The hypervisor's name, as the processor reports it.
fn hypervisor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
        let name: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes).collect();
        let name: String = name.into_iter().filter(u8::is_ascii_alphanumeric).map(char::from).collect();
        if !name.is_empty() {
            return name;
        }
    }
    "not named".into()
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_uppercase() + rest
}

/// The packages that the benches depend on, with their versions, as a lock file has them.
fn versions(lock: &str) -> Vec<String> {
    let value = |line: &str| line.split('"').nth(1).unwrap_or_default().to_string();
    let mut all: HashMap<String, Vec<String>> = HashMap::new();
    let mut wanted = Vec::new();
    for package in lock.split("[[package]]") {
        let key = |key| package.lines().find(|line| line.starts_with(key)).map(value).unwrap_or_default();
        let name = key("name = ");
        if name == "forebear-benches" {
            wanted = package.lines().filter(|line| line.starts_with(" \"")).map(value).collect();
        }
        all.entry(name).or_default().push(key("version = "));
    }
    // A dependency is told with its version only where the lock file has several.
    let told = |it: &String| match it.split_once(' ') {
        Some(_) => it.clone(),
        None => format!("{it} {}", all.get(it).map(|all| all.join(" and ")).unwrap_or_default()),
    };
    let rival = |it: &&String| !it.starts_with("forebear") && !it.starts_with("criterion");
    wanted.iter().filter(rival).map(told).collect()
}

/// How much else went on during a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// The round's number, from 0.
    pub round: usize,
    /// The system's load average over a minute, before the round. The round before it counts, too.
    pub load: f64,
    /// The share of the cores' time, in percent, that the hypervisor gave to others.
    pub steal: f64,
    /// The share of the cores' time, in percent, that other processes of this machine took.
    pub others: f64,
}

impl Noise {
    /// Whether the round may be trusted: what the system does for itself is below 3 %.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        self.steal <= 1.0 && self.others <= 3.0
    }
}

/// Reads the system's counters at the beginning and the end of a round.
#[derive(Debug)]
pub struct Watch {
    load: f64,
    clocks: Clocks,
}

impl Watch {
    /// The round begins.
    #[must_use]
    pub fn start() -> Watch {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
        Watch { load, clocks: Clocks::now() }
    }

    /// The load average when it began.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.load
    }

    /// The round is over. Zeros where the system does not report.
    #[must_use]
    pub fn stop(self, round: usize) -> Noise {
        let (from, to) = (self.clocks, Clocks::now());
        let share = |ticks: f64| 100.0 * ticks.max(0.0) / (to.total - from.total).max(1.0);
        let own = to.own - from.own;
        Noise {
            round,
            load: self.load,
            steal: share(to.steal - from.steal),
            others: share(to.busy - from.busy - own),
        }
    }
}

/// Ticks since the system began: all; those in which any process computed; those that the hypervisor took. Also
/// those of this process and of the children that it has waited for.
#[derive(Debug, Clone, Copy, Default)]
struct Clocks {
    total: f64,
    busy: f64,
    steal: f64,
    own: f64,
}

impl Clocks {
    fn now() -> Clocks {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Clocks::parse(&read("/proc/stat"), &read("/proc/self/stat"))
    }

    fn parse(system: &str, own: &str) -> Clocks {
        let numbers = |text: &str| -> Vec<f64> {
            text.split_whitespace().map_while(|word| word.parse().ok()).collect()
        };
        // user, nice, system, idle, iowait, irq, softirq, steal; what comes after them is part of the first two.
        let cpu =
            numbers(system.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default());
        let [user, nice, kernel, idle, iowait, irq, softirq, steal, ..] = cpu[..] else {
            return Clocks::default();
        };
        // After the name in brackets and the state: utime, stime, cutime and cstime are the eleventh and on.
        let rest = own.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
        let own = numbers(rest.get(1..).unwrap_or_default()).iter().skip(10).take(4).sum();
        let busy = user + nice + kernel + irq + softirq;
        Clocks { total: busy + idle + iowait + steal, busy, steal, own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_that_the_benches_depend_on() {
        let lock = "[[package]]\nname = \"may\"\nversion = \"0.3.51\"\n\n[[package]]\nname = \"forebear-benches\"\n\
                    version = \"0.1.0\"\ndependencies = [\n \"criterion\",\n \"forebear\",\n \"may\",\n \"parking_lot 0.13.0\",\n]\n\n\
                    [[package]]\nname = \"parking_lot\"\nversion = \"0.12.5\"\n";
        assert_eq!(versions(lock), ["may 0.3.51", "parking_lot 0.13.0"]);
        assert!(versions(LOCK).iter().any(|it| it.starts_with("rayon 1.")), "{:?}", versions(LOCK));
    }

    #[test]
    fn what_is_not_ours_is_others() {
        let before = Clocks::parse(
            "cpu  100 0 0 900 0 0 0 0 0 0\n",
            "7 (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 10 5 20 5 20 0 1",
        );
        let after = Clocks::parse(
            "cpu  160 0 0 930 0 0 0 10 0 0\n",
            "7 (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 20 5 50 5 20 0 1",
        );
        assert_eq!((before.own, after.own), (40.0, 80.0));
        assert_eq!((after.total - before.total, after.busy - before.busy, after.steal), (100.0, 60.0, 10.0));
    }

    #[test]
    fn a_round_is_quiet_if_hardly_anything_else_computed() {
        let quiet = Noise { round: 0, load: 9.0, steal: 0.5, others: 1.0 };
        assert!(quiet.is_quiet());
        assert!(!Noise { others: 10.0, ..quiet }.is_quiet() && !Noise { steal: 2.0, ..quiet }.is_quiet());
    }

    #[test]
    fn no_fact_names_a_path() {
        for (name, value) in facts() {
            assert!(!value.contains('/'), "{name}: {value}");
        }
    }
}

//! The published page of a run: the machine, the goals, and a table and plots for each claim.

use std::fmt::Write as _;

use crate::claim::Claim;
use crate::claims;
use crate::kept::Kept;
use crate::machine::Noise;
use crate::plot::{self, Cell};
use crate::report::{self, Verdict};

/// A page and its plots, by the names of their files, which stand beside each other.
#[derive(Debug)]
pub struct Page {
    /// The page, in Markdown.
    pub text: String,
    /// The plots: file names and what is in them.
    pub plots: Vec<(String, String)>,
    /// How many goals were reached, fell short, and are open.
    pub verdicts: [usize; 3],
}

/// The rows of which there are figures, all claims of the table in its order.
#[must_use]
pub fn cells(kept: &Kept) -> Vec<Cell> {
    let mut cells = Vec::new();
    for claim in claims::ALL {
        for row in claim.rows {
            for &workers in row.workers {
                let mut tallies = kept.tallies(claim, row, workers);
                if tallies.iter().all(|(_, it)| it.samples.is_empty() && it.died.is_empty()) {
                    continue;
                }
                let died = tallies.iter_mut().flat_map(|(_, tally)| &mut tally.died);
                died.for_each(|last| *last = without_paths(last));
                cells.push(Cell { claim, row, workers, tallies });
            }
        }
    }
    cells
}

/// The last line of a process may name files, which are not published.
fn without_paths(text: &str) -> String {
    let word = |word| if str::contains(word, '/') { "…" } else { word };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The warning above the figures; empty if all rounds were quiet.
#[must_use]
pub fn warning(noise: &[Noise]) -> String {
    let loud: Vec<_> = noise.iter().filter(|it| !it.is_quiet()).collect();
    if loud.is_empty() {
        return String::new();
    }
    let most = |of: fn(&Noise) -> f64| loud.iter().map(|it| of(it)).fold(0.0, f64::max);
    format!(
        "The machine was not quiet: in {} of {} rounds others took part of the cores' time, up to {:.0} % by other processes \
         and {:.1} % by the hypervisor. Medians tell of them, too; ratios with two workers most of all.",
        loud.len(),
        noise.len(),
        most(|it| it.others),
        most(|it| it.steal)
    )
}

/// The page of what is kept.
#[must_use]
pub fn page(kept: &Kept) -> Page {
    let cells = cells(kept);
    let (mut goals, mut verdicts, mut plots) = (String::new(), [0; 3], Vec::new());
    let mut other_way = Vec::new();
    for cell in &cells {
        for goal in &cell.row.all_goals() {
            let (verdict, line) = report::judge(goal, &cell.tallies);
            let told = match verdict {
                Verdict::Pass => "reached",
                Verdict::FallsShort => "**falls short**",
                Verdict::Open => "open",
            };
            verdicts[match verdict {
                Verdict::Pass => 0,
                Verdict::FallsShort => 1,
                Verdict::Open => 2,
            }] += 1;
            let found = report::compare(goal, &cell.tallies);
            if let Some(it) = found
                && verdict != Verdict::Open
                && (it.of_medians <= it.most) != (it.median <= it.most)
            {
                other_way.push(format!(
                    "`{}`: {} ({})",
                    cell.claim.name,
                    cell.title(),
                    report::digits(it.of_medians)
                ));
            }
            let found = found.map_or_else(
                || "-".into(),
                |it| format!("{} ({})", report::digits(it.median), report::digits(it.p10)),
            );
            let why = if found == "-" && verdict != Verdict::Pass {
                line.split_once(": ").map_or("", |it| it.1)
            } else {
                ""
            };
            // A String takes all that is written to it; so below.
            let _ = writeln!(
                goals,
                "| `{}` | {} | {} | {found} | {told} {why} |",
                cell.claim.name,
                cell.title(),
                report::wanted(goal)
            );
        }
    }
    let mut text = "# The claims, as measured\n\n<!-- Made by benches/compare: what is changed here by hand is lost. -->\n\n".to_string();
    text += "What the columns mean and what to know of the rivals stands in [performance.md](../performance.md).\n\n| | |\n|---|---|\n";
    for (name, value) in kept.facts() {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    let warning = warning(kept.noise());
    if !warning.is_empty() {
        let _ = write!(text, "\n> **{warning}**\n");
    }
    if kept.strays() > 0 {
        let _ = write!(
            text,
            "\n> {} kept entries were cut off or name rows that are no more, and are not here.\n",
            kept.strays()
        );
    }
    let mut put = |text: &mut String, name: String, words: &str, drawn: Option<String>| {
        let Some(drawn) = drawn else { return };
        let _ = write!(text, "\n![{words}]({name})\n");
        plots.push((name, drawn));
    };
    let [reached, short, open] = verdicts;
    let _ = write!(text, "\n## Goals: {reached} reached, {short} fall short, {open} open\n");
    put(&mut text, "goals.svg".into(), "Measured as a share of what is allowed", plot::goals(&cells));
    if !other_way.is_empty() {
        let list = other_way.join(", ");
        let _ = write!(text, "\nThe quotient of the medians would say the contrary of {list}.\n");
    }
    if !goals.is_empty() {
        text += "\n| claim | row | goal | median (p10) | |\n|---|---|---|--:|---|\n";
        text += &goals;
    }
    for claim in claims::ALL {
        let of_claim: Vec<&Cell> = cells.iter().filter(|cell| cell.claim.name == claim.name).collect();
        if of_claim.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## {}\n", claim.name);
        put(
            &mut text,
            file(claim, ""),
            "Rivals' times as multiples of forebear's",
            plot::bars(claim, &of_claim),
        );
        put(&mut text, file(claim, "-curves"), "With more and more of it", plot::curves(claim, &of_claim));
        for cell in of_claim {
            let (table, _) = report::table(claim, cell.row, cell.workers, &cell.tallies);
            text.push('\n');
            text += &table;
        }
    }
    Page { text, plots, verdicts }
}

fn file(claim: &Claim, of: &str) -> String {
    format!("{}{of}.svg", claim.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fact\tCPU\tone of them\nnoise\t0\t0.1\t0\t1\nnoise\t1\t0.1\t3\t40\n\
        run\tswitch\tin the loop\t1\tforebear\t0\nop\t3\nover\n\
        run\tswitch\tin the loop\t1\tmay\t0\nop\t30\nover\n\
        run\tdepth\tnested waits\t1\tforebear\t0\nop\t400\nover\n\
        died\tdepth\tnested waits\t1\trayon\t0\tsignal: 6: at /home/somebody/rayon.rs:1 overflowed\n";

    #[test]
    fn a_page_has_what_was_measured_and_names_no_path() {
        let page = page(&Kept::parse(TEXT));
        assert_eq!(page.verdicts, [0, 0, 5], "one round is no verdict");
        let names: Vec<_> = page.plots.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["goals.svg", "switch.svg"]);
        for line in [
            "| CPU | one of them |",
            "| `switch` | in the loop, 1 worker | time <= 0.15 x may | 0.100 (0.100) | open  |",
            "![Rivals' times as multiples of forebear's](switch.svg)",
            "| may | 1 | 30.0 | 30.0 | 30.0 | 0.100 | 0.100 |  |",
        ] {
            assert!(page.text.lines().any(|it| it == line), "{line}\n{}", page.text);
        }
        assert!(page.text.contains("in 1 of 2 rounds") && page.text.contains("up to 40 %"));
        assert!(
            !page.text.contains("somebody")
                && page.text.contains("died in 1 rounds: signal: 6: at … overflowed")
        );
        assert!(!page.text.contains("fib"), "what was not measured is not there");
    }

    #[test]
    fn a_quiet_run_has_no_warning() {
        assert_eq!(warning(&[Noise { round: 0, load: 3.0, steal: 0.0, others: 0.5 }]), "");
    }
}

//! The file that says what to build: lines `target: what it needs`, each followed by indented commands. Empty lines, and those that begin with `#`,
//! are ignored.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What is wrong with a file, or with what was asked for.
#[derive(Debug)]
pub(crate) enum Mistake {
    Read(std::io::Error),
    /// A line that is neither a target nor a command.
    Line(usize),
    /// A target with two rules.
    Twice(String),
    /// No target at all.
    Nothing,
    /// Neither a target nor a file.
    Unknown {
        name: String,
        needed_by: Option<String>,
    },
    /// Each needs the next, and the last the first.
    Cycle(Vec<String>),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mistake::Read(error) => error.fmt(f),
            Mistake::Line(line) => {
                write!(f, "line {line} is neither `target: needs` nor an indented command")
            }
            Mistake::Twice(target) => write!(f, "there are two rules for `{target}`: write one"),
            Mistake::Nothing => f.write_str("the file has no rule"),
            Mistake::Unknown { name, needed_by: None } => write!(f, "there is no rule for `{name}`"),
            Mistake::Unknown { name, needed_by: Some(by) } => {
                write!(f, "`{by}` needs `{name}`, for which there is neither a rule nor a file")
            }
            Mistake::Cycle(names) => write!(f, "cycle: {} needs {}", names.join(" needs "), names[0]),
        }
    }
}

impl std::error::Error for Mistake {}

#[derive(Default)]
struct Rule {
    needs: Vec<String>,
    commands: Vec<String>,
}

pub(crate) struct Buildfile {
    dir: PathBuf,
    first: Option<String>,
    rules: HashMap<String, Rule>,
}

impl Buildfile {
    pub(crate) fn read(path: &Path) -> Result<Buildfile, Mistake> {
        let text = std::fs::read_to_string(path).map_err(Mistake::Read)?;
        Buildfile::parse(&text, path.parent().unwrap_or(Path::new("")))
    }

    pub(crate) fn parse(text: &str, dir: &Path) -> Result<Buildfile, Mistake> {
        let dir = if dir == Path::new("") { Path::new(".") } else { dir };
        let mut file = Buildfile { dir: dir.to_owned(), first: None, rules: HashMap::new() };
        let mut at: Option<String> = None;
        let says_nothing = |line: &str| line.trim().is_empty() || line.starts_with('#');
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !says_nothing(line)) {
            if line.starts_with([' ', '\t']) {
                let rule = at.as_ref().and_then(|target| file.rules.get_mut(target));
                rule.ok_or(Mistake::Line(number + 1))?.commands.push(line.trim().to_owned());
                continue;
            }
            let (target, needs) = line.split_once(':').ok_or(Mistake::Line(number + 1))?;
            let target = target.trim();
            if target.is_empty() || target.contains(char::is_whitespace) {
                return Err(Mistake::Line(number + 1));
            }
            let rule =
                Rule { needs: needs.split_whitespace().map(str::to_owned).collect(), commands: Vec::new() };
            if file.rules.insert(target.to_owned(), rule).is_some() {
                return Err(Mistake::Twice(target.to_owned()));
            }
            file.first.get_or_insert_with(|| target.to_owned());
            at = Some(target.to_owned());
        }
        Ok(file)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn first(&self) -> Option<String> {
        self.first.clone()
    }

    pub(crate) fn needs(&self, target: &str) -> &[String] {
        self.rules.get(target).map_or(&[], |rule| &rule.needs)
    }

    pub(crate) fn commands(&self, target: &str) -> impl Iterator<Item = &str> {
        self.rules.get(target).into_iter().flat_map(|rule| &rule.commands).map(String::as_str)
    }

    fn changed(&self, name: &str) -> Option<SystemTime> {
        std::fs::metadata(self.dir.join(name)).ok()?.modified().ok()
    }

    /// Whether the target is a file that is not older than any that it needs.
    pub(crate) fn is_up_to_date(&self, target: &str) -> bool {
        let Some(built) = self.changed(target) else { return false };
        self.needs(target).iter().all(|name| self.changed(name).is_none_or(|changed| changed <= built))
    }

    /// The targets and all that they need that has a rule, each behind what it needs.
    pub(crate) fn order(&self, targets: &[String]) -> Result<Vec<String>, Mistake> {
        let (mut order, mut seen) = (Vec::new(), HashMap::new());
        for target in targets {
            if !self.rules.contains_key(target) {
                return Err(Mistake::Unknown { name: target.clone(), needed_by: None });
            }
            self.visit(target, &mut seen, &mut order)?;
        }
        Ok(order)
    }

    /// A depth-first walk by a loop: a chain of targets may be long.
    fn visit(
        &self,
        target: &str,
        seen: &mut HashMap<String, bool>,
        order: &mut Vec<String>,
    ) -> Result<(), Mistake> {
        // The targets on the path, each with how many of its needs were visited.
        let mut path: Vec<(String, usize)> = Vec::new();
        let mut next = Some(target.to_owned());
        loop {
            if let Some(name) = next.take() {
                match seen.get(&name) {
                    Some(true) => {}
                    Some(false) => {
                        let begin = path.iter().position(|(on_path, _)| *on_path == name).unwrap_or(0);
                        return Err(Mistake::Cycle(path.drain(begin..).map(|(name, _)| name).collect()));
                    }
                    None => {
                        seen.insert(name.clone(), false);
                        path.push((name, 0));
                    }
                }
            }
            let Some((name, at)) = path.last_mut() else { return Ok(()) };
            let need = self.needs(name).get(*at).cloned();
            *at += 1;
            match need {
                Some(need) if self.rules.contains_key(&need) => next = Some(need),
                Some(need) if self.changed(&need).is_some() => {}
                Some(need) => return Err(Mistake::Unknown { name: need, needed_by: Some(name.clone()) }),
                None => {
                    seen.insert(name.clone(), true);
                    order.extend(path.pop().map(|(name, _)| name));
                }
            }
        }
    }
}

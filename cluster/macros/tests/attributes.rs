//! The attributes in a crate that forbids unsafe code. What they refuse is shown by examples of `forebear_cluster::task` that do not compile.
#![forbid(unsafe_code)]

use std::num::ParseIntError;

use forebear_cluster::{
    ClusterCoordinator, ClusterError, InProcess, PerWorker, TaskCtx, resource, task, tasks,
};

#[task]
fn nothing() -> Result<(), forebear::Error> {
    Ok(())
}

#[task]
fn parse(text: String) -> Result<i32, ParseIntError> {
    text.parse()
}

#[task(name = "a name of its own")]
pub(crate) fn add(_ctx: &TaskCtx, a: u32, b: u32) -> forebear::Result<u32> {
    Ok(a + b)
}

mod inner {
    use std::collections::BTreeMap;

    use super::*;

    /// A type that the module around it does not know.
    pub(crate) type Ages = BTreeMap<String, u32>;

    #[task]
    pub(super) fn oldest(ages: Ages) -> Result<Option<String>, std::convert::Infallible> {
        Ok(ages.into_iter().max_by_key(|(_, age)| *age).map(|(name, _)| name))
    }
}

struct Table(Vec<u64>);

#[resource]
fn table(rows: usize, factor: u64) -> forebear::Result<Table> {
    Ok(Table((0..rows as u64).map(|row| row * factor).collect()))
}

#[task]
fn look_up(ctx: &TaskCtx, table: PerWorker<Table>, row: usize) -> forebear::Result<u64> {
    Ok(ctx.local(&table)?.0[row])
}

fn start() -> ClusterCoordinator {
    let known =
        tasks![nothing::TASK, parse::TASK, add::TASK, inner::oldest::TASK, table::RESOURCE, look_up::TASK];
    ClusterCoordinator::builder(InProcess::new(2)).tasks(known).start().unwrap()
}

#[test]
fn a_task_is_scheduled_by_its_constant_and_the_function_stays_a_function() {
    let cluster = start();
    cluster.schedule(&nothing::TASK, ()).unwrap().fetch().unwrap();
    assert_eq!(cluster.schedule(&parse::TASK, "7".into()).unwrap().fetch().unwrap(), 7);
    assert_eq!(cluster.schedule(&add::TASK, (40, 2)).unwrap().fetch().unwrap(), 42);
    assert_eq!(parse("7".into()), Ok(7));
    let ages = inner::Ages::from([("Ada".into(), 36), ("Alan".into(), 41)]);
    assert_eq!(cluster.schedule(&inner::oldest::TASK, ages).unwrap().fetch().unwrap().unwrap(), "Alan");
    cluster.join().unwrap();
}

#[test]
fn an_error_of_any_type_fails_the_task() {
    let cluster = start();
    cluster.schedule(&parse::TASK, "seven".into()).unwrap();
    let Err(ClusterError::Task(failure)) = cluster.join() else { panic!("it is no number") };
    assert!(failure.kind().to_string().contains("invalid digit"));
}

#[test]
fn a_resource_is_made_on_each_worker() {
    let cluster = start();
    let squares = cluster.per_worker(&table::RESOURCE, (10, 3)).unwrap();
    assert_eq!(cluster.schedule(&look_up::TASK, (squares, 4)).unwrap().fetch().unwrap(), 12);
}

#[test]
fn a_task_is_named_by_its_path_or_as_it_says() {
    assert_eq!(parse::TASK.name(), "attributes::parse");
    assert_eq!(inner::oldest::TASK.name(), "attributes::inner::oldest");
    assert_eq!(add::TASK.name(), "a name of its own");
    assert_eq!(table::RESOURCE.name(), "attributes::table");
}

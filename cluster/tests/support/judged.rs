//! How tasks are judged whose workers die: the same over processes and over NATS. Each test gives a cluster with one worker, `worker-0`.

use std::fs;

use forebear_cluster::{ClusterCoordinator, FailureKind, FetchError, TaskOptions};

use super::{EXIT, GATE, files, pid_in, until};

/// Three tasks beside the one that kills their worker. The worker has four slots, and a task may take two with it.
pub(crate) fn neighbours_are_judged_by_a_death_of_their_own(cluster: &ClusterCoordinator) {
    let dir = tempfile::tempdir().unwrap();
    let (gate, begun) = (dir.path().join("gate"), |n: u32| dir.path().join(format!("begun {n}")));
    let good: Vec<_> = (0..3).map(|n| cluster.schedule(&GATE, (begun(n), gate.clone())).unwrap()).collect();
    (0..3).for_each(|n| _ = pid_in(&begun(n)));
    let bad = cluster.schedule_with(&TaskOptions::new().raise(false), &EXIT, 3).unwrap();
    until(|| cluster.metrics().returned >= 8 || cluster.metrics().failed > 0);
    fs::write(&gate, "").unwrap();
    let Err(FetchError::Task(failure)) = bad.fetch() else { panic!("it has ended its process") };
    assert_eq!(*failure.kind(), FailureKind::Poisoned { attempts: 3 });
    for value in good {
        assert_eq!(value.fetch().unwrap().1, 3);
    }
    cluster.join().unwrap();
}

/// A task ends its process by each status, and by an abort. It may take two workers with it. After that the worker `works`.
pub(crate) fn a_task_that_ends_its_process_fails(cluster: &ClusterCoordinator, works: impl Fn()) {
    for status in [0, 3, -1] {
        let value = cluster.schedule_with(&TaskOptions::new().raise(false), &EXIT, status).unwrap();
        let Err(FetchError::Task(failure)) = value.fetch() else { panic!("it has ended its process") };
        assert_eq!(*failure.kind(), FailureKind::Poisoned { attempts: 2 });
        works();
    }
}

/// The program kills the worker and brings another one, three times. A task may take no worker with it.
pub(crate) fn what_the_program_kills_is_no_death(cluster: &ClusterCoordinator, renew: impl Fn()) {
    let (_dir, begun, gate) = files();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    for _ in 0..3 {
        until(|| begun.exists() || cluster.metrics().failed > 0);
        assert_eq!(cluster.metrics().failed, 0, "it was judged for a kill");
        fs::remove_file(&begun).unwrap();
        renew();
    }
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap().1, 4);
    // A death by itself counts.
    let value = cluster.schedule_with(&TaskOptions::new().raise(false), &EXIT, 3).unwrap();
    let Err(FetchError::Task(failure)) = value.fetch() else { panic!("it has ended its process") };
    assert_eq!(*failure.kind(), FailureKind::Poisoned { attempts: 1 });
}

//! More workers than a group has: who looks for the best looks at one word per group of eight.

use forebear_loom_tests::roam;
use forebear_runtime::spawn;

use crate::support::{Count, finish, runtime, steps, thread};

/// Ten workers, roots from three threads, children that can be stolen: everything is found, nobody sleeps while there is work
/// that nobody would wake for, and all end.
#[test]
fn ten_workers_in_two_groups_find_everything() {
    roam(20, &["all"], |answers| {
        let (runtime, ran) = (runtime(10), Count::default());
        let submitters = [0, 1, 2].map(|_| {
            let (runtime, ran) = (runtime.clone(), ran.clone());
            thread(move || {
                let roots = [0, 1, 2].map(|_| {
                    let ran = ran.clone();
                    runtime.spawn(move || {
                        let children = [0, 1].map(|_| {
                            let ran = ran.clone();
                            spawn(move || {
                                steps(2);
                                ran.up();
                            })
                        });
                        children.into_iter().for_each(|child| child.take().unwrap());
                    })
                });
                for root in roots {
                    root.watch().unwrap();
                }
            })
        });
        submitters.into_iter().for_each(|one| one.join().unwrap());
        assert_eq!(ran.get(), 18);
        answers.note("all");
        finish(&runtime);
    });
}

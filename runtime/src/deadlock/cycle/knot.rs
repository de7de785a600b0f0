//! Knots: who can never go on where some wait for any one of several, as plain numbers.
//!
//! A *place* is a waiter, or one of several targets of a waiter. Most places need *all* places ahead of them: a target
//! ends only after everything that blocks it, so one place ahead that can never continue blocks them. A place that
//! waits *for any* continues with the first that is over, so it is blocked only if all places ahead of it are.
//!
//! *Stuck* is the largest set of places each of which is blocked by places of the set. A *knot* is a part of it whose places lead to each other and
//! nowhere else in the set: those that are stuck by themselves, and not because others are.

use std::collections::{HashMap, VecDeque};

/// A place.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Which places are ahead.
    pub(super) ahead: Vec<usize>,
    /// Whether it waits for any of them. Such a place has one ahead at least.
    pub(super) for_any: bool,
}

/// For each place, whether it is stuck. In time linear in the number of places and ways.
fn stuck(places: &[Place]) -> Vec<bool> {
    let mut behind = vec![Vec::new(); places.len()];
    for (place, of) in places.iter().enumerate() {
        of.ahead.iter().for_each(|&ahead| behind[ahead].push(place));
    }
    let mut left: Vec<usize> = places.iter().map(|of| of.ahead.len()).collect();
    let mut is_stuck = vec![true; places.len()];
    let mut free: Vec<usize> = (0..places.len()).filter(|&place| left[place] == 0).collect();
    free.iter().for_each(|&place| is_stuck[place] = false);
    while let Some(place) = free.pop() {
        for &waiter in &behind[place] {
            left[waiter] -= 1;
            if is_stuck[waiter] && (left[waiter] == 0 || places[waiter].for_any) {
                is_stuck[waiter] = false;
                free.push(waiter);
            }
        }
    }
    is_stuck
}

/// The knots in which some place waits for any. By a loop (Tarjan's algorithm).
pub(super) fn knots(places: &[Place]) -> Vec<Vec<usize>> {
    const NONE: usize = usize::MAX;
    let is_stuck = stuck(places);
    let mut number = vec![NONE; places.len()];
    let mut lowest = vec![NONE; places.len()];
    // Which part of the set a place belongs to, once that is known.
    let mut part = vec![NONE; places.len()];
    let (mut numbers, mut parts, mut found) = (0, 0, Vec::new());
    let (mut open, mut path) = (Vec::new(), Vec::new());
    for start in (0..places.len()).filter(|&place| is_stuck[place]) {
        if number[start] == NONE {
            path.push((start, 0));
        }
        while let Some((place, way)) = path.last_mut() {
            let place = *place;
            if *way == 0 {
                (number[place], lowest[place]) = (numbers, numbers);
                numbers += 1;
                open.push(place);
            }
            let ahead = places[place].ahead.get(*way).copied();
            *way += 1;
            match ahead {
                Some(ahead) if !is_stuck[ahead] || part[ahead] != NONE => {}
                Some(ahead) if number[ahead] == NONE => path.push((ahead, 0)),
                Some(ahead) => lowest[place] = lowest[place].min(number[ahead]),
                None => {
                    path.pop();
                    if let Some(&(before, _)) = path.last() {
                        lowest[before] = lowest[before].min(lowest[place]);
                    }
                    if lowest[place] == number[place] {
                        let mut members = Vec::new();
                        while let Some(member) = open.pop() {
                            part[member] = parts;
                            members.push(member);
                            if member == place {
                                break;
                            }
                        }
                        let leaves = |member: &usize| {
                            places[*member].ahead.iter().any(|&ahead| is_stuck[ahead] && part[ahead] != parts)
                        };
                        if members.iter().any(|&member| places[member].for_any) && !members.iter().any(leaves)
                        {
                            found.push(members);
                        }
                        parts += 1;
                    }
                }
            }
        }
    }
    found
}

/// The shortest way from a place of a knot back to it, beginning there.
pub(super) fn round(places: &[Place], knot: &[usize], start: usize) -> Vec<usize> {
    const UNSEEN: usize = usize::MAX;
    // By which place each was come to.
    let mut from: HashMap<usize, usize> = knot.iter().map(|&at| (at, UNSEEN)).collect();
    let mut queue = VecDeque::from([start]);
    while let Some(place) = queue.pop_front() {
        for &ahead in &places[place].ahead {
            if ahead == start {
                let mut way = vec![place];
                while let Some(&at) = way.last()
                    && at != start
                    && let Some(before) = from.get(&at).filter(|before| **before != UNSEEN)
                {
                    way.push(*before);
                }
                way.reverse();
                return way;
            }
            if let Some(unseen @ &mut UNSEEN) = from.get_mut(&ahead) {
                *unseen = place;
                queue.push_back(ahead);
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(of: &[(&[usize], bool)]) -> Vec<Place> {
        of.iter().map(|&(ahead, for_any)| Place { ahead: ahead.to_vec(), for_any }).collect()
    }

    fn sorted(places: &[Place]) -> Vec<Vec<usize>> {
        let mut found = knots(places);
        found.iter_mut().for_each(|knot| knot.sort_unstable());
        found.sort_unstable();
        found
    }

    #[test]
    fn a_wait_for_any_is_stuck_only_if_each_way_comes_back() {
        // 0 waits for any of 1 and 2, which wait for 0.
        assert_eq!(sorted(&places(&[(&[1, 2], true), (&[0], false), (&[0], false)])), [[0, 1, 2]]);
        // The same, but 2 can continue.
        assert!(knots(&places(&[(&[1, 2], true), (&[0], false), (&[], false)])).is_empty());
        // 2 waits for 3, which can continue.
        assert!(knots(&places(&[(&[1, 2], true), (&[0], false), (&[3], false), (&[], false)])).is_empty());
    }

    #[test]
    fn who_is_stuck_because_of_others_is_in_no_knot() {
        // 0 waits for any of 1 and 2; 1 waits for 0; 2 for 3, which is in a knot with 4.
        let all = [(&[1, 2][..], true), (&[0][..], false), (&[3], false), (&[4], true), (&[3], false)];
        assert_eq!(sorted(&places(&all)), [[3, 4]]);
        // A cycle without a wait for any is not what is searched for here.
        assert!(knots(&places(&[(&[1], false), (&[0], false)])).is_empty());
    }

    #[test]
    fn a_way_round_is_the_shortest() {
        let all = places(&[(&[1, 3], true), (&[2], false), (&[0], false), (&[0], false)]);
        assert_eq!(round(&all, &[0, 1, 2, 3], 0), [0, 3]);
        let turned = places(&[(&[3, 1], true), (&[2], false), (&[0], false), (&[0], false)]);
        assert_eq!(round(&turned, &[0, 1, 2, 3], 0), [0, 3]);
        assert_eq!(round(&all, &[0, 1, 2, 3], 2), [2, 0, 1]);
        assert_eq!(round(&places(&[(&[0], true)]), &[0], 0), [0]);
    }

    /// The reference: a node goes on if it has no stuck one ahead, or waits for any and has one that is not stuck. Repeated until nothing changes.
    #[test]
    fn the_stuck_are_those_that_trying_leaves() {
        let mut seed = 1_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..2_000 {
            let n = 1 + draw(8) as usize;
            let all: Vec<Place> = (0..n)
                .map(|_| {
                    let ahead: Vec<_> = (0..draw(4)).map(|_| draw(n as u64) as usize).collect();
                    Place { for_any: !ahead.is_empty() && draw(2) == 0, ahead }
                })
                .collect();
            let mut tried = vec![true; n];
            for _ in 0..n {
                for place in 0..n {
                    let mut ahead = all[place].ahead.iter().map(|&ahead| tried[ahead]);
                    tried[place] &= if all[place].for_any { ahead.all(|it| it) } else { ahead.any(|it| it) };
                }
            }
            assert_eq!(stuck(&all), tried, "{all:?}");
            for knot in knots(&all) {
                for &place in &knot {
                    let way = round(&all, &knot, place);
                    assert!(!way.is_empty() && way.iter().all(|at| knot.contains(at)), "{all:?}");
                    let next = way.iter().cycle().skip(1);
                    assert!(
                        way.iter().zip(next).all(|(&one, next)| all[one].ahead.contains(next)),
                        "{all:?}"
                    );
                }
                let is_in = |ahead: &usize| !tried[*ahead] || knot.contains(ahead);
                assert!(knot.iter().all(|&place| all[place].ahead.iter().all(is_in)), "{all:?}");
            }
        }
    }
}

//! [`Roll`]: the members of a group, and [`Watch`]: what one member knows of the others. Nothing here uses the network.
//!
//! The roll is one entry of a bucket. Each member reads it, takes its [turn](Watch::turn), and writes it if no other member has written meanwhile. So
//! turns never overlap, and any member may form a round: a group has no leader whose death could stop it.
//!
//! * A member increments its *beat* in each turn. Another member counts it as *lost* when it has read the roll for a whole lease, by its own clock, and
//!   the beat has not changed.
//! * A member forms a *round* of all members that are not lost. It does so at once if the group is full, else when
//!   there have been enough members for the gathering time. A round that loses a member is over; the next turn forms
//!   another one of the rest. A newcomer ends a round, too, if the group has room.
//! * A member that is *done* stays in its round. From the first such member on, no turn forms a round: newcomers wait, and `finish` names the
//!   members that were lost.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// No group comes to a round of a higher number.
const LAST: u64 = u64::MAX / 2;

/// What the bucket holds of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roll {
    /// The number of the newest round.
    pub(crate) round: u64,
    /// In the order in which they have come.
    pub(crate) members: Vec<RollEntry>,
    /// The members of the newest round, as they were when it was formed.
    pub(crate) formed: Vec<RollEntry>,
    /// The members of this round that are done.
    pub(crate) done: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RollEntry {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) beat: u64,
    /// It is in the newest round, and that is not over.
    pub(crate) taken: bool,
}

/// The settings of a group, the same for all members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) least: usize,
    pub(crate) most: usize,
    pub(crate) lease: Duration,
    pub(crate) gather: Duration,
}

/// What a member wants, beside being there. Each holds for the round of that number alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wants {
    pub(crate) done: Option<u64>,
    pub(crate) anew: Option<u64>,
    pub(crate) leave: bool,
}

/// What a member has seen.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) id: u64,
    name: String,
    size: u64,
    rules: Rules,
    /// The beat of each other member, and since when it is that.
    seen: HashMap<u64, (u64, Instant)>,
    looked: Option<Instant>,
    /// What it knows of the entry that the server has.
    known: Known,
    /// The same, if the server has what the last turn made.
    next: Known,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The newest round.
    newest: u64,
    /// Since when there have been enough.
    enough: Option<Instant>,
}

impl Roll {
    /// Whether this member is in the round of that number, and that is the newest one.
    pub(crate) fn is_in(&self, id: u64, round: u64) -> bool {
        self.round == round && self.members.iter().any(|member| member.id == id && member.taken)
    }

    /// So many members are in the newest round, if that is not over.
    pub(crate) fn taken(&self) -> usize {
        self.members.iter().filter(|member| member.taken).count()
    }
}

impl Watch {
    pub(crate) fn new(id: u64, name: String, size: u64, rules: Rules) -> Watch {
        Watch {
            id,
            name,
            size,
            rules,
            seen: HashMap::new(),
            looked: None,
            known: Known::default(),
            next: Known::default(),
        }
    }

    /// What is to be written in place of `roll`, which was read just now. Once the server has it, [`written`](Self::written) says so.
    pub(crate) fn turn(&mut self, mut roll: Roll, wants: Wants, now: Instant) -> Roll {
        if roll.round < self.known.newest || roll.round > LAST {
            // The server has lost its store, or a stranger has written this. No number is given twice.
            roll = Roll { round: self.known.newest, ..Roll::default() };
        }
        let gone = self.lost(&roll, now);
        let is_gone = |id: u64| gone.contains(&id) || wants.leave && id == self.id;
        let is_done = |roll: &Roll, id: u64| roll.done.contains(&id);
        if wants.done == Some(roll.round) && roll.is_in(self.id, roll.round) && !is_done(&roll, self.id) {
            roll.done.push(self.id);
        }
        // Nobody is done: the round can be formed anew.
        let open = roll.done.is_empty();
        let breaks = |member: &RollEntry| member.taken && is_gone(member.id) && open;
        let broken = roll.members.iter().any(breaks) || wants.anew == Some(roll.round);
        roll.members.retain(|member| !is_gone(member.id));
        match roll.members.iter_mut().find(|member| member.id == self.id) {
            Some(own) => own.beat = own.beat.wrapping_add(1),
            None if wants.leave => {}
            None => roll.members.push(RollEntry {
                id: self.id,
                name: self.name.clone(),
                size: self.size,
                beat: 1,
                taken: false,
            }),
        }
        let formed = roll.taken();
        let free: Vec<usize> = (0..roll.members.len())
            .filter(|at| !is_done(&roll, roll.members[*at].id))
            .take(self.rules.most)
            .collect();
        let comes = free.iter().any(|at| !roll.members[*at].taken);
        let anew = broken || formed == 0 || open && comes && formed < self.rules.most;
        self.next = Known { newest: roll.round, enough: None };
        if !anew || !is_enough(free.len(), self.rules) {
            if anew {
                roll.members.iter_mut().for_each(|member| member.taken = false);
            }
            return roll;
        }
        let since = self.known.enough.unwrap_or(now);
        let full = free.len() == self.rules.most;
        if formed > 0 || full || now.saturating_duration_since(since) >= self.rules.gather {
            roll.round += 1;
            self.next.newest = roll.round;
            roll.done.clear();
            for (at, member) in roll.members.iter_mut().enumerate() {
                member.taken = free.contains(&at);
            }
            roll.formed = roll.members.iter().filter(|member| member.taken).cloned().collect();
        } else {
            self.next.enough = Some(since);
        }
        roll
    }

    /// The server has what the last turn made.
    pub(crate) fn written(&mut self) {
        self.known = self.next;
    }

    /// The others that have said nothing for a lease.
    fn lost(&mut self, roll: &Roll, now: Instant) -> Vec<u64> {
        let last = self.looked.replace(now);
        // Who stood still himself has heard nobody.
        let late = last.is_none_or(|last| now.saturating_duration_since(last) > self.rules.lease / 3);
        let others = roll.members.iter().filter(|member| member.id != self.id);
        let mut lost = Vec::new();
        self.seen.retain(|id, _| roll.members.iter().any(|member| member.id == *id));
        for member in others {
            let (beat, since) = self.seen.entry(member.id).or_insert((member.beat, now));
            if *beat != member.beat || late {
                (*beat, *since) = (member.beat, now);
            }
            if now.saturating_duration_since(*since) > self.rules.lease {
                lost.push(member.id);
            }
        }
        lost
    }
}

fn is_enough(members: usize, rules: Rules) -> bool {
    members >= rules.least.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fuzz::{decoder, fuzz};
    use crate::wire::{decode, encode};

    const LEASE: Duration = Duration::from_secs(6);

    /// Members that take their turns once a second, and whose turns can be left out.
    struct Field {
        roll: Roll,
        now: Instant,
        watches: Vec<(Watch, Wants, bool)>,
    }

    impl Field {
        fn new(members: u64, least: usize, most: usize) -> Field {
            let mut field = Field { roll: Roll::default(), now: Instant::now(), watches: Vec::new() };
            (0..members).for_each(|id| field.come(id, least, most));
            field
        }

        fn come(&mut self, id: u64, least: usize, most: usize) {
            let rules = Rules { least, most, lease: LEASE, gather: Duration::from_secs(3) };
            let watch = Watch::new(id, format!("member {id}"), 1, rules);
            self.watches.push((watch, Wants::default(), true));
        }

        fn pass(&mut self, seconds: u32) {
            for _ in 0..seconds {
                self.now += Duration::from_secs(1);
                for (watch, wants, alive) in &mut self.watches {
                    if *alive {
                        self.roll = watch.turn(self.roll.clone(), *wants, self.now);
                        watch.written();
                    }
                }
            }
        }

        /// The round, and its members.
        fn round(&self) -> (u64, Vec<u64>) {
            let taken = self.roll.members.iter().filter(|member| member.taken);
            (self.roll.round, taken.map(|member| member.id).collect())
        }
    }

    #[test]
    fn a_round_is_formed_when_all_are_there_or_when_enough_have_waited() {
        let mut field = Field::new(3, 2, 3);
        field.pass(1);
        assert_eq!(field.round(), (1, vec![0, 1, 2]));
        let mut field = Field::new(2, 2, 3);
        field.pass(3);
        assert_eq!(field.round(), (0, vec![]), "the third one may still come");
        field.pass(2);
        assert_eq!(field.round(), (1, vec![0, 1]));
        field.come(2, 2, 3);
        field.pass(1);
        assert_eq!(field.round(), (2, vec![0, 1, 2]), "there is room");
        field.come(3, 2, 3);
        field.pass(9);
        assert_eq!(field.round(), (2, vec![0, 1, 2]), "there is none");
        let mut field = Field::new(1, 2, 3);
        field.pass(9);
        assert_eq!(field.round(), (0, vec![]), "one is not enough");
    }

    #[test]
    fn a_round_that_loses_a_member_is_formed_anew_of_those_that_are_there() {
        let mut field = Field::new(3, 2, 3);
        field.pass(5);
        field.watches[1].2 = false;
        field.pass(6);
        assert_eq!(field.round(), (1, vec![0, 1, 2]), "it has said something within the lease");
        field.pass(2);
        assert_eq!(field.round(), (2, vec![0, 2]));
        // Another one of its name comes.
        field.come(9, 2, 3);
        field.pass(1);
        assert_eq!(field.round(), (3, vec![0, 2, 9]));
        // Too few are left: they wait.
        field.watches[0].2 = false;
        field.watches[2].2 = false;
        field.pass(9);
        assert_eq!(field.round(), (3, vec![]));
        field.come(10, 2, 3);
        field.pass(6);
        assert_eq!(field.round(), (4, vec![9, 10]));
        // One leaves, and one asks for it.
        field.come(11, 2, 3);
        field.pass(1);
        field.watches[3].1.leave = true;
        field.pass(1);
        field.watches.remove(3);
        assert_eq!(field.round(), (6, vec![10, 11]));
        field.watches[4].1.anew = Some(6);
        field.pass(3);
        assert_eq!(field.round(), (7, vec![10, 11]));
    }

    #[test]
    fn a_roll_that_is_lost_begins_anew_with_the_next_number() {
        let mut field = Field::new(2, 2, 2);
        field.pass(3);
        field.roll = Roll::default();
        field.pass(3);
        assert_eq!(field.round(), (2, vec![0, 1]));
    }

    /// Another member has written meanwhile. What it has written is no lost roll.
    #[test]
    fn a_round_that_could_not_be_written_was_not_formed() {
        let mut field = Field::new(1, 2, 2);
        field.pass(1);
        let rules = field.watches[0].0.rules;
        let mut late = Watch::new(1, "late".into(), 1, rules);
        let unwritten = late.turn(field.roll.clone(), Wants::default(), field.now);
        assert_eq!(unwritten.round, 1);
        field.pass(1);
        let roll = late.turn(field.roll.clone(), Wants::default(), field.now);
        late.written();
        assert_eq!(roll.round, 1, "no number is left out");
        assert!(roll.is_in(0, 1) && roll.is_in(1, 1), "{roll:?}");
    }

    #[test]
    fn who_stood_still_takes_nobody_for_lost() {
        let mut field = Field::new(2, 1, 2);
        field.pass(3);
        // Both stood still.
        field.now += LEASE * 9;
        field.pass(1);
        assert_eq!(field.round(), (1, vec![0, 1]));
        // The other one goes on later.
        field.watches[1].2 = false;
        field.now += LEASE * 9;
        field.pass(3);
        field.watches[1].2 = true;
        field.pass(9);
        assert_eq!(field.round(), (1, vec![0, 1]));
    }

    #[test]
    fn a_round_in_which_somebody_is_done_is_not_formed_anew_for_a_member_that_is_lost_or_comes() {
        let mut field = Field::new(3, 1, 4);
        field.pass(9);
        assert_eq!(field.round(), (1, vec![0, 1, 2]));
        field.watches[0].1.done = Some(1);
        field.pass(1);
        assert_eq!(field.roll.done, [0]);
        field.come(7, 1, 4);
        field.watches[1].2 = false;
        field.pass(9);
        assert_eq!(field.round(), (1, vec![0, 2]));
        // It has left: that is no loss.
        field.watches[0].1.leave = true;
        field.pass(1);
        field.watches.remove(0);
        assert_eq!((field.round(), &*field.roll.done), ((1, vec![2]), &[0][..]));
        field.watches[1].1 = Wants { done: Some(1), ..Wants::default() };
        field.pass(1);
        field.watches[1].1.leave = true;
        field.pass(5);
        assert_eq!(field.round(), (2, vec![7]), "the next ones form a round of their own");
        assert!(field.roll.done.is_empty());
    }

    /// Whoever has the credentials may have written the entry. A turn takes whatever can be read, and gives no number twice.
    #[test]
    fn a_turn_takes_whatever_the_entry_says() {
        let turn = |bytes: &[u8]| {
            let read = decode::<Roll>(bytes).ok()?;
            let rules = Rules { least: 1, most: 2, lease: LEASE, gather: Duration::ZERO };
            let (now, before) = (Instant::now(), read.clone());
            for wants in [
                Wants::default(),
                Wants { anew: Some(read.round), ..Wants::default() },
                Wants { done: Some(read.round), ..Wants::default() },
                Wants { leave: true, ..Wants::default() },
            ] {
                let mut watch = Watch::new(1, "own".into(), 1, rules);
                let once = watch.turn(read.clone(), wants, now);
                watch.written();
                let twice = watch.turn(once.clone(), Wants::default(), now + LEASE / 4);
                let first = if before.round > LAST { 0 } else { before.round };
                assert!(first <= once.round && once.round <= twice.round, "{before:?}: {once:?}");
                assert!(!wants.leave || !once.members.iter().any(|member| member.id == 1), "{once:?}");
            }
            Some(read)
        };
        let entry =
            |id, beat| RollEntry { id, name: format!("member {id}"), size: 8, beat, taken: id % 2 == 1 };
        let rolls = [
            Roll::default(),
            Roll {
                round: 3,
                members: vec![entry(1, 5), entry(2, 1 << 40)],
                formed: vec![entry(1, 4)],
                done: vec![],
            },
            Roll {
                round: u64::MAX,
                members: vec![entry(1, u64::MAX), entry(3, 0)],
                formed: vec![],
                done: vec![3],
            },
        ];
        let samples = rolls.map(|roll| encode(&roll).unwrap());
        fuzz(&[("Roll", decoder::<Roll>(|roll| encode(roll).unwrap(), turn))], &samples);
    }
}

//! Gives threads that compute processors of their own, so that they do not wait for one another
//! while others run only what is to stand aside for them (docs/adr/0021).
//!
//! The kernel does not: when all processors are busy it looks for no other one for a thread that
//! wakes than the one where it ran last, although what runs on the others is idle to it. Two
//! threads that ran on the same one last then share it, for as long as each sleeps before the
//! kernel's ticks balance them.
//!
//! A pure state machine: `step` is told what happened between two looks, and says who is to go
//! where.

use std::collections::{BTreeMap, BTreeSet};

/// What one processor does in the time between two looks. What threads use is counted in these.
const WHOLE: u64 = 1 << 20;
/// A look counts as this part of what a thread is taken to use.
const NEW_PART: u64 = 16;
/// Who uses less than this part of a processor needs none of its own.
const SOME_PART: u64 = 256;
/// Homes are given while the threads use less than so many eighths of all processors, and taken
/// from them above the second: then they leave little to others, and whom one processor is too
/// small for, must be free to take two.
const GIVE_BELOW: u64 = 5;
const TAKE_ABOVE: u64 = 6;
/// After this time in which nobody is beside them, threads are free again.
const ALONE_TIME: u64 = 100_000_000;

/// What happened between two looks, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Between {
    pub over: u64,
    /// Threads have waited for a processor.
    pub waited: bool,
    /// There was work beside them that is to stand aside.
    pub beside: bool,
}

/// Where a thread is to go: one processor, by its place among all, or anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub tid: i32,
    pub to: Option<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    used: u64,
    home: Option<usize>,
    /// It could not be placed, and is not tried again.
    stays: bool,
}

/// Which thread has which home.
#[derive(Debug, Default)]
pub struct Homes {
    processors: usize,
    threads: BTreeMap<i32, Thread>,
    given: bool,
    /// Threads that come may have inherited a home from who has, or had, one.
    inherited: bool,
    alone: u64,
}

impl Homes {
    pub fn new(processors: usize) -> Homes {
        Homes { processors, ..Homes::default() }
    }

    /// Threads may have homes that an earlier placer gave them.
    pub fn take_over(&mut self) {
        self.inherited = true;
    }

    /// Whether looks must go on although nobody is beside the threads: some have a home, or may
    /// have inherited one.
    pub fn held(&self) -> bool {
        self.inherited
    }

    /// `ran` is the processor time of each thread that there is, listed anew if `listed`.
    pub fn step(&mut self, between: &Between, listed: bool, ran: &[(i32, u64)]) -> Vec<Move> {
        let mut moves = self.count(between, ran);
        self.alone = if between.beside { 0 } else { self.alone + between.over };
        let all: u64 = self.threads.values().map(|thread| thread.used).sum();
        let most = self.processors as u64 * WHOLE / 8;
        if self.given && (self.alone >= ALONE_TIME || all > most * TAKE_ABOVE) {
            self.given = false;
            self.free_all(&mut moves);
        } else if self.given {
            self.give(&mut moves);
            moves.extend(self.even_out());
        } else if self.processors > 1 && between.waited && between.beside && all < most * GIVE_BELOW {
            self.given = true;
            self.inherited = true;
            self.give(&mut moves);
        } else if listed {
            // Whoever was made by a thread with a home before that was freed is freed with this
            // look.
            self.inherited = false;
        }
        moves
    }

    /// There are too many threads to follow: nobody has a home any more. To be called with each
    /// list of them, as long as homes are held, and all who are listed are then to be freed.
    pub fn scatter(&mut self) {
        self.threads.clear();
        // Those listed next are freed once more: they may have been made before their makers were
        // free.
        self.inherited = self.given;
        self.given = false;
    }

    /// A thread could not be placed. Others still can be.
    pub fn refuse(&mut self, tid: i32) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            (thread.home, thread.stays) = (None, true);
        }
    }

    /// Adds up what each has used. Who is new is free, whatever it has inherited.
    fn count(&mut self, between: &Between, ran: &[(i32, u64)]) -> Vec<Move> {
        let there: BTreeSet<i32> = ran.iter().map(|(tid, _)| *tid).collect();
        self.threads.retain(|tid, _| there.contains(tid));
        let mut moves = Vec::new();
        for (tid, ns) in ran {
            let used = (*ns).min(between.over) * WHOLE / between.over.max(1);
            let thread = self.threads.entry(*tid).or_insert_with(|| {
                moves.extend(self.inherited.then_some(Move { tid: *tid, to: None }));
                Thread::default()
            });
            thread.used = thread.used - thread.used / NEW_PART + used / NEW_PART;
        }
        moves
    }

    fn free_all(&mut self, moves: &mut Vec<Move>) {
        for (tid, thread) in &mut self.threads {
            moves.extend(thread.home.take().map(|_| Move { tid: *tid, to: None }));
        }
    }

    /// What threads use of each processor, and how many have it as home.
    fn loads(&self) -> Vec<(u64, usize)> {
        let mut loads = vec![(0, 0); self.processors];
        for thread in self.threads.values() {
            if let Some(home) = thread.home {
                loads[home] = (loads[home].0 + thread.used, loads[home].1 + 1);
            }
        }
        loads
    }

    /// Whoever computes and has no home gets that which is least used, those who compute most
    /// first.
    fn give(&mut self, moves: &mut Vec<Move>) {
        let mut loads = self.loads();
        let homeless = |thread: &Thread| thread.home.is_none() && !thread.stays && thread.used >= WHOLE / SOME_PART;
        let mut waiting: Vec<i32> = self.threads.iter().filter(|(_, t)| homeless(t)).map(|(tid, _)| *tid).collect();
        waiting.sort_by_key(|tid| std::cmp::Reverse(self.threads[tid].used));
        for tid in waiting {
            let Some((home, load)) = loads.iter_mut().enumerate().min_by_key(|(_, load)| **load) else { return };
            let thread = self.threads.entry(tid).or_default();
            thread.home = Some(home);
            *load = (load.0 + thread.used, load.1 + 1);
            moves.push(Move { tid, to: Some(home) });
        }
    }

    /// One thread goes from the most used processor to the least, if that makes them more even by a
    /// quarter.
    fn even_out(&mut self) -> Option<Move> {
        let loads = self.loads();
        let order = |home: &usize| loads[*home].0;
        let (most, least) = ((0..loads.len()).max_by_key(order)?, (0..loads.len()).min_by_key(order)?);
        let apart = loads[most].0 - loads[least].0;
        if apart <= WHOLE / NEW_PART {
            return None;
        }
        let after = |thread: &Thread| apart.abs_diff(2 * thread.used);
        let there = self.threads.iter_mut().filter(|(_, thread)| thread.home == Some(most));
        let (tid, thread) = there.min_by_key(|(_, thread)| after(thread))?;
        if after(thread) > apart / 4 * 3 {
            return None;
        }
        thread.home = Some(least);
        Some(Move { tid: *tid, to: Some(least) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BUSY: Between = Between { over: 4 * MS, waited: true, beside: true };
    const CALM: Between = Between { over: 4 * MS, waited: false, beside: true };
    const ALONE: Between = Between { over: 4 * MS, waited: false, beside: false };

    fn each(ran: u64, tids: &[i32]) -> Vec<(i32, u64)> {
        tids.iter().map(|tid| (*tid, ran)).collect()
    }

    fn go(tid: i32, to: usize) -> Move {
        Move { tid, to: Some(to) }
    }

    fn free(tid: i32) -> Move {
        Move { tid, to: None }
    }

    #[test]
    fn who_waits_beside_others_gets_a_processor() {
        let mut homes = Homes::new(2);
        let ran = [(1, MS), (2, MS / 2), (3, MS / 2), (4, 0)];
        assert_eq!(homes.step(&CALM, true, &ran), [], "nobody waits");
        assert_eq!(homes.step(&Between { beside: false, ..BUSY }, true, &ran), [], "nobody is beside them");
        assert_eq!(homes.step(&BUSY, true, &ran), [go(1, 0), go(2, 1), go(3, 1)], "who does not compute stays");
        assert!(homes.held());
        assert_eq!(homes.step(&BUSY, true, &ran), [], "they are even");
    }

    #[test]
    fn one_who_leaves_makes_another_move() {
        let mut homes = Homes::new(2);
        homes.step(&BUSY, true, &each(MS, &[1, 2, 3, 4]));
        let mut moved = Vec::new();
        for _ in 0..100 {
            moved.extend(homes.step(&CALM, true, &each(MS, &[1, 3])));
        }
        assert_eq!(moved.len(), 1, "both had one processor: {moved:?}");
        for _ in 0..100 {
            assert_eq!(homes.step(&CALM, true, &each(MS, &[1, 3])), []);
        }
    }

    #[test]
    fn all_are_free_when_nobody_is_beside_them_and_heirs_too() {
        let mut homes = Homes::new(2);
        homes.step(&BUSY, true, &each(MS, &[1, 2]));
        let mut moved = Vec::new();
        for _ in 0..25 {
            moved.extend(homes.step(&ALONE, false, &each(MS, &[1, 2])));
        }
        assert_eq!(moved, [free(1), free(2)]);
        assert!(homes.held(), "one of them may have made another");
        assert_eq!(homes.step(&ALONE, true, &each(MS, &[1, 2, 3])), [free(3)]);
        assert!(!homes.held());
        assert_eq!(homes.step(&ALONE, true, &each(MS, &[1, 2, 3, 4])), [], "there is nothing to inherit");
    }

    #[test]
    fn who_is_new_does_not_keep_what_it_inherited() {
        let mut homes = Homes::new(2);
        homes.step(&BUSY, true, &each(MS, &[1, 2]));
        assert_eq!(homes.step(&CALM, true, &[(1, MS), (2, MS), (3, 0)]), [free(3)]);
        let mut moved = Vec::new();
        for _ in 0..10 {
            moved.extend(homes.step(&CALM, true, &each(MS / 2, &[1, 2, 3])));
        }
        assert_eq!(moved.len(), 1, "it computes now: {moved:?}");
    }

    #[test]
    fn who_needs_all_processors_has_no_homes() {
        let mut homes = Homes::new(2);
        homes.step(&BUSY, true, &each(MS, &[1, 2, 3]));
        let mut moved = Vec::new();
        for _ in 0..100 {
            moved.extend(homes.step(&BUSY, true, &each(4 * MS, &[1, 2, 3])));
        }
        assert_eq!(&moved[moved.len() - 3..], [free(1), free(2), free(3)]);
        assert_eq!(homes.step(&BUSY, true, &each(4 * MS, &[1, 2, 3])), []);
    }

    #[test]
    fn a_crowd_has_no_homes_and_its_heirs_none() {
        let mut homes = Homes::new(2);
        homes.step(&BUSY, true, &each(MS, &[1, 2]));
        homes.scatter();
        assert!(homes.held(), "one of them may have made another");
        homes.scatter();
        assert!(!homes.held());
        homes.step(&BUSY, true, &each(MS, &[1, 2]));
        homes.scatter();
        assert_eq!(homes.step(&CALM, true, &each(MS, &[1, 2])), [free(1), free(2)], "few again, maybe heirs");
        assert!(!homes.held());
    }

    #[test]
    fn who_cannot_be_placed_stays_and_others_go() {
        let mut homes = Homes::new(2);
        assert_eq!(homes.step(&BUSY, true, &each(MS / 2, &[1, 2, 3])), [go(1, 0), go(2, 1), go(3, 0)]);
        homes.refuse(1);
        homes.refuse(9);
        for _ in 0..100 {
            assert!(homes.step(&BUSY, true, &each(MS / 2, &[1, 2, 3])).iter().all(|m| m.tid != 1));
        }
    }

    #[test]
    fn one_processor_is_no_choice() {
        let mut homes = Homes::new(1);
        assert_eq!(homes.step(&BUSY, true, &each(MS / 8, &[1, 2])), []);
        assert!(!homes.held());
    }

    // Whatever happens, a home exists, nobody new is told nothing, and at the end all are free.
    #[test]
    fn random_threads_end_free() {
        let mut seed = 1u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for processors in 1..5 {
            let mut homes = Homes::new(processors);
            let mut at: BTreeMap<i32, Option<usize>> = BTreeMap::new();
            let mut act = |moves: Vec<Move>| {
                for m in moves {
                    assert!(m.to.is_none_or(|to| to < processors));
                    at.insert(m.tid, m.to);
                }
                at.clone()
            };
            for _ in 0..2000 {
                let there: Vec<i32> = (0..10).filter(|_| random(9) > 0).collect();
                let ran: Vec<_> = there.into_iter().map(|tid| (tid, random(4 * MS))).collect();
                let between = Between { over: 4 * MS, waited: random(2) > 0, beside: random(5) > 0 };
                act(homes.step(&between, random(3) == 0, &ran));
            }
            for _ in 0..60 {
                act(homes.step(&ALONE, true, &each(0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])));
            }
            assert!(act(Vec::new()).values().all(Option::is_none) && !homes.held());
        }
    }
}

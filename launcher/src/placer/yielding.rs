//! One group of leaves stands aside for another (docs/adr/0021): while there are procs in both, the
//! second is in the idle class, so that a thread of the first that wakes has the processor at once,
//! and finds one that runs only the second's as good as free. Not always, since among itself the
//! idle class is placed worse: streams between its procs lose some 7 %. So is the group around the
//! second, with the daemons that work for it, while it gets enough there (room.rs): these must
//! answer.
//!
//! What that does not prevent is that threads of the first wait while the second computes on
//! another processor. A loop looks every few milliseconds, while both compute, and gives threads of
//! the first processors of their own (homes.rs). Only if they go on waiting it bounds what the
//! second may use, and lets it off step by step: a bound takes more from the second than the first
//! gains.
//!
//! Only waiting that goes along with the second group's computing is blamed on it: when the first
//! group has more to do than there are processors, its threads wait for one another.

use super::homes::{Between, Homes};
use super::rivals::{Looked, Rivals, THREADS_MAX};
use super::room::Room;
use crate::cgroup::knobs::PERIOD_US;
use crate::error::{Errno, log};
use crate::notes::{Sums, is_within};
use crate::sys;

const MS: u64 = 1_000_000;
/// Between looks while both groups compute; the event loop adds up to a millisecond.
const TICK: u64 = 3 * MS;
/// Between looks while one of them does not.
const REST: u64 = 20 * MS;
/// How long the list of threads is taken to be right.
const THREADS_TIME: u64 = 20 * MS;
/// The loop's own processor time is at most this part of one processor's: who costs more looks less
/// often.
const COST_PART: u64 = 128;
/// Waiting, and computing, below this part of the time passed do not count.
const SOME_PART: u64 = 16;
/// Who waits for this part of the time is given a processor.
const WAIT_PART: u64 = 64;
/// Who waits for this part of the time in so many looks in a row has others bounded.
const LONG_PART: u64 = 4;
const LONG_LOOKS: u32 = 8;
/// What the second group keeps in any case, in microseconds of each period: the least that the
/// kernel takes.
const LEAST_US: u64 = 1000;
/// Between looks at what the group around the second gets, at most, whatever looking at threads
/// costs: this reads one file.
const ROOM_TICK: u64 = 50 * MS;
/// From the least bound to none in so many looks.
const STEPS: u64 = 10;
/// A placer that is not the first has heard of all procs after this time, and looks.
const TAKE_OVER: u64 = 100 * MS;
/// sigmad is told of the sums after this time, if there is news.
const TELL: u64 = 1000 * MS;

/// What happened between two looks, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sample {
    over: u64,
    first: u64,
    second: u64,
    waited: u64,
}

/// Decides how much the second group may use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pace {
    /// All processors for a period, in microseconds.
    most: u64,
    bound: u64,
    /// Looks in a row after which there was long waiting.
    long: u32,
}

impl Pace {
    fn new(processors: u64) -> Pace {
        let most = processors.max(1) * PERIOD_US;
        Pace { most, bound: most, long: 0 }
    }

    fn is_bound(&self) -> bool {
        self.bound < self.most
    }

    /// What bound to set: none if it stays, Some(None) for no bound any more.
    fn step(&mut self, s: &Sample) -> Option<Option<u64>> {
        let before = self.bound;
        let long = s.waited > s.over / LONG_PART && s.second > s.over / SOME_PART;
        self.long = if long { (self.long + 1).min(LONG_LOOKS) } else { 0 };
        if self.long == LONG_LOOKS {
            // A bound above what it uses would change nothing.
            let used = s.second * PERIOD_US / s.over.max(1);
            self.bound = (self.bound.min(used) / 2).max(LEAST_US).min(before);
        } else {
            self.bound = (self.bound + self.most / STEPS).min(self.most);
        }
        (self.bound != before).then(|| self.is_bound().then_some(self.bound))
    }
}

pub struct Yielding {
    first: String,
    second: String,
    rivals: Rivals,
    homes: Homes,
    /// There are more threads than are watched.
    crowd: bool,
    /// That a thread cannot be placed was logged.
    unplaced: bool,
    pace: Pace,
    room: Room,
    /// Procs in each of the groups.
    procs: [usize; 2],
    /// Whether the second group is in the idle class, and what is around it. None: unknown, since
    /// the kernel refused.
    idle: [Option<bool>; 2],
    /// The kernel refuses bounds, because a group within the second may use more; then the idle
    /// class is all there is.
    refused: bool,
    /// That was logged.
    said: bool,
    last: Option<(u64, Looked)>,
    next: u64,
    /// When to look at room again.
    room_next: u64,
    threads_until: u64,
    sums: Sums,
    told: (u64, Sums),
}

impl Yielding {
    /// `again`: an earlier placer may have given threads homes, which they lose with the first list
    /// of them.
    pub fn new(first: &str, second: &str, mut rivals: Rivals, again: bool) -> Yielding {
        let (processors, width) = (rivals.processors(), rivals.width());
        let mut homes = Homes::new(processors);
        if again {
            homes.take_over();
            rivals.take_over();
        }
        Yielding {
            first: first.to_string(),
            second: second.to_string(),
            rivals,
            homes,
            crowd: false,
            unplaced: false,
            pace: Pace::new(width as u64),
            room: Room::new(width as u64),
            procs: [0; 2],
            idle: [Some(false); 2],
            refused: false,
            said: false,
            last: None,
            next: if again { sys::monotonic_ns() + TAKE_OVER } else { 0 },
            room_next: 0,
            threads_until: 0,
            sums: Sums::default(),
            told: (0, Sums::default()),
        }
    }

    /// The group that goes first.
    pub fn first(&self) -> &str {
        &self.first
    }

    /// A proc has come into a group: each of the first, the first of any other.
    pub fn enter(&mut self, group: &str) {
        if is_within(group, &self.first) {
            self.threads_until = 0;
        }
        for (count, name) in self.procs.iter_mut().zip([&self.first, &self.second]) {
            *count += is_within(group, name) as usize;
        }
        self.set_idle();
    }

    fn both(&self) -> bool {
        self.procs.iter().all(|count| *count > 0)
    }

    /// A proc has left a group: each of the first, the last of any other. When one group is empty
    /// the other is free.
    pub fn leave(&mut self, group: &str) {
        for (count, name) in self.procs.iter_mut().zip([&self.first, &self.second]) {
            *count = count.saturating_sub(is_within(group, name) as usize);
        }
        if !self.both() {
            self.let_off();
        }
    }

    /// Ends every bound. Threads of the first group are free after some more looks.
    fn let_off(&mut self) {
        self.last = None;
        self.room.stop();
        self.set_idle();
        if self.pace.is_bound() {
            self.pace.bound = self.pace.most;
            self.bind(None);
        }
    }

    /// Ends every bound, and frees all threads. `threads` lists those of the first group.
    pub fn end(&mut self, mut threads: impl FnMut() -> Vec<i32>) {
        self.procs = [0; 2];
        self.let_off();
        self.scatter(&threads());
        // Those that were made meanwhile.
        while self.homes.held() {
            self.scatter(&threads());
        }
    }

    /// Frees all threads.
    fn scatter(&mut self, threads: &[i32]) {
        for tid in threads {
            if let Err(errno) = self.rivals.place(*tid, None) {
                self.refused_place(*tid, errno);
            }
        }
        self.homes.scatter();
    }

    /// A thread that cannot be placed keeps no home that it had.
    fn refused_place(&mut self, tid: i32, errno: Errno) {
        self.homes.refuse(tid);
        let _ = self.rivals.place(tid, None);
        if !self.unplaced {
            log(&format!("cannot place thread {tid} of the group {}: {errno}", self.first));
        }
        self.unplaced = true;
    }

    /// A group within the second has got a share, for which the second's bound was lifted. The
    /// bound counts as none from now on; a later look may set another.
    pub fn bound_lifted(&mut self, group: &str) {
        if !self.rivals.bounds_nest() || !is_within(group, &self.second) {
            return;
        }
        self.refused = false; // maybe it may use less now
        if self.pace.is_bound() {
            self.pace.bound = self.pace.most;
            self.bind(None);
        }
    }

    /// When `look` is due, on the clock of sys::monotonic_ns. None: as long as no other proc
    /// starts.
    pub fn next_look(&self) -> Option<u64> {
        match self.both() {
            true => Some(self.next.min(self.room_next)),
            // A change of class that failed is tried again.
            false => (self.homes.held() || self.idle != self.wanted()).then_some(self.next),
        }
    }

    /// What is due of looking at room, at threads and at both groups, and acts on it. `threads`
    /// lists those of the first group. Returns what sigmad is to be told.
    pub fn look(&mut self, now: u64, threads: impl FnOnce() -> Vec<i32>) -> Option<Sums> {
        let began = sys::thread_cpu_ns();
        self.look_at_room(now);
        if now < self.next {
            self.sums.cpu_ns += sys::thread_cpu_ns().saturating_sub(began);
            return None;
        }
        let listed = now >= self.threads_until;
        if listed {
            let threads = threads();
            self.rivals.follow(&threads);
            self.threads_until = now + THREADS_TIME;
            self.crowd = threads.len() > THREADS_MAX;
            if self.crowd && self.homes.held() {
                self.scatter(&threads);
            }
        }
        let looked = self.rivals.look();
        let (then, before) = self.last.replace((now, looked)).unwrap_or((now, looked));
        let sample = Sample {
            over: now - then,
            first: looked.first.saturating_sub(before.first),
            second: looked.second.saturating_sub(before.second),
            waited: looked.waited.saturating_sub(before.waited),
        };
        let placed = self.place(&sample, listed);
        let bound = self.pace.bound;
        if !self.refused
            && self.both()
            && let Some(bound) = self.pace.step(&sample)
        {
            self.bind(bound);
        }
        let spent = sys::thread_cpu_ns().saturating_sub(began);
        let both = sample.first > 0 && sample.second > 0;
        let wait = if both || self.pace.is_bound() { TICK } else { REST };
        self.next = now + wait.max(spent * COST_PART);
        self.sums.looks += 1;
        self.sums.pushes += (placed || self.pace.bound < bound) as u64;
        self.sums.waited_ns += sample.waited;
        self.sums.cpu_ns += spent;
        let (at, told) = self.told;
        if now < at || told == self.sums {
            return None;
        }
        self.told = (now + TELL, self.sums);
        Some(self.sums)
    }

    /// Whether a thread of the first group was given a processor.
    fn place(&mut self, sample: &Sample, listed: bool) -> bool {
        let between = Between {
            over: sample.over,
            waited: sample.waited > sample.over / WAIT_PART,
            beside: self.both() && sample.second > sample.over / SOME_PART,
        };
        if self.crowd {
            return false;
        }
        let mut placed = false;
        for one in self.homes.step(&between, listed, &self.rivals.ran()) {
            match self.rivals.place(one.tid, one.to) {
                Ok(()) => placed |= one.to.is_some(),
                Err(errno) => self.refused_place(one.tid, errno),
            }
        }
        if !self.homes.held() {
            self.rivals.forget();
        }
        placed
    }

    /// Whether the group around the second gets enough, and the classes that follow from it.
    fn look_at_room(&mut self, now: u64) {
        if self.both() {
            self.room_next = now + ROOM_TICK;
            match self.rivals.around_used() {
                Some(used) => self.room.step(now, used),
                None => self.room.stop(),
            }
        }
        self.set_idle();
    }

    /// Which class is to be: as `idle`.
    fn wanted(&self) -> [Option<bool>; 2] {
        [Some(self.both()), Some(self.both() && self.room.is_idle())]
    }

    /// Sets the classes that are not as they are to be. One that the kernel refuses is tried again
    /// at the next look, and logged once.
    fn set_idle(&mut self) {
        for (at, to) in self.wanted().into_iter().enumerate() {
            if self.idle[at] == to {
                continue;
            }
            let on = to == Some(true);
            let (result, group) = match self.rivals.around() {
                Some(around) if at == 1 => (self.rivals.set_around_idle(on), around),
                None if at == 1 => (Ok(()), ""),
                _ => (self.rivals.set_idle(on), &self.second[..]),
            };
            let known = self.idle[at].is_some();
            if let Err(errno) = result
                && known
            {
                log(&format!("cannot change the class of the group {group}: {errno}"));
            }
            self.idle[at] = result.is_ok().then_some(on);
        }
    }

    fn bind(&mut self, us: Option<u64>) {
        let Err(errno) = self.rivals.bind(us) else { return };
        self.refused = us.is_some() && errno.0 == libc::EINVAL && self.rivals.bounds_nest();
        if !self.refused {
            return log(&format!("cannot bound the group {}: {errno}", self.second));
        }
        if !self.said {
            self.said = true;
            log(&format!("the group {} is not bound while one in it has a quota of its own", self.second));
        }
        // What was accepted before must not stay for ever.
        self.pace.bound = self.pace.most;
        if let Err(errno) = self.rivals.bind(None) {
            log(&format!("cannot bound the group {}: {errno}", self.second));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Version;
    use crate::placer::processors::{affinity, set_affinity};
    use std::os::fd::{FromRawFd, OwnedFd};

    fn sample(waited_ms: u64, second_ms: u64) -> Sample {
        Sample { over: 4 * MS, first: MS, second: second_ms * MS, waited: waited_ms * MS }
    }

    /// Of two processors beside which threads have waited for long.
    fn pressed() -> Pace {
        let mut pace = Pace::new(2);
        for _ in 1..LONG_LOOKS {
            assert_eq!(pace.step(&sample(2, 7)), None, "not yet for long");
        }
        pace
    }

    #[test]
    fn who_waits_for_long_beside_work_has_it_bounded() {
        let mut pace = pressed();
        assert_eq!(pace.step(&sample(0, 7)), None, "nobody waits");
        let mut pace = pressed();
        assert_eq!(pace.step(&sample(2, 7)), Some(Some(8750)), "half of what it used");
        assert_eq!(pace.step(&sample(2, 4)), Some(Some(4375)));
        assert_eq!(pace.step(&sample(3, 2)), Some(Some(2187)));
        for _ in 0..3 {
            pace.step(&sample(3, 2));
        }
        assert_eq!(pace.bound, LEAST_US, "it keeps something");
        assert_eq!(pace.step(&sample(3, 2)), None);
    }

    #[test]
    fn it_is_let_off_in_steps() {
        let mut pace = pressed();
        pace.step(&sample(2, 7));
        let steps: Vec<_> = (0..8).map(|_| pace.step(&sample(0, 3))).collect();
        let some = |us| Some(Some(us));
        let expected = [some(10750), some(12750), some(14750), some(16750), some(18750), Some(None), None, None];
        assert_eq!(steps, expected);
    }

    #[test]
    fn who_waits_for_its_own_like_blames_nobody() {
        let mut pace = pressed();
        assert_eq!(pace.step(&sample(8, 0)), None, "nobody else computes");
        assert_eq!(pace.step(&Sample::default()), None, "no time has passed");
        assert!(!pace.is_bound());
    }

    #[test]
    fn a_bound_that_the_kernel_refuses_is_not_tried_at_each_look() {
        // An eventfd refuses what is shorter than a number, as the kernel does a bound below that
        // of a group within. SAFETY: no pointers are involved; the descriptor is nobody else's.
        let refusing = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        let mut yielding = Yielding::new("lc", "be", Rivals::for_test(Version::V1, refusing), false);
        yielding.pace = pressed();
        let bound = yielding.pace.step(&sample(2, 7)).unwrap();
        yielding.bind(bound);
        assert!(yielding.refused && !yielding.pace.is_bound());
        yielding.bound_lifted("lc/one");
        assert!(yielding.refused, "another group");
        yielding.bound_lifted("be/one");
        assert!(!yielding.refused, "it may be accepted now");
    }

    #[test]
    fn a_bound_makes_way_for_quotas_within() {
        let held = |version, group| {
            let nothing = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_WRONLY).unwrap();
            let mut yielding = Yielding::new("lc", "be", Rivals::for_test(version, nothing), false);
            yielding.pace = pressed();
            let bound = yielding.pace.step(&sample(2, 7)).unwrap();
            yielding.bind(bound);
            assert!(!yielding.refused && yielding.pace.is_bound());
            yielding.bound_lifted(group);
            yielding.pace.is_bound()
        };
        assert!(!held(Version::V1, "be/one"));
        assert!(held(Version::V1, "lc/one"));
        assert!(held(Version::V2, "be/one"), "version 2 takes any");
    }

    /// Runs on a thread of its own, so that no other test runs on one processor, with its id and
    /// all processors.
    fn on_a_thread(test: impl FnOnce(&mut Yielding, i32, &[usize]) + Send + 'static) {
        let nothing = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_WRONLY).unwrap();
        let mut yielding = Yielding::new("lc", "be", Rivals::for_test(Version::V1, nothing), false);
        let all = affinity(0).unwrap();
        // SAFETY: there are no arguments.
        std::thread::spawn(move || test(&mut yielding, unsafe { libc::gettid() }, &all)).join().unwrap();
    }

    /// Gives the thread a home, if there is more than one processor.
    fn place(yielding: &mut Yielding, tid: i32) -> bool {
        let between = Between { over: 4 * MS, waited: true, beside: true };
        let moves = yielding.homes.step(&between, true, &[(tid, MS)]);
        moves.iter().for_each(|one| yielding.rivals.place(one.tid, one.to).unwrap());
        !moves.is_empty()
    }

    #[test]
    fn a_crowd_is_free_and_so_are_its_heirs() {
        on_a_thread(|yielding, tid, all| {
            if !place(yielding, tid) {
                return;
            }
            let home = affinity(0).unwrap();
            assert_eq!(home.len(), 1);
            let mut crowd: Vec<i32> = (0..THREADS_MAX as i32).map(|n| i32::MAX - n).collect();
            crowd.push(tid);
            yielding.look(THREADS_TIME, || crowd.clone());
            yielding.next = 0; // however long it took
            assert_eq!(affinity(0).unwrap(), all, "who is not watched is freed too");
            assert!(yielding.next_look().is_some(), "there may be heirs");
            set_affinity(0, &home).unwrap(); // as one who was made meanwhile
            yielding.look(2 * THREADS_TIME, || crowd.clone());
            yielding.next = 0;
            assert_eq!(affinity(0).unwrap(), all);
            assert!(yielding.next_look().is_none());
            set_affinity(0, &home).unwrap();
            yielding.look(3 * THREADS_TIME, || crowd);
            assert_eq!(affinity(0).unwrap(), home, "its own choice");
        });
    }

    #[test]
    fn the_end_frees_who_was_placed_and_leaves_who_chose() {
        on_a_thread(|yielding, tid, all| {
            set_affinity(0, &all[..1]).unwrap();
            yielding.end(|| vec![tid]);
            assert_eq!(affinity(0).unwrap(), all[..1]);
            set_affinity(0, all).unwrap();
            place(yielding, tid);
            yielding.end(|| vec![tid]);
            assert_eq!(affinity(0).unwrap(), all);
            assert!(!yielding.homes.held());
        });
    }

    #[test]
    fn who_was_placed_before_is_freed_by_the_next_placer() {
        on_a_thread(|before, tid, all| {
            let one = &all[all.len() - 1..];
            let nothing = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_WRONLY).unwrap();
            let mut next = Yielding::new("lc", "be", Rivals::for_test(Version::V1, nothing), true);
            set_affinity(0, one).unwrap();
            before.look(1, || vec![tid]);
            assert_eq!(affinity(0).unwrap(), one, "the first placer leaves who chose");
            let at = next.next_look().expect("it looks although nobody has to stand aside");
            next.look(at, || vec![tid]);
            assert_eq!(affinity(0).unwrap(), all);
            assert!(!next.homes.held());
        });
    }

    #[test]
    fn one_thread_that_cannot_be_placed_leaves_the_others() {
        on_a_thread(|yielding, tid, all| {
            if !place(yielding, tid) {
                return;
            }
            yielding.refused_place(i32::MAX, Errno(libc::EPERM));
            assert!(yielding.homes.held(), "others keep their homes");
            yielding.refused_place(tid, Errno(libc::EPERM));
            assert_eq!(affinity(0).unwrap(), all, "it keeps none");
        });
    }
}

#[cfg(test)]
#[path = "yielding_test.rs"]
mod room_tests;

//! Whether a group that stands aside gets processor time there all the same (docs/adr/0021). That
//! is known by what it gets, not by what those before it leave: others of the host, another
//! instance or a quota around all may take that.
//!
//! A pure state machine: `step` is told what the group has used so far, and says whether it may be
//! in the idle class.

use std::collections::VecDeque;

const MS: u64 = 1_000_000;
/// What the group used counts over this time.
const TIME: u64 = 100 * MS;
/// Sums are remembered at least so far from one another: some 50 of them.
const GRAIN: u64 = 2 * MS;
/// There is room when the group, in its ordinary class, used this part of all processors.
const ROOM_PART: u64 = 4;
/// In the idle class it has room no longer when it used less than this part: either it wants no
/// more, and then its class does not matter, or it does not get more.
const LEAST_PART: u64 = 8;
/// After it had no room there it is not tried for this time, twice as long after each try that
/// ended within `SHORT`, up to the longest; and as at first again when a try lasted for `LONG`.
const BACK_OFF: u64 = 1000 * MS;
const BACK_OFF_MOST: u64 = 32_000 * MS;
const SHORT: u64 = 1000 * MS;
const LONG: u64 = 3000 * MS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    processors: u64,
    /// When, and what it had used, both in nanoseconds. Only the first is as old as `TIME`, or
    /// older.
    past: VecDeque<(u64, u64)>,
    idle: bool,
    /// Room was there when it was looked at last, or nothing is known yet: it is tried at once when
    /// both groups have work.
    good: bool,
    /// Since when it is in the idle class.
    began: u64,
    /// Before this it is not tried again.
    again: u64,
    back_off: u64,
}

impl Room {
    /// Nothing is known yet.
    pub fn new(processors: u64) -> Room {
        Room {
            processors: processors.max(1),
            past: VecDeque::new(),
            idle: false,
            good: true,
            began: 0,
            again: 0,
            back_off: BACK_OFF,
        }
    }

    /// Whether the group may be in the idle class.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// The group is in its ordinary class: nobody is there to stand aside for, or what it uses
    /// cannot be told. Whether there was room is still known, and for how long it is not tried.
    pub fn stop(&mut self) {
        self.idle = false;
        self.past.clear();
    }

    /// `used` is all processor time that the group had until `now`, both in nanoseconds.
    pub fn step(&mut self, now: u64, used: u64) {
        let last = self.past.back().map(|(at, _)| now.saturating_sub(*at));
        if !self.idle && last.is_some_and(|ago| ago > 2 * TIME) {
            self.past.clear(); // nobody looked: what it used says nothing of now
        }
        if self.past.is_empty() && !self.idle && self.good && now >= self.again {
            (self.idle, self.began) = (true, now);
        }
        if last.is_none_or(|ago| ago >= GRAIN) {
            self.past.push_back((now, used));
        }
        while self.past.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= TIME) {
            self.past.pop_front();
        }
        let (then, before) = self.past.front().copied().unwrap_or((now, used));
        let over = now.saturating_sub(then);
        if over < TIME {
            return;
        }
        let had = |part| used.saturating_sub(before).saturating_mul(part) >= over.saturating_mul(self.processors);
        match self.idle {
            true if !had(LEAST_PART) => self.leave(now),
            false if now >= self.again && had(ROOM_PART) => (self.idle, self.good, self.began) = (true, true, now),
            _ => return,
        }
        self.past = VecDeque::from([(now, used)]); // of the other class
    }

    fn leave(&mut self, now: u64) {
        let stayed = now.saturating_sub(self.began);
        (self.idle, self.good) = (false, false);
        if stayed >= LONG {
            self.back_off = BACK_OFF;
        }
        self.again = now.saturating_add(self.back_off);
        if stayed < SHORT {
            self.back_off = (2 * self.back_off).min(BACK_OFF_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between looks, as while both groups compute.
    const LOOK: u64 = 4 * MS;

    /// Two processors, and what the group gets of them.
    struct Host {
        room: Room,
        now: u64,
        used: u64,
    }

    impl Host {
        fn new() -> Host {
            Host { room: Room::new(2), now: 5000 * MS, used: 77 * MS }
        }

        /// For so long the group has these hundredths of both processors in the idle class, and out
        /// of it. How long it was in the idle class, at most without a pause, and in all, and how
        /// often that began.
        fn run(&mut self, time: u64, idle: u64, other: u64) -> (u64, u64, u32) {
            let (mut most, mut stay, mut all, mut times) = (0, 0, 0, 0);
            for _ in 0..time / LOOK {
                let was = self.room.is_idle();
                self.now += LOOK;
                self.used += LOOK * 2 * if was { idle } else { other } / 100;
                self.room.step(self.now, self.used);
                times += (self.room.is_idle() && !was) as u32;
                all += was as u64 * LOOK;
                stay = if was { stay + LOOK } else { 0 };
                most = most.max(stay);
            }
            (most, all, times)
        }
    }

    #[test]
    fn who_computes_in_what_is_left_is_idle() {
        let mut host = Host::new();
        host.room.step(host.now, host.used);
        assert!(host.room.is_idle(), "tried at once");
        host.run(2 * TIME, 0, 25);
        assert!(!host.room.is_idle());
        assert_eq!(host.run(800 * MS, 25, 25).1, 0, "not again yet");
        assert_eq!(host.run(10_000 * MS, 13, 25).2, 1, "an eighth is enough to stay");
        assert!(host.room.is_idle());
    }

    #[test]
    fn the_first_group_leaves_nothing() {
        let mut host = Host::new();
        let (_, all, times) = host.run(10_000 * MS, 0, 20);
        assert!(times == 1 && all <= TIME + LOOK, "what it has by its weight is no room: {all} ns idle");
        let mut host = Host::new();
        host.run(5000 * MS, 60, 60);
        let (most, all, _) = host.run(10_000 * MS, 0, 20);
        assert!(all <= TIME + LOOK && most == all, "{all} ns idle when the first group took all");
    }

    #[test]
    fn others_of_the_host_take_what_is_left() {
        for other in [25, 50] {
            let mut host = Host::new();
            let (most, all, times) = host.run(63_000 * MS, 0, other);
            assert!(most <= TIME + LOOK, "{most} ns idle without a pause");
            // After 1, 2, 4, 8 and 16 s, and for the first time; then after 32.
            assert_eq!((times, all), (6, 6 * most), "of {other} hundredths");
            let (most, all, times) = host.run(320_000 * MS, 0, other);
            assert_eq!((times, all), (10, 10 * most), "each 32 s");
            // The others go away.
            host.run(40_000 * MS, 50, 50);
            assert!(host.room.is_idle());
            let (_, all, times) = host.run(900 * MS, 0, other);
            assert!(times == 0 && all <= TIME + LOOK, "{all} ns idle");
            assert_eq!(host.run(300 * MS, 0, other).2, 1, "it may be tried after 1 s, as at first");
        }
    }

    #[test]
    fn who_sleeps_leaves_and_is_tried_again() {
        let mut host = Host::new();
        host.run(2000 * MS, 50, 50);
        host.run(2 * TIME, 1, 1);
        assert!(!host.room.is_idle(), "it wants nothing");
        assert_eq!(host.run(800 * MS, 50, 50).2, 0);
        assert_eq!(host.run(300 * MS, 50, 50).2, 1);
    }

    #[test]
    fn what_cannot_be_known_is_no_room() {
        let mut host = Host::new();
        host.run(1000 * MS, 50, 50);
        assert!(host.room.is_idle());
        host.room.stop();
        assert!(!host.room.is_idle());
        assert_eq!(host.run(LOOK, 50, 50).1, 0);
        assert!(host.room.is_idle(), "there was room");
        host.now += 60_000 * MS;
        host.room.step(host.now, host.used);
        assert!(!host.room.is_idle(), "it had nothing, though looked at late");
        assert_eq!(host.run(900 * MS, 50, 50).2, 0, "and is not tried at once");
        host.room.stop();
        assert_eq!(host.run(90 * MS, 50, 50).2, 0, "nor when it begins anew");
        host.now += 60_000 * MS;
        host.used += 60_000 * MS;
        assert_eq!(host.run(96 * MS, 50, 50).2, 0, "nobody looked, and there was none: it is to be seen");
        assert_eq!(host.run(8 * MS, 50, 50).2, 1);
    }

    #[test]
    fn no_input_is_too_much() {
        let mut room = Room::new(u64::MAX);
        for (now, used) in [(0, u64::MAX), (u64::MAX, 0), (0, 0), (u64::MAX, u64::MAX)] {
            room.step(now, used);
        }
        let mut room = Room::new(0);
        (0..100_000).for_each(|n| room.step(n * MS / 100, n * MS / 100));
        assert!(room.is_idle() && room.past.len() <= (TIME / GRAIN) as usize + 2, "{}", room.past.len());
    }
}

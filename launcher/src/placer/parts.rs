//! Holds groups to their shares. The kernel divides one processor by weights well, several only as
//! well as it spreads what waits, and it spreads by weights: a daemon that seldom runs and weighs
//! much makes a processor count as full, and groups keep what chance gave them, for seconds
//! (docs/internals/shares.md). So while procs of several groups are there, a loop compares what
//! each used with its part of what all used, and for a while raises the weight of who is behind and
//! lowers that of who is ahead, which also moves threads between processors.

use super::group::GroupMeter;
use crate::error::{Errno, log};
use crate::notes::is_child;
use crate::sys;
use std::collections::HashMap;
use std::rc::Rc;

const MS: u64 = 1_000_000;
/// Between looks while several groups compute.
const TICK: u64 = 50 * MS;
/// Between looks while they hardly do.
const REST: u64 = 250 * MS;
/// The loop's own processor time is at most this part of one processor's: who costs more looks less
/// often.
const COST_PART: u64 = 512;
/// Computing, of all groups together, below this part of the time passed is none.
const SOME_PART: u64 = 16;
/// Who had nothing for so long, beside others that had their parts, weighs as much as ever it does.
const HORIZON: u64 = 300 * MS;
/// More than passed between two looks is not made up for at once.
const STEP_MOST: u64 = 100 * MS;
/// What a group was behind or ahead is forgotten when it has had no proc for so long, or nobody
/// computes.
const MEMORY: u64 = 2000 * MS;
/// A weight is between a fourth of what the group's shares are and four times that.
const RANGE: f64 = 4.0;
/// Who weighs most for so long and uses less than half of its part does not want more, and is taken
/// so for `SATED_TIME`, or until it uses half.
const SATED_AFTER: u64 = 500 * MS;
const SATED_TIME: u64 = 2000 * MS;
/// Groups are forgotten that had no proc for so long.
const GONE_AFTER: u64 = 1000 * MS;
/// A weight that must be written anew: the last one may not be what the kernel has.
const UNKNOWN: u32 = 0;
/// More groups are not held: each look would take too long to be of use.
const GROUPS_MAX: usize = 256;

/// What is known of a group.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    shares: f64,
    /// What it weighs now, or UNKNOWN.
    weight: u32,
    /// It has procs.
    there: bool,
    /// From -1, far ahead of its part, to 1, far behind.
    behind: f64,
    /// For how long it has weighed most in vain, or been sated.
    since: u64,
    /// It does not want more than it uses.
    sated: bool,
}

impl Part {
    fn new(shares: u32) -> Part {
        Part { shares: shares as f64, weight: shares, there: true, behind: 0.0, since: 0, sated: false }
    }

    fn wants(&self) -> bool {
        self.there && !self.sated
    }

    /// Whether it can be told by its use what others' parts are.
    fn counts(&self) -> bool {
        self.wants() && self.behind < 1.0
    }

    /// From now on it is taken to want more, until its use says again that it does not.
    fn may_want(&mut self) {
        (self.sated, self.since) = (false, 0);
    }

    /// Takes note of what it used of its part since the last look.
    fn used(&mut self, of_part: f64, over: u64) {
        if self.sated {
            if of_part >= 0.5 {
                self.may_want();
            }
            return;
        }
        let step = over.min(STEP_MOST) as f64;
        self.behind += (1.0 - of_part).max(-RANGE) * step / HORIZON as f64;
        self.since = if self.behind >= 1.0 && of_part < 0.5 { self.since + over } else { 0 };
        if self.since >= SATED_AFTER {
            (self.sated, self.since, self.behind) = (true, 0, 0.0);
        }
    }

    /// Sets the weight anew, if that makes some difference: each change costs the kernel more than
    /// it costs us.
    fn weigh(&mut self) {
        let even = self.behind.abs() < 0.02;
        let weight = if even { self.shares } else { (self.shares * RANGE.powf(self.behind)).max(2.0) } as u32;
        if even || weight.abs_diff(self.weight) > self.weight / 10 {
            self.weight = weight;
        }
    }
}

/// Decides what each group is to weigh after a look: `used` of each since the last one, `over` so
/// long, in nanoseconds. Reports whether anybody computes.
fn step(parts: &mut [Part], used: &[u64], over: u64) -> bool {
    let computes = used.iter().sum::<u64>() > over / SOME_PART;
    for part in parts.iter_mut().filter(|part| part.sated) {
        part.since += over;
        if part.since >= SATED_TIME {
            part.may_want();
        }
    }
    if computes && !parts.iter().any(Part::wants) {
        // What they do not want was told beside others, who are gone.
        parts.iter_mut().filter(|part| part.there).for_each(Part::may_want);
    }
    let sums = |parts: &[Part], of: fn(&Part) -> bool, what: &dyn Fn(usize) -> f64| {
        (0..parts.len()).filter(|i| of(&parts[*i])).map(what).sum::<f64>()
    };
    let of = if parts.iter().any(Part::counts) { Part::counts } else { Part::wants };
    let (all, shares) = (sums(parts, of, &|i| used[i] as f64), sums(parts, of, &|i| parts[i].shares));
    let forgets = 1.0 - over.min(MEMORY) as f64 / MEMORY as f64;
    if !computes || all == 0.0 {
        parts.iter_mut().for_each(|part| part.behind *= forgets);
    } else {
        for (part, used) in parts.iter_mut().zip(used).filter(|(part, _)| part.there) {
            part.used(*used as f64 / part.shares / (all / shares), over);
        }
    }
    // Only what one has beside others matters: all cannot be behind.
    let (mean, shares) = (
        sums(parts, Part::counts, &|i| parts[i].behind * parts[i].shares),
        sums(parts, Part::counts, &|i| parts[i].shares),
    );
    for part in parts.iter_mut() {
        if !part.there {
            part.behind *= forgets; // it saves nothing up
        } else if part.counts() && shares > 0.0 {
            part.behind -= mean / shares;
        }
        part.behind = part.behind.clamp(-1.0, 1.0);
        part.weigh();
    }
    computes
}

/// A group that is held.
struct Held {
    meter: Rc<GroupMeter>,
    /// What it had used at the last look.
    used: u64,
    /// Since when it has no proc.
    empty: Option<u64>,
}

/// The groups directly below one, as the loop sees and moves them.
pub struct Parts {
    parent: String,
    /// The shares of all that sigmad has told of, and by what they are held.
    told: HashMap<String, (u32, Rc<GroupMeter>)>,
    /// Procs of each that has some.
    procs: HashMap<String, usize>,
    /// Those that are held, and what is known of each, in the same order.
    held: Vec<(String, Held)>,
    parts: Vec<Part>,
    last: u64,
    next: u64,
    /// That the kernel does not tell enough was logged.
    said: bool,
}

impl Parts {
    pub fn new(parent: &str) -> Parts {
        Parts {
            parent: parent.to_string(),
            told: HashMap::new(),
            procs: HashMap::new(),
            held: Vec::new(),
            parts: Vec::new(),
            last: 0,
            next: 0,
            said: false,
        }
    }

    /// Whether it is for groups below this one.
    pub fn is_of(&self, parent: &str) -> bool {
        self.parent == parent
    }

    /// A group was given these shares, and weighs so much now. Under new shares nobody is behind or
    /// ahead.
    pub fn share(&mut self, group: &str, shares: u32, meter: GroupMeter) {
        if !is_child(group, &self.parent) {
            return;
        }
        let changed =
            self.told.insert(group.to_string(), (shares, Rc::new(meter))).is_some_and(|(before, _)| before != shares);
        if let Some(at) = self.held.iter().position(|(name, _)| name == group) {
            (self.parts[at].shares, self.parts[at].weight) = (shares as f64, shares);
        }
        if changed {
            self.parts.iter_mut().for_each(|part| (part.behind, part.since, part.sated) = (0.0, 0, false));
        }
    }

    /// A group could not be given its shares, and may weigh the new ones or the old. The next look
    /// writes what it is to weigh.
    pub fn unknown(&mut self, group: &str) {
        if let Some(at) = self.held.iter().position(|(name, _)| name == group) {
            self.parts[at].weight = UNKNOWN;
        }
    }

    /// A group is gone.
    pub fn drop(&mut self, group: &str) {
        self.told.remove(group);
        if let Some(at) = self.held.iter().position(|(name, _)| name == group) {
            self.held.remove(at);
            self.parts.remove(at);
        }
    }

    /// A proc has come into a group.
    pub fn enter(&mut self, group: &str) {
        if is_child(group, &self.parent) {
            *self.procs.entry(group.to_string()).or_default() += 1;
        }
    }

    /// A proc has left a group.
    pub fn leave(&mut self, group: &str) {
        if let Some(count) = self.procs.get_mut(group) {
            *count -= 1;
            if *count == 0 {
                self.procs.remove(group);
            }
        }
    }

    /// Who has procs is told anew.
    pub fn leave_all(&mut self) {
        self.procs.clear();
    }

    fn several(&self) -> bool {
        self.procs.len() > 1 && self.procs.len() <= GROUPS_MAX
    }

    /// When `look` is due, on the clock of sys::monotonic_ns. None: as long as no other proc
    /// starts.
    pub fn next_look(&self) -> Option<u64> {
        (self.several() || !self.held.is_empty()).then_some(self.next)
    }

    /// Looks, and acts on it.
    pub fn look(&mut self, now: u64) {
        let began = sys::thread_cpu_ns();
        let over = now - std::mem::replace(&mut self.last, now);
        let mut used = Vec::with_capacity(self.held.len());
        for ((group, held), part) in self.held.iter_mut().zip(&mut self.parts) {
            part.there = self.procs.contains_key(group);
            held.empty = if part.there { None } else { held.empty.or(Some(now)) };
            let before = held.used;
            held.used = held.meter.used().unwrap_or(before).max(before);
            used.push(held.used - before);
        }
        let before: Vec<u32> = self.parts.iter().map(|part| part.weight).collect();
        let computes = step(&mut self.parts, &used, over);
        self.write(&before);
        let fresh = self.held.is_empty();
        self.hold(now);
        let soon = computes || fresh && !self.held.is_empty();
        let spent = sys::thread_cpu_ns().saturating_sub(began);
        self.next = now + if soon { TICK } else { REST }.max(spent * COST_PART);
    }

    /// Has the kernel weigh what differs from before.
    fn write(&mut self, before: &[u32]) {
        for ((part, before), (group, held)) in self.parts.iter_mut().zip(before).zip(&self.held) {
            if part.weight != *before
                && let Err(errno) = held.meter.weigh(part.weight)
            {
                part.weight = UNKNOWN;
                complain(&mut self.said, group, errno);
            }
        }
    }

    /// Takes up who has procs now, if there are several, and lets off who has had none for long,
    /// and who is left alone.
    fn hold(&mut self, now: u64) {
        let gone = |held: &Held| held.empty.is_some_and(|since| now - since >= GONE_AFTER);
        for at in (0..self.held.len()).rev().filter(|at| gone(&self.held[*at].1)).collect::<Vec<_>>() {
            self.let_off(at);
        }
        if self.several() {
            for group in self.procs.keys() {
                let known = self.held.iter().any(|(name, _)| name == group);
                let Some((shares, meter)) = self.told.get(group).filter(|_| !known) else { continue };
                let used = meter.used().unwrap_or(0);
                self.held.push((group.clone(), Held { meter: meter.clone(), used, empty: None }));
                self.parts.push(Part::new(*shares));
            }
        } else if self.held.len() == 1 || self.procs.len() > GROUPS_MAX {
            (0..self.held.len()).rev().for_each(|at| self.let_off(at));
        }
    }

    /// A group weighs its shares again, and is held no more.
    fn let_off(&mut self, at: usize) {
        let ((group, held), part) = (self.held.remove(at), self.parts.remove(at));
        if part.weight != part.shares as u32
            && let Err(errno) = held.meter.weigh(part.shares as u32)
        {
            complain(&mut self.said, &group, errno);
        }
    }
}

/// What fails for one group fails for all, at each look.
fn complain(said: &mut bool, group: &str, errno: Errno) {
    if !std::mem::replace(said, true) {
        log(&format!("cannot hold the group {group} to its shares: {errno}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Version;

    /// Two processors of which each divides its time by weight among what is there, and a group's
    /// weight by its tasks on each, as the kernel does; nothing ever moves. One group wants no more
    /// than a bound, if it has one.
    struct Kernel {
        /// Of each group, tasks on each processor.
        tasks: Vec<[f64; 2]>,
        most: Vec<f64>,
        /// What is left of each processor beside daemons.
        left: [f64; 2],
    }

    impl Kernel {
        /// What each group uses in 50 ms.
        fn run(&self, parts: &[Part]) -> Vec<u64> {
            let mut used = vec![0.0; parts.len()];
            for cpu in 0..2 {
                let weigh = |i: usize| parts[i].weight as f64 * self.tasks[i][cpu] / self.tasks[i].iter().sum::<f64>();
                let all: f64 = (0..parts.len()).map(weigh).sum();
                for (i, used) in used.iter_mut().enumerate().filter(|_| all > 0.0) {
                    *used += self.left[cpu] * weigh(i) / all;
                }
            }
            used.iter().zip(&self.most).map(|(used, most)| (used.min(*most) * TICK as f64) as u64).collect()
        }
    }

    fn parts(shares: &[u32]) -> Vec<Part> {
        shares.iter().map(|shares| Part::new(*shares)).collect()
    }

    /// Looks for some seconds, and tells what each group used in the last of them, in parts of a
    /// processor.
    fn looks(kernel: &Kernel, parts: &mut [Part], seconds: u64) -> Vec<f64> {
        let mut sums = vec![0.0; parts.len()];
        for n in 0..seconds * 1000 * MS / TICK {
            let used = kernel.run(parts);
            step(parts, &used, TICK);
            if n * TICK >= (seconds - 1) * 1000 * MS {
                used.iter().zip(&mut sums).for_each(|(used, sum)| *sum += *used as f64 / 1e9);
            }
        }
        sums
    }

    fn assert_near(is: &[f64], expected: &[f64]) {
        let near = is.iter().zip(expected).all(|(is, expected)| (is - expected).abs() < 0.05 * expected);
        assert!(near, "{is:?}, expected {expected:?}");
    }

    const NONE: f64 = 2.0;

    #[test]
    fn who_the_kernel_keeps_on_one_processor_has_its_part() {
        // As measured: 24 short procs on both processors, 8 long ones on the second.
        let kernel = Kernel { tasks: vec![[9.0, 15.0], [0.0, 8.0]], most: vec![NONE; 2], left: [0.85, 0.95] };
        let mut held = parts(&[256, 256]);
        let used = kernel.run(&held);
        assert!(used[0] as f64 > 1.8 * used[1] as f64, "the kernel by itself: {used:?}");
        assert_near(&looks(&kernel, &mut held, 2), &[0.9, 0.9]);
    }

    #[test]
    fn parts_are_in_the_ratio_of_shares() {
        let tasks = vec![[12.0, 12.0], [7.0, 1.0], [2.0, 6.0]];
        let kernel = Kernel { tasks, most: vec![NONE; 3], left: [0.9, 0.8] };
        let mut held = parts(&[256, 512, 1024]);
        assert_near(&looks(&kernel, &mut held, 3), &[1.7 / 7.0, 3.4 / 7.0, 6.8 / 7.0]);
    }

    #[test]
    fn who_wants_less_than_its_part_disturbs_nobody_and_saves_nothing_up() {
        let tasks = vec![[1.0, 1.0], [9.0, 15.0], [0.5, 8.0]];
        let mut kernel = Kernel { tasks, most: vec![0.05, NONE, NONE], left: [1.0, 1.0] };
        let mut held = parts(&[256, 256, 256]);
        let used = looks(&kernel, &mut held, 8);
        assert!((used[1] / used[2] - 1.0).abs() < 0.1, "others are even: {used:?}");
        // Then it wants all that it can get.
        kernel.most[0] = NONE;
        let used = looks(&kernel, &mut held, 1);
        assert!(used[0] < 0.8, "what it did not want before is not made up for: {used:?}");
        assert_near(&looks(&kernel, &mut held, 2), &[2.0 / 3.0; 3]);
    }

    #[test]
    fn who_cannot_be_helped_stays_within_bounds() {
        // All of one on a processor that daemons nearly fill.
        let kernel = Kernel { tasks: vec![[8.0, 0.0], [0.0, 8.0]], most: vec![NONE; 2], left: [0.2, 1.0] };
        let mut held = parts(&[256, 2]);
        looks(&kernel, &mut held, 10);
        assert!(held[0].weight >= 64 && held[0].weight <= 1024, "{held:?}");
        assert!(held[1].weight >= 2 && held[1].weight <= 8, "{held:?}");
    }

    #[test]
    fn who_wanted_less_beside_others_is_held_when_they_are_gone() {
        let tasks = vec![[9.0, 15.0], [0.0, 8.0], [9.0, 9.0], [9.0, 9.0]];
        let mut kernel = Kernel { tasks, most: vec![0.02, 0.02, NONE, NONE], left: [0.85, 0.95] };
        let mut held = parts(&[256; 4]);
        looks(&kernel, &mut held, 2);
        assert_eq!([0, 1, 2, 3].map(|i: usize| held[i].sated), [true, true, false, false], "{held:?}");
        held.truncate(2);
        kernel.tasks.truncate(2);
        kernel.most = vec![NONE; 2];
        assert_near(&looks(&kernel, &mut held, 2), &[0.9, 0.9]);
    }

    #[test]
    fn who_wants_less_is_so_for_two_seconds_only_even_if_nobody_computes() {
        let mut held = parts(&[256, 256]);
        held[1].sated = true;
        for n in 1..=SATED_TIME / REST {
            step(&mut held, &[0, 0], REST);
            assert_eq!(held[1].sated, n * REST < SATED_TIME, "after {n} looks");
        }
    }

    /// Of a group that uses nothing, whose weights go to this file.
    fn meter(weights: &str) -> GroupMeter {
        let open = |path| std::fs::File::options().write(true).open(path).unwrap().into();
        GroupMeter::new(Version::V1, [open("/dev/null"), open(weights)])
    }

    #[test]
    fn a_weight_that_could_not_be_written_is_written_at_the_next_look() {
        let mut parts = Parts::new("be");
        for (group, weights) in [("be/one", "/dev/full"), ("be/two", "/dev/null")] {
            parts.share(group, 256, meter(weights));
            let meter = Rc::new(meter(weights));
            parts.held.push((group.into(), Held { meter, used: 0, empty: None }));
            parts.parts.push(Part { weight: 300, ..Part::new(256) });
        }
        let weights = |parts: &Parts| parts.parts.iter().map(|part| part.weight).collect::<Vec<_>>();
        step(&mut parts.parts, &[0, 0], TICK);
        parts.write(&[300, 300]);
        assert_eq!(weights(&parts), [UNKNOWN, 256]);
        step(&mut parts.parts, &[0, 0], TICK);
        assert_eq!(weights(&parts), [256, 256]);
        parts.unknown("be/two");
        parts.unknown("be/three");
        assert_eq!(weights(&parts), [256, UNKNOWN]);
        step(&mut parts.parts, &[0, 0], TICK);
        assert_eq!(weights(&parts), [256, 256]);
    }

    #[test]
    fn weights_are_the_shares_again_when_nobody_computes() {
        let kernel = Kernel { tasks: vec![[9.0, 15.0], [0.0, 8.0]], most: vec![NONE; 2], left: [0.85, 0.95] };
        let mut held = parts(&[256, 256]);
        looks(&kernel, &mut held, 2);
        assert!(held[0].weight < 200 && held[1].weight > 300, "{held:?}");
        assert!(step(&mut held, &[TICK, TICK], TICK), "they compute");
        for _ in 0..30 {
            assert!(!step(&mut held, &[0, REST / 100], REST), "they do not");
        }
        assert_eq!([held[0].weight, held[1].weight], [256, 256]);
    }

    #[test]
    fn what_is_looked_at_late_is_not_made_up_for_at_once() {
        let mut held = parts(&[256, 256]);
        step(&mut held, &[20_000 * MS, 0], 10_000 * MS);
        assert!(held[1].behind <= 0.5, "{held:?}");
        step(&mut held, &[0, 0], 0);
    }

    #[test]
    fn only_groups_directly_below_are_held_and_only_if_there_are_several() {
        let mut parts = Parts::new("be");
        parts.share("be/one", 256, meter("/dev/null"));
        parts.share("bed/one", 256, meter("/dev/null"));
        parts.share("be", 1024, meter("/dev/null"));
        assert_eq!(parts.told.len(), 1);
        for group in ["be/one", "be/one", "lc", "lc/one"] {
            parts.enter(group);
        }
        assert_eq!(parts.next_look(), None, "one group has nobody to be held against");
        parts.enter("be/two");
        assert_eq!(parts.next_look(), Some(0));
        ["be/two", "be/two", "lc"].into_iter().for_each(|group| parts.leave(group));
        assert_eq!(parts.next_look(), None);
        assert_eq!(parts.procs["be/one"], 2);
        parts.drop("be/one");
        assert!(parts.told.is_empty());
    }
}

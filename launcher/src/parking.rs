//! Seats: contained places in which procs only need to be executed.
//!
//! A START should cost little more than fork and exec, but making a contained process costs several
//! times that: entering a cgroup of v1 takes a lock whose writers wait for an RCU grace period (ten
//! milliseconds on a machine at rest), loading the filter takes 0.1 ms, namespaces as much. None of
//! it depends on which program will run. So a seat is made ahead of time: a cgroup leaf, and in it
//! a seed (seed.rs), a process with everything done that a START does not decide. A START is handed
//! to the seed as it came, with the program, the passed descriptors and a Landlock ruleset for that
//! one program; the seed has a child execute the program. When the proc has ended, the seat serves
//! the next one. Nothing of a proc stays in its seat: its processes were all in the leaf, which is
//! empty then, and its memory was never the seed's.
//!
//! Pools are kept by purpose, which is all that cannot be changed any more: the group (realm and
//! class), the gid (the realm), the filter, the limits that the process itself has set. A START
//! whose purpose has no free seat makes one on the spot and is handed to that.
//!
//! How many to keep free follows the arrivals: twice as many as before whenever a START found none,
//! up to POOL_MAX; then down to half every second, but not below the STARTs of that second or
//! POOL_FIRST; after IDLE without a START, none. Where memory is scarce none are kept. This file
//! decides only; factory.rs makes and kills.

use crate::plan::{Limits, Plan, Profile, Weaken};
use std::collections::{HashMap, VecDeque};

/// Free seats in all, some 100 KiB each: at most 13 MiB.
pub const PARKED_MAX: usize = 128;
/// Made ahead of one purpose: a burst of so many finds them ready. Those of procs that end come
/// back beside them.
const POOL_MAX: usize = 16;
/// After the first START of a purpose: programs come in sequences.
const POOL_FIRST: usize = 2;
/// Below this part of what is wanted they are made even when the loop is busy.
const URGENT_PART: usize = 4;
/// Purposes that are remembered; beyond it a START leaves no trace.
const POOLS_MAX: usize = 1024;
const SECOND: u64 = 1_000_000_000;
/// A realm without a START for so long is idle, and its seats go.
const IDLE: u64 = 10 * SECOND;
/// A START's own numbers reach a little above 1000, so a proc with a lower limit has no seat.
const NOFILE_MIN: u32 = 1100;
/// A proc with less memory has no seat either: there, the seed and what is left of the last proc
/// would matter.
const MEMORY_MIN: u64 = 4 << 20;

/// What a seat is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Purpose {
    pub profile: Profile,
    pub group: String,
    pub gid: u32,
    pub pids: u32,
    pub nofile: u32,
}

impl Purpose {
    /// None for a START that is not for a seat.
    pub fn of(plan: &Plan) -> Option<Purpose> {
        let common = plan.profile != Profile::System && plan.weaken == Weaken::default() && plan.uid == 0;
        let fits = plan.nofile >= NOFILE_MIN && plan.limits.memory.is_none_or(|bytes| bytes >= MEMORY_MIN);
        (common && fits).then(|| Purpose {
            profile: plan.profile,
            group: plan.group.clone(),
            gid: plan.gid,
            pids: plan.limits.pids,
            nofile: plan.nofile,
        })
    }

    /// What a seed has to know.
    pub fn plan(&self, limits: &Limits) -> Plan {
        Plan {
            id: 0,
            profile: self.profile,
            weaken: Weaken::default(),
            uid: 0,
            gid: self.gid,
            group: self.group.clone(),
            leaf: String::new(),
            subdir: None,
            limits: Limits { pids: self.pids, ..limits.clone() },
            nofile: self.nofile,
            targets: Vec::new(),
            binfs: None,
            argv: Vec::new(),
            envp: Vec::new(),
        }
    }
}

#[derive(Debug)]
struct Pool<P> {
    parked: VecDeque<P>,
    /// How many there should be.
    target: usize,
    /// STARTs since the last tick, and when the last was.
    starts: usize,
    last: u64,
    /// Those of the last START: most likely the next one's.
    limits: Limits,
}

/// The pools. Generic so that what it decides can be tested without processes.
#[derive(Debug)]
pub struct Parking<P> {
    pools: HashMap<Purpose, Pool<P>>,
    count: usize,
    scarce: bool,
    next_tick: u64,
}

impl<P> Parking<P> {
    pub fn new() -> Parking<P> {
        Parking { pools: HashMap::new(), count: 0, scarce: false, next_tick: 0 }
    }

    /// Takes note of a START, and a seat of its purpose out of the pool: the last to have come
    /// back, which the caches know, or else the first made, which is most likely to be ready.
    pub fn take(&mut self, purpose: &Purpose, limits: &Limits, now: u64) -> Option<P> {
        if !self.pools.contains_key(purpose) {
            if self.pools.len() >= POOLS_MAX {
                return None;
            }
            if self.pools.is_empty() {
                self.next_tick = now + SECOND;
            }
            let pool = Pool { parked: VecDeque::new(), target: 0, starts: 0, last: now, limits: limits.clone() };
            self.pools.insert(purpose.clone(), pool);
        }
        let pool = self.pools.get_mut(purpose)?;
        pool.starts += 1;
        pool.last = now;
        pool.limits = limits.clone();
        let parked = self.take_next(purpose);
        if let Some(pool) = self.pools.get_mut(purpose) {
            // After one that could not be made or kept, this START is the sign to try again.
            pool.target = pool.target.max(POOL_FIRST);
        }
        parked
    }

    /// Another one for the same START, when the first was of no use.
    pub fn take_next(&mut self, purpose: &Purpose) -> Option<P> {
        let pool = self.pools.get_mut(purpose)?;
        let parked = pool.parked.pop_front();
        match parked {
            Some(_) => self.count -= 1,
            None => pool.target = (pool.target * 2).clamp(POOL_FIRST, POOL_MAX),
        }
        parked
    }

    /// Takes back one whose proc has ended; returns it if there are enough.
    pub fn give_back(&mut self, purpose: &Purpose, parked: P) -> Option<P> {
        match self.pools.get_mut(purpose) {
            Some(pool) if !self.scarce && self.count < PARKED_MAX => {
                pool.parked.push_front(parked);
                self.count += 1;
                None
            }
            _ => Some(parked),
        }
    }

    pub fn put(&mut self, purpose: &Purpose, parked: P) {
        if let Some(pool) = self.pools.get_mut(purpose) {
            pool.parked.push_back(parked);
            self.count += 1;
        }
    }

    /// Whether some should be made: None, when there is time, or at once.
    pub fn need(&self) -> Option<Need> {
        if self.scarce || self.count >= PARKED_MAX {
            return None;
        }
        let needs = self.pools.values().filter(|pool| pool.parked.len() < pool.target);
        needs.map(|pool| if pool.parked.len() < pool.target / URGENT_PART { Need::Urgent } else { Need::AtRest }).max()
    }

    /// The purpose that lacks most, and the limits to prepare for.
    pub fn neediest(&self) -> Option<(Purpose, Limits)> {
        let lack = |pool: &Pool<P>| pool.target.saturating_sub(pool.parked.len());
        let (purpose, pool) =
            self.pools.iter().max_by_key(|(_, pool)| lack(pool)).filter(|(_, pool)| lack(pool) > 0)?;
        Some((purpose.clone(), pool.limits.clone()))
    }

    /// One of this purpose could not be made or kept: no more until the next START that wants one.
    pub fn give_up(&mut self, purpose: &Purpose) {
        if let Some(pool) = self.pools.get_mut(purpose) {
            pool.target = 0;
        }
    }

    /// Takes out the one that `is` recognises, for which nobody has asked: it died.
    pub fn lose(&mut self, is: impl Fn(&P) -> bool) -> Option<P> {
        for pool in self.pools.values_mut() {
            if let Some(at) = pool.parked.iter().position(&is) {
                pool.target = 0;
                self.count -= 1;
                return pool.parked.remove(at);
            }
        }
        None
    }

    /// When tick has something to do, provided that there are pools.
    pub fn next_tick(&self) -> u64 {
        self.next_tick
    }

    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Once a second while there are pools: adapts them, and returns the seats to be given up.
    pub fn tick(&mut self, now: u64, scarce: impl FnOnce() -> bool) -> Vec<P> {
        if now < self.next_tick {
            return Vec::new();
        }
        self.next_tick = now + SECOND;
        self.scarce = !self.pools.is_empty() && scarce();
        let mut surplus = Vec::new();
        let scarce = self.scarce;
        self.pools.retain(|_, pool| {
            let idle = now.saturating_sub(pool.last) >= IDLE;
            pool.target = pool.target.min(pool.starts.max(pool.target / 2).max(POOL_FIRST));
            let keep = if idle || scarce { 0 } else { pool.target.max(pool.starts) };
            pool.starts = 0;
            while pool.parked.len() > keep {
                surplus.extend(pool.parked.pop_back());
            }
            !idle
        });
        self.count -= surplus.len();
        surplus
    }

    /// Gives up those of a group, for which nobody will ask again.
    pub fn drain_group(&mut self, group: &str) -> Vec<P> {
        let gone = self.pools.extract_if(|purpose, _| purpose.group == group);
        let parked: Vec<P> = gone.flat_map(|(_, pool)| pool.parked).collect();
        self.count -= parked.len();
        parked
    }

    /// Gives up everything.
    pub fn drain(&mut self) -> Vec<P> {
        self.count = 0;
        std::mem::take(&mut self.pools).into_values().flat_map(|pool| pool.parked).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    AtRest,
    Urgent,
}

/// Whether less than a twentieth of the machine's memory is available: then it is not for waiting
/// processes.
pub fn memory_is_scarce(meminfo: &str) -> bool {
    let field = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    match (field("MemTotal:"), field("MemAvailable:")) {
        (Some(total), Some(available)) => available < total / 20,
        _ => false,
    }
}

#[cfg(test)]
#[path = "parking_test.rs"]
mod tests;

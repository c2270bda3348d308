//! Parked children: procs that lack nothing but their program.
//!
//! A START should cost little more than fork and exec, but making a contained process costs several times
//! that: entering a cgroup of v1 takes a lock whose writers wait for an RCU grace period (ten milliseconds
//! on a machine at rest), loading the filter takes 0.1 ms, two forks 0.2 ms. None of it depends on which
//! program will run. So init and the program's process are made ahead of time, with everything done that a
//! START does not decide: cgroup leaf, namespaces, session, descriptors closed, limits, identity, filter.
//! Then the process waits on a socket. The START is handed to it as it came, with the program, the passed
//! descriptors and a Landlock ruleset for that one program; it puts them in their places, restricts itself
//! and executes. Whatever else it held vanishes by exec: memory, dispositions, close-on-exec descriptors.
//! Nothing of a parked child is ever used twice.
//!
//! Pools are kept by purpose, which is all that cannot be changed any more: the group (realm and class), the
//! gid (the realm), the limits that the process itself has set. A START whose purpose has no parked child
//! makes one on the spot and hands itself to that.
//!
//! How many to keep follows the arrivals: twice as many as before whenever a START found none, up to
//! POOL_MAX; then down to half every second, but not below the STARTs of that second or POOL_FIRST; after IDLE
//! without a START, none. Where memory is scarce none are kept. This file decides only; factory.rs makes and kills.

use crate::plan::{Limits, Plan, Profile, Weaken};
use crate::proc::Tree;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

/// In all. Two small processes each: about 10 MiB for all of them.
pub const PARKED_MAX: usize = 64;
/// Of one purpose: a burst of so many finds them ready. The next ones are made as fast as they are used,
/// so more would only cost memory.
const POOL_MAX: usize = 16;
/// After the first START of a purpose: programs come in sequences.
const POOL_FIRST: usize = 2;
/// Below this part of what is wanted they are made even when the loop is busy.
const URGENT_PART: usize = 4;
/// Purposes that are remembered; beyond it a START leaves no trace.
const POOLS_MAX: usize = 1024;
const SECOND: u64 = 1_000_000_000;
/// A realm without a START for so long is idle, and its parked children go.
const IDLE: u64 = 10 * SECOND;
/// A parked child's own numbers reach a little above 1000, so a proc with a lower limit is not parked.
const NOFILE_MIN: u32 = 1100;
/// Less memory than this is not for preparing: a parked child itself would not fit.
const MEMORY_MIN: u64 = 1 << 20;

/// What a parked child is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Purpose {
    pub group: String,
    pub gid: u32,
    pub pids: u32,
    pub nofile: u32,
}

impl Purpose {
    /// None for a START that is not for a parked child.
    pub fn of(plan: &Plan) -> Option<Purpose> {
        let common = plan.profile == Profile::Sigma && plan.weaken == Weaken::default() && plan.uid == 0;
        (common && plan.nofile >= NOFILE_MIN).then(|| Purpose {
            group: plan.group.clone(),
            gid: plan.gid,
            pids: plan.limits.pids,
            nofile: plan.nofile,
        })
    }

    /// What a child that is to be parked has to know.
    pub fn plan(&self, uid: u32, limits: &Limits) -> Plan {
        Plan {
            id: 0,
            profile: Profile::Sigma,
            weaken: Weaken::default(),
            uid,
            gid: self.gid,
            group: self.group.clone(),
            leaf: String::new(),
            limits: Limits { pids: self.pids, ..limits.clone() },
            nofile: self.nofile,
            targets: Vec::new(),
            binfs: None,
            argv: Vec::new(),
            envp: Vec::new(),
        }
    }
}

/// A process tree that waits for its START.
pub struct Parked {
    pub tree: Tree,
    /// Where it waits.
    pub order: OwnedFd,
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

    /// Takes note of a START, and the oldest parked child of its purpose out of the pool. The oldest is most
    /// likely to be ready.
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
        self.take_next(purpose)
    }

    /// Another one for the same START, when the first was not alive any more.
    pub fn take_next(&mut self, purpose: &Purpose) -> Option<P> {
        let pool = self.pools.get_mut(purpose)?;
        let parked = pool.parked.pop_front();
        match parked {
            Some(_) => self.count -= 1,
            None => pool.target = (pool.target * 2).clamp(POOL_FIRST, POOL_MAX),
        }
        parked
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
        let memory = pool.limits.memory.filter(|bytes| *bytes >= MEMORY_MIN);
        Some((purpose.clone(), Limits { memory, ..pool.limits.clone() }))
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

    /// Once a second while there are pools: adapts them, and returns the parked children to be killed.
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
            pool.starts = 0;
            let keep = if idle || scarce { 0 } else { pool.target };
            while pool.parked.len() > keep {
                surplus.extend(pool.parked.pop_front());
            }
            !idle
        });
        self.count -= surplus.len();
        surplus
    }

    /// Whether some pool's procs are in this group.
    pub fn uses(&self, group: &str) -> bool {
        self.pools.keys().any(|purpose| purpose.group == group)
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

/// Whether less than a twentieth of the machine's memory is available: then it is not for waiting processes.
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

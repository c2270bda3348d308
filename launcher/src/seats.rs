//! Makes seats, hands STARTs to them, and takes them back. parking.rs decides how many there are.

use crate::cgroup::{Cgroups, Entry, Leaf, Usage};
use crate::error::{Errno, Error, log};
use crate::factory::Factory;
use crate::init::Common;
use crate::landlock::{Reach, Rules};
use crate::parking::{self, Need, Purpose};
use crate::plan::{Limits, Plan};
use crate::proc::{Body, Proc, Seat};
use crate::seed::{self, Seed};
use crate::space::Space;
use crate::sys::{self, socket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// Free seats that are looked at for one START: those of the last 20 ms may still count ended
/// processes.
const LOOKS: usize = 4;
/// Programs whose rules are kept. Each keeps a file from being freed.
const RULES_MAX: usize = 64;
const SECOND: u64 = 1_000_000_000;
/// Rules that nobody asked for in this time are dropped.
const RULES_IDLE: u64 = 10 * SECOND;
/// A proc that lives for so long will most likely live on, so that its seed would only take memory.
const SEED_PATIENCE: u64 = SECOND;

/// The Landlock rules of a program: the same for each of its procs.
pub struct Known {
    file: (u64, u64),
    rules: Rc<Rules>,
    asked: u64,
}

/// What became of a process that was not a proc's.
pub enum Lost {
    /// The seed of the seat with this key, which is serving a proc.
    Seed(u64),
    /// Something of ours that needs no more attention.
    Ours,
    /// Nothing that is known yet.
    Stranger,
}

impl Factory {
    /// Hands a START to a seat of its purpose, or to one that is made for it.
    pub fn start_seated(
        &mut self,
        plan: &Plan,
        purpose: &Purpose,
        record: &[u8],
        fds: Vec<OwnedFd>,
        received: u64,
    ) -> Result<Proc, Error> {
        let rules = self.rules_for(fds[0].as_raw_fd(), received).map_err(Error::LandlockRules)?;
        let order: Vec<RawFd> = [rules.descriptor()].into_iter().chain(fds.iter().map(AsRawFd::as_raw_fd)).collect();
        let uid = self.uids.choose().ok_or(Error::Uid(Errno(libc::EAGAIN)))?;
        match self.hand_over(plan, purpose, [&uid.to_le_bytes(), record], &order, received) {
            Ok(seat) => Ok(Proc::new(plan.id, uid, Body::Seat(seat), received, fds)),
            Err(error) => {
                self.uids.release(uid);
                Err(error)
            }
        }
    }

    fn hand_over(
        &mut self,
        plan: &Plan,
        purpose: &Purpose,
        record: [&[u8]; 2],
        order: &[RawFd],
        now: u64,
    ) -> Result<Seat, Error> {
        let mut waiting = self.take_ready(plan, purpose, now);
        loop {
            let last = waiting.is_none();
            let mut seat = match waiting {
                Some(seat) => seat,
                None => self.make_seat(purpose, &plan.limits)?,
            };
            let renewed = self.cgroups.renew(&mut seat.leaf, &plan.limits).map_err(Error::Cgroup);
            let handed =
                renewed.and_then(|()| socket::send_with(seat.socket.as_raw_fd(), record, order).map_err(Error::Pipe));
            let Err(error) = handed else { return Ok(seat) };
            self.give_up(seat);
            // One whose seed has died says nothing of the others; a limit that one does not fit in
            // does.
            if last || matches!(error, Error::Cgroup(_)) {
                return Err(error);
            }
            waiting = self.parking.take_next(purpose);
        }
    }

    fn take_ready(&mut self, plan: &Plan, purpose: &Purpose, now: u64) -> Option<Seat> {
        let mut seat = self.parking.take(purpose, &plan.limits, now)?;
        for _ in 0..LOOKS {
            if self.cgroups.is_ready(&seat.leaf, &plan.limits) {
                return Some(seat);
            }
            self.parking.put(purpose, seat);
            seat = self.parking.take_next(purpose)?;
        }
        self.parking.put(purpose, seat);
        None
    }

    fn make_seat(&mut self, purpose: &Purpose, limits: &Limits) -> Result<Seat, Error> {
        let plan = purpose.plan(limits);
        let (socket, orders) = socket::pair().map_err(Error::Pipe)?;
        socket::ask_credentials(&socket).map_err(Error::Pipe)?;
        let leaf = self.cgroups.make_seat_leaf(&purpose.group, limits).map_err(Error::Cgroup)?;
        self.created += 1;
        let key = self.created;
        match self.fork_seed(&plan, key, orders, &leaf) {
            Ok(pid) => {
                self.seeds.insert(pid, key);
                Ok(Seat { key, purpose: purpose.clone(), seed: Some(pid), socket, leaf })
            }
            Err(error) => {
                let _ = self.cgroups.remove_leaf(&leaf);
                Err(error)
            }
        }
    }

    fn fork_seed(&mut self, plan: &Plan, key: u64, orders: OwnedFd, leaf: &Leaf) -> Result<i32, Error> {
        self.open_space()?;
        let Some(space) = &self.space else { return Err(Error::Space(Errno(libc::ESRCH))) };
        let entry = self.cgroups.entry(leaf).map_err(Error::Cgroup)?;
        let forked = space.fork(|| match &entry {
            Entry::Files(_) => sys::fork(0),
            Entry::Birth(cgroup) => sys::fork_into(0, cgroup),
        });
        let pid = forked.map_err(Error::Clone)?;
        if pid == 0 {
            let (secret, null, filter) = (self.secret, self.null.as_raw_fd(), self.filter_of(plan.profile));
            let common = Common {
                templates: &self.templates,
                uid: self.bounds.base,
                launcher: &self.launcher,
                bounding: self.bounds.weaken,
                status: &self.status,
            };
            seed::run(&Seed { plan, key, secret, orders, null, filter }, &common, &entry);
        }
        Ok(pid)
    }

    /// The rules for a program. Making them takes three system calls and some allocations.
    fn rules_for(&mut self, program: RawFd, now: u64) -> sys::Result<Rc<Rules>> {
        let file = sys::identity(program)?;
        if let Some(known) = self.known.iter_mut().find(|known| known.file == file) {
            known.asked = now;
            return Ok(known.rules.clone());
        }
        let rules = Rules::new(self.abi, Reach::Nothing)?;
        rules.allow_program(program)?;
        let rules = Rc::new(rules);
        if self.known.len() >= RULES_MAX
            && let Some(oldest) = (0..self.known.len()).min_by_key(|at| self.known[*at].asked)
        {
            self.known.swap_remove(oldest);
        }
        // As long as the rules are there the file is, so its number means no other.
        self.known.push(Known { file, rules: rules.clone(), asked: now });
        Ok(rules)
    }

    /// Kills everything of a proc. What it forks meanwhile is found when its account is closed.
    pub fn kill(&self, proc: &mut Proc) {
        proc.kill();
        match &mut proc.body {
            Body::Seat(seat) => drop(self.cgroups.kill_members(&mut seat.leaf, seat.seed)),
            // In v1 nothing that is frozen dies.
            Body::Tree(tree) => drop(self.cgroups.thaw(&mut tree.leaf, None)),
        }
    }

    pub fn freeze(&self, proc: &mut Proc) -> sys::Result<()> {
        let (leaf, seed) = proc.leaf_and_seed();
        self.cgroups.freeze(leaf, seed)
    }

    pub fn thaw(&self, proc: &mut Proc) -> sys::Result<()> {
        let (leaf, seed) = proc.leaf_and_seed();
        self.cgroups.thaw(leaf, seed)
    }

    /// Takes the seat of a proc back of which nothing is left.
    pub fn take_back(&mut self, mut seat: Seat, usage: &Usage) {
        if self.cgroups.reuses_leaves() && seat.seed.is_some() && Cgroups::is_clean(usage) {
            let purpose = std::mem::take(&mut seat.purpose);
            match self.parking.give_back(&purpose, Seat { purpose: purpose.clone(), ..seat }) {
                None => return,
                Some(surplus) => seat = surplus,
            }
        }
        self.give_up(seat);
    }

    /// Ends a seat that no proc is in.
    pub fn give_up(&mut self, seat: Seat) {
        match seat.seed {
            // Nobody has waited for it yet, so the number cannot have been reused.
            Some(seed) => {
                let _ = sys::kill(seed, libc::SIGKILL);
                self.leaving.insert(seed, seat.leaf);
            }
            None => self.remove(seat.leaf),
        }
    }

    /// Lets the seeds of procs go that have lived for long. Their seats end with them.
    pub fn spare_seeds<'a>(&mut self, procs: impl Iterator<Item = &'a mut Proc>, now: u64) {
        for proc in procs.filter(|proc| proc.started && now.saturating_sub(proc.received) > SEED_PATIENCE) {
            if let Body::Seat(seat) = &mut proc.body
                && let Some(seed) = seat.seed.take()
            {
                let _ = sys::kill(seed, libc::SIGKILL);
                self.seeds.remove(&seed);
                self.ended_seeds.insert(seed);
                self.cgroups.rest(&mut seat.leaf);
            }
        }
    }

    /// A child that is no proc has been waited for.
    pub fn lost(&mut self, pid: i32) -> Lost {
        if self.space.as_ref().is_some_and(|space| space.init == pid) {
            log("the init of procs has ended, and all of them with it");
            self.space = None;
            return Lost::Ours;
        }
        if self.ended_seeds.remove(&pid) {
            return Lost::Ours;
        }
        let Some(key) = self.seeds.remove(&pid) else { return Lost::Stranger };
        if let Some(seat) = self.parking.lose(|seat| seat.seed == Some(pid)) {
            self.remove(seat.leaf);
        } else if let Some(leaf) = self.leaving.remove(&pid) {
            self.remove(leaf);
        } else {
            return Lost::Seed(key);
        }
        Lost::Ours
    }

    fn remove(&mut self, leaf: Leaf) {
        if self.cgroups.remove_leaf(&leaf) == Err(Errno(libc::EBUSY)) {
            self.doomed.push(leaf);
        }
    }

    /// How soon seats should be made.
    pub fn need(&self) -> Option<Need> {
        self.parking.need()
    }

    /// Makes one seat of those needed. Not having one is never an error.
    pub fn make_parked(&mut self) {
        let Some((purpose, limits)) = self.parking.neediest() else { return };
        match self.make_seat(&purpose, &limits) {
            Ok(seat) => self.parking.put(&purpose, seat),
            Err(_) => self.parking.give_up(&purpose),
        }
    }

    /// When tend wants to be called.
    pub fn next_tick(&self) -> Option<u64> {
        let idle = self.parking.is_empty() && self.doomed.is_empty() && !self.cgroups.has_doomed();
        (!idle).then(|| self.parking.next_tick())
    }

    /// Once a second: fits what is kept to what is asked for.
    pub fn tend(&mut self, now: u64) {
        let scarce = || parking::memory_is_scarce(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
        for seat in self.parking.tick(now, scarce) {
            self.give_up(seat);
        }
        self.known.retain(|known| now.saturating_sub(known.asked) < RULES_IDLE);
        for leaf in std::mem::take(&mut self.doomed) {
            self.remove(leaf);
        }
        self.cgroups.remove_doomed();
    }

    /// Removes a group as soon as nothing is in it.
    pub fn drop_group(&mut self, group: &str, now: u64) {
        for seat in self.parking.drain_group(group) {
            self.give_up(seat);
        }
        self.cgroups.doom(group);
        self.tend(now);
    }

    /// Ends all that waits for a START.
    pub fn discard_parked(&mut self) {
        for seat in self.parking.drain() {
            self.give_up(seat);
        }
    }

    /// Whether some of those ended are not gone yet.
    pub fn leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Makes the PID namespace of procs, if there is none.
    pub fn open_space(&mut self) -> Result<(), Error> {
        if self.space.is_none() {
            self.space = Some(Space::make(&self.templates, self.bounds.base, &self.launcher)?);
        }
        Ok(())
    }

    /// Ends the PID namespace of procs, when there are none any more.
    pub fn end_space(&mut self) {
        if let Some(space) = self.space.take() {
            space.end();
            let _ = sys::wait(space.init, true);
        }
    }
}

//! The placer: a process without rights that places threads of the group that goes first, has
//! another stand aside for them (yielding.rs), and holds groups to their shares (parts.rs). See
//! docs/adr/0067.
//!
//! It holds a socket with the launcher, the directory of the instance's leaves, in which it may
//! only read, and the files of groups that the launcher has opened for it. What it knows it has
//! been told by the launcher, or read in numbers of the kernel's.

mod group;
mod homes;
mod parts;
mod processors;
mod rivals;
mod room;
mod yielding;

#[cfg(test)]
pub use {group::GroupMeter, parts::Parts, rivals::Looked, rivals::Rivals};

use crate::calls;
use crate::cgroup::{Version, list};
use crate::error::{Errno, Error, log};
use crate::filter::{Verdict, compile};
use crate::landlock::{Abi, Reach, Rules};
use crate::notes::{NOTE_MAX, Note, is_within};
use crate::placing::{LEAVES_FD, SOCKET_FD};
use crate::sys::{self, Epoll, cred, socket};
use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};

/// Notes taken before it is looked whether anything is due.
const BATCH: usize = 64;
/// Microseconds that it may compute without a pause, as what goes before others: then the kernel
/// ends it.
const RUN_MOST_US: u64 = 1_000_000;

/// In the process that has just been executed: confines itself, and serves the launcher until that
/// is gone.
pub fn run(uid: Option<OsString>) -> Result<i32, Error> {
    let uid = uid.and_then(|uid| uid.to_str()?.parse().ok()).ok_or(Error::Usage("--placer wants a uid"))?;
    sys::set_name(c"placer");
    // It looks whatever the two groups do; and so it bounds what they do.
    sys::go_first();
    let width = std::thread::available_parallelism().map_or(1, |n| n.get());
    let epoll = Epoll::new().map_err(Error::Loop)?;
    epoll.add(SOCKET_FD, libc::EPOLLIN, 0).map_err(Error::Loop)?;
    confine(uid)?;
    let mut placer = Placer { width, leaves: BTreeSet::new(), yielding: None, parts: None };
    placer.serve(&epoll)
}

fn confine(uid: u32) -> Result<(), Error> {
    let rules =
        Rules::new(Abi::detect().map_err(Error::LandlockRules)?, Reach::Nothing).map_err(Error::LandlockRules)?;
    let proc = sys::openat(libc::AT_FDCWD, c"/proc", libc::O_PATH | libc::O_DIRECTORY).map_err(Error::LandlockRules)?;
    for dir in [proc.as_raw_fd(), LEAVES_FD] {
        rules.allow_reading(dir).map_err(Error::LandlockRules)?;
    }
    drop(proc);
    sys::set_limit(libc::RLIMIT_RTTIME as i32, RUN_MOST_US).map_err(Error::Limits)?;
    cred::drop_groups().map_err(Error::Groups)?;
    cred::drop_bounding().map_err(Error::Bounding)?;
    cred::lock_securebits().map_err(Error::Securebits)?;
    cred::set_gid(uid).map_err(Error::Gid)?;
    cred::set_uid(uid).map_err(Error::Uid)?;
    cred::keep_nice().map_err(Error::Capabilities)?;
    cred::set_no_new_privs().map_err(Error::NoNewPrivs)?;
    cred::set_undumpable().map_err(Error::Dumpable)?;
    // The change of uid has cleared it. A launcher that died before is seen by its socket's end.
    cred::set_death_signal().map_err(Error::DeathSignal)?;
    rules.restrict().map_err(Error::Landlock)?;
    sys::seccomp(&compile(calls::PLACER, Verdict::Kill, 0)).map_err(Error::Seccomp)
}

struct Placer {
    /// Processors of the machine.
    width: usize,
    /// Leaves of procs of the first group, with their groups.
    leaves: BTreeSet<String>,
    yielding: Option<Leading>,
    parts: Option<parts::Parts>,
}

/// One group that goes before another, and where its threads are listed.
struct Leading {
    yielding: yielding::Yielding,
    version: Version,
}

/// The threads of all leaves, and of seeds in them.
fn threads(leaves: &BTreeSet<String>, version: Version) -> Vec<i32> {
    let file = if version == Version::V1 { "tasks" } else { "cgroup.threads" };
    let paths = leaves.iter().filter_map(|leaf| CString::new(format!("{leaf}/{file}")).ok());
    paths.flat_map(|path| list(LEAVES_FD, &path).unwrap_or_default()).collect()
}

impl Placer {
    fn serve(&mut self, epoll: &Epoll) -> Result<i32, Error> {
        let (mut events, mut record) = (Vec::new(), [0; NOTE_MAX]);
        loop {
            epoll.wait(self.timeout_ms(), &mut events).map_err(Error::Loop)?;
            for _ in 0..BATCH {
                let received = match socket::receive(SOCKET_FD, &mut record) {
                    Err(Errno(libc::EAGAIN | libc::EINTR)) => break,
                    Err(errno) => return Err(Error::Loop(errno)),
                    // The launcher is gone.
                    Ok(received) if received.len == 0 => return Ok(0),
                    Ok(received) => received,
                };
                // What does not arrive whole is told again to another placer.
                let whole = !received.short && !received.truncated;
                let note = Note::decode(&record[..received.len]).filter(|_| whole);
                self.note(note.ok_or(Error::Malformed("a note"))?, received.fds)?;
            }
            self.look();
        }
    }

    fn timeout_ms(&self) -> i32 {
        let looks = self.yielding.as_ref().and_then(|leading| leading.yielding.next_look());
        let next = looks.into_iter().chain(self.parts.as_ref().and_then(parts::Parts::next_look)).min();
        next.map_or(-1, |time| match time.saturating_sub(sys::monotonic_ns()) {
            0 => 0,
            ns => (ns / 1_000_000) as i32 + 1,
        })
    }

    fn note(&mut self, note: Note, files: Vec<OwnedFd>) -> Result<(), Error> {
        match note {
            Note::Yield { version, again, knobs, first, second } => {
                if let Some(mut leading) = self.yielding.take() {
                    leading.yielding.end(|| threads(&self.leaves, leading.version));
                }
                self.leaves.clear();
                match &mut self.parts {
                    Some(parts) if parts.is_of(&second) => parts.leave_all(),
                    parts => *parts = Some(parts::Parts::new(&second)),
                }
                if knobs != 0 {
                    match rivals::Rivals::new(version, [&first, &second], knobs, files, self.width) {
                        Ok(rivals) => {
                            let yielding = yielding::Yielding::new(&first, &second, rivals, again);
                            self.yielding = Some(Leading { yielding, version });
                        }
                        Err(errno) => log(&format!("procs do not stand aside for others: {errno}")),
                    }
                }
            }
            Note::Share { version, shares, group } => {
                let files = files.try_into().map_err(|_| Error::Malformed("a share without its files"))?;
                if let Some(parts) = &mut self.parts {
                    parts.share(&group, shares, group::GroupMeter::new(version, files));
                }
            }
            Note::Unknown { group } => self.parts.iter_mut().for_each(|parts| parts.unknown(&group)),
            Note::Lifted { group } => {
                self.yielding.iter_mut().for_each(|leading| leading.yielding.bound_lifted(&group))
            }
            Note::Drop { group } => self.parts.iter_mut().for_each(|parts| parts.drop(&group)),
            Note::Enter { group, leaf } => {
                if let Some(Leading { yielding, .. }) = &mut self.yielding {
                    if is_within(&group, yielding.first()) {
                        self.leaves.insert(format!("{group}/{leaf}"));
                    }
                    yielding.enter(&group);
                }
                self.parts.iter_mut().for_each(|parts| parts.enter(&group));
            }
            Note::Leave { group, leaf } => {
                self.leaves.remove(&format!("{group}/{leaf}"));
                self.yielding.iter_mut().for_each(|leading| leading.yielding.leave(&group));
                self.parts.iter_mut().for_each(|parts| parts.leave(&group));
            }
        }
        Ok(())
    }

    /// The loops' turns, if they are due.
    fn look(&mut self) {
        let now = sys::monotonic_ns();
        if let Some(parts) = self.parts.as_mut().filter(|parts| parts.next_look().is_some_and(|time| time <= now)) {
            parts.look(now);
        }
        let now = sys::monotonic_ns();
        let Some(Leading { yielding, version }) = &mut self.yielding else { return };
        if yielding.next_look().is_some_and(|time| time <= now)
            && let Some(sums) = yielding.look(now, || threads(&self.leaves, *version))
        {
            // If there is no room the launcher will be told the next time.
            let _ = socket::send(SOCKET_FD, &sums.encode());
        }
    }
}

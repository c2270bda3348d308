//! A seed: the contained process from which the procs of a seat grow, one after the other.
//!
//! Everything that a START does not decide is done once, in the seed: cgroup leaf, namespaces,
//! closed descriptors, limits, gid, empty bounding set, NO_NEW_PRIVS, filter. A START's process is
//! born with all of it: the seed clones it in its own memory (vfork) as a child of the launcher,
//! and it takes a session, a uid, its descriptors and the Landlock rules for its program, and
//! executes. So one process is made for a start, no memory is copied, no filter loaded, no cgroup
//! entered. Exec leaves the seed's memory behind; nothing of it reaches a program.
//!
//! A seed keeps uid 0, because of its capabilities only that of changing the uid is left, and a
//! change from 0 takes this one away. It runs nothing but this file.

use crate::calls::{PROGRAM_FD, RULES_FD, SEED_CLONE};
use crate::cgroup::Entry;
use crate::child::{self, ASIDE};
use crate::error::{Errno, Error};
use crate::init::{self, Common};
use crate::landlock;
use crate::namespaces;
use crate::plan::{self, Plan, Weaken};
use crate::protocol::{self, MESSAGE_MAX, Request, Start};
use crate::status::{News, Status};
use crate::sys::socket::{self, Received};
use crate::sys::{self, Pointers, cred};
use libc::sock_filter;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

/// Where a seed keeps the pipe on which it reports; above every target. Close-on-exec.
const STATUS_FD: RawFd = 64;
/// Where its STARTs come. Close-on-exec.
const ORDERS_FD: RawFd = 65;
/// For a START's process until exec. Its deepest call is exec with pointers that are ready.
const STACK: usize = 64 * 1024;

pub struct Seed<'a> {
    /// What all procs of the seat have in common.
    pub plan: &'a Plan,
    /// The seat's.
    pub key: u64,
    /// Asked for by the filter.
    pub secret: u64,
    pub orders: OwnedFd,
    pub null: RawFd,
    pub filter: &'a [sock_filter],
}

/// What precedes a START's own bytes: the uid of its proc.
pub const PREFIX: usize = 4;

/// In the forked process: becomes a seed and serves STARTs until the launcher ends it.
pub fn run(seed: &Seed, common: &Common, entry: &Entry) -> ! {
    let mut status = common.status.as_raw_fd();
    let Err(error) = become_seed(seed, common, entry, &mut status).and_then(|()| serve(seed));
    let _ = sys::write(status, &Status { key: seed.key, news: News::Failed(error) }.encode());
    sys::exit(127)
}

fn become_seed(seed: &Seed, common: &Common, entry: &Entry, status: &mut RawFd) -> Result<(), Error> {
    init::enter(common, Weaken::default(), entry)?;
    // Of its procs, too, which have no way to change it.
    init::prefer_when_memory_is_gone().map_err(Error::Limits)?;
    namespaces::enter(&common.templates.empty_root, libc::CLONE_NEWNS).map_err(Error::Namespaces)?;
    sys::reset_signals().map_err(Error::Signals)?;
    sys::setsid().map_err(Error::Session)?;
    place_descriptors(seed, status).map_err(Error::Descriptors)?;
    sys::umask(0o077);
    sys::chdir(c"/").map_err(Error::Directory)?;
    child::set_limits(seed.plan).map_err(Error::Limits)?;
    cred::drop_groups().map_err(Error::Groups)?;
    cred::drop_bounding().map_err(Error::Bounding)?;
    cred::lock_securebits_of_root().map_err(Error::Securebits)?;
    cred::set_gid(seed.plan.gid).map_err(Error::Gid)?;
    cred::keep_setuid().map_err(Error::Capabilities)?;
    cred::set_no_new_privs().map_err(Error::NoNewPrivs)?;
    cred::set_undumpable().map_err(Error::Dumpable)?;
    sys::seccomp(seed.filter).map_err(Error::Seccomp)
}

/// Closes everything but the null device as 0, 1 and 2 and the two descriptors that a seed needs.
fn place_descriptors(seed: &Seed, status: &mut RawFd) -> sys::Result<()> {
    let aside = |fd: RawFd| sys::dup_above(fd, ASIDE).map(IntoRawFd::into_raw_fd);
    let (null, orders) = (aside(seed.null)?, aside(seed.orders.as_raw_fd())?);
    sys::dup3(aside(*status)?, STATUS_FD, libc::O_CLOEXEC)?;
    *status = STATUS_FD;
    sys::dup3(orders, ORDERS_FD, libc::O_CLOEXEC)?;
    for number in 0..3 {
        sys::dup3(null, number, 0)?;
    }
    sys::close_all_but(&mut [0, 1, 2, STATUS_FD, ORDERS_FD])
}

fn serve(seed: &Seed) -> Result<std::convert::Infallible, Error> {
    let record = sys::map(MESSAGE_MAX + PREFIX, 0).map_err(Error::Plan)?;
    let stack = sys::map(STACK, libc::MAP_STACK).map_err(Error::Plan)?;
    let hard = sys::hard_limit(libc::RLIMIT_NPROC as i32).map_err(Error::Limits)?;
    let processes = hard.min(seed.plan.limits.pids as u64);
    loop {
        let received = match socket::receive_waiting(ORDERS_FD, record) {
            Err(Errno(libc::EINTR)) => continue,
            Ok(received) if received.len > PREFIX => received,
            // The seat is given up.
            _ => sys::exit(0),
        };
        let news = match start(seed, processes, stack, &record[..received.len], received) {
            Ok(contained) => News::Started { contained, exec: sys::monotonic_ns() },
            Err(error) => News::Failed(error),
        };
        let status = Status { key: seed.key, news };
        sys::write(STATUS_FD, &status.encode()).map_err(Error::Pipe)?;
    }
}

/// Has a START's process execute its program; returns the time before that. What is allocated is
/// allocated, and freed, here: the process itself only makes system calls.
fn start(seed: &Seed, processes: u64, stack: &mut [u8], record: &[u8], received: Received) -> Result<u64, Error> {
    let (uid, record) = record.split_first_chunk::<PREFIX>().ok_or(Error::Plan(Errno(libc::EPROTO)))?;
    // The launcher has checked it, but this is another process: nothing is taken on trust.
    let Ok(Request::Start(start)) = protocol::decode(record) else {
        return Err(Error::Plan(Errno(libc::EPROTO)));
    };
    let Start { targets, argv, envp, .. } = start;
    let mut work = Work::new(u32::from_le_bytes(*uid), processes, &received.fds, plan::check_targets(&targets)?)?;
    let (argv, envp) = (plan::c_strings(argv)?, plan::c_strings(envp)?);
    let (argv, envp) = (Pointers::new(&argv), Pointers::new(&envp));
    let mut outcome = Outcome { contained: 0, error: Error::Child(Errno(libc::ECHILD)) };
    let mut grow = || {
        let Err(error) = work.become_program(seed, &argv, &envp, &mut outcome.contained);
        (outcome.contained, outcome.error) = (0, error);
        sys::exit(127)
    };
    // SAFETY: the closure makes system calls and writes to locals of this function, drops nothing,
    // and ends the process or executes a program.
    unsafe { sys::clone_and_wait(SEED_CLONE, stack, seed.secret, &mut grow) }.map_err(Error::Fork)?;
    // Written by the other process meanwhile.
    let outcome = std::hint::black_box(&mut outcome);
    if outcome.contained != 0 { Ok(outcome.contained) } else { Err(outcome.error) }
}

struct Outcome {
    contained: u64,
    error: Error,
}

/// What a START's process has to do.
struct Work {
    uid: u32,
    /// At most.
    processes: u64,
    rules: RawFd,
    program: RawFd,
    /// (number now, number in the program).
    moves: Vec<(RawFd, RawFd)>,
}

impl Work {
    fn new(uid: u32, processes: u64, fds: &[OwnedFd], targets: Vec<RawFd>) -> Result<Work, Error> {
        if fds.len() != 2 + targets.len() {
            return Err(Error::Descriptors(Errno(libc::EBADF)));
        }
        let (rules, program) = (fds[0].as_raw_fd(), fds[1].as_raw_fd());
        let moves = fds[2..].iter().map(AsRawFd::as_raw_fd).zip(targets).collect();
        Ok(Work { uid, processes, rules, program, moves })
    }

    fn become_program(
        &mut self,
        seed: &Seed,
        argv: &Pointers,
        envp: &Pointers,
        contained: &mut u64,
    ) -> Result<std::convert::Infallible, Error> {
        // The kernel writes the number that this process has for the launcher beside the byte.
        socket::send(ORDERS_FD, &[0]).map_err(Error::Pipe)?;
        sys::setsid().map_err(Error::Session)?;
        cred::set_uid_by(self.uid, seed.secret).map_err(Error::Uid)?;
        // Only now, since a seed is root's, or the user's, of whom there may be many processes.
        sys::lower_limit_by(libc::RLIMIT_NPROC as i32, self.processes, seed.secret).map_err(Error::Limits)?;
        self.place_descriptors().map_err(Error::Descriptors)?;
        landlock::restrict_by(RULES_FD).map_err(Error::Landlock)?;
        *contained = sys::monotonic_ns();
        Err(Error::Exec(sys::exec(PROGRAM_FD, argv, envp, seed.secret)))
    }

    /// Puts the START's descriptors where they belong: the ruleset, the program, the targets'. They
    /// came under the lowest free numbers and with close-on-exec, as all others but 0, 1 and 2 are,
    /// so exec closes what is not placed. 0, 1 and 2 are the null device unless they are targets.
    fn place_descriptors(&mut self) -> sys::Result<()> {
        sys::dup3(self.rules, RULES_FD, libc::O_CLOEXEC)?;
        sys::dup3(self.program, PROGRAM_FD, libc::O_CLOEXEC)?;
        for at in 0..self.moves.len() {
            let (source, target) = self.moves[at];
            if let Some(waiting) = self.moves[at + 1..].iter_mut().find(|(source, _)| *source == target) {
                waiting.0 = sys::dup_above(target, ASIDE)?.into_raw_fd();
            }
            match source == target {
                true => sys::clear_cloexec(target)?,
                false => sys::dup3(source, target, 0)?,
            }
        }
        Ok(())
    }
}

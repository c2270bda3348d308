//! Identity and capabilities of the calling process.

use super::{Result, call, prctl};
use crate::error::Errno;

/// All securebits that a process without capabilities should have, each locked: root is nobody
/// special, changing uid gives nothing back, capabilities are not kept, ambient ones not raised.
const SECUREBITS: usize = 0xef;

pub fn drop_groups() -> Result<()> {
    // SAFETY: a count of zero reads nothing.
    unsafe { call(libc::SYS_setgroups, [0; 5]) }.map(drop)
}

pub fn set_gid(gid: u32) -> Result<()> {
    let gid = gid as usize;
    // SAFETY: the call takes plain numbers.
    unsafe { call(libc::SYS_setresgid, [gid, gid, gid, 0, 0]) }.map(drop)
}

pub fn set_uid(uid: u32) -> Result<()> {
    let uid = uid as usize;
    // SAFETY: the call takes plain numbers.
    unsafe { call(libc::SYS_setresuid, [uid, uid, uid, 0, 0]) }.map(drop)
}

/// Drops every capability the kernel knows from the bounding set.
pub fn drop_bounding() -> Result<()> {
    for cap in 0..64 {
        // Asking is cheaper than dropping, and most processes here inherit an empty set.
        match prctl(libc::PR_CAPBSET_READ, [cap, 0, 0, 0]) {
            Ok(0) => {}
            Ok(_) => drop(prctl(libc::PR_CAPBSET_DROP, [cap, 0, 0, 0])?),
            // The first number beyond the kernel's last capability.
            Err(Errno(libc::EINVAL)) if cap > 30 => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub fn lock_securebits() -> Result<()> {
    prctl(libc::PR_SET_SECUREBITS, [SECUREBITS, 0, 0, 0]).map(drop)
}

/// Those of a process whose children still change their uid, and thereby lose every capability:
/// all, but for the one by which they would not, which is locked where it is.
pub fn lock_securebits_of_root() -> Result<()> {
    prctl(libc::PR_SET_SECUREBITS, [SECUREBITS & !SECBIT_NO_SETUID_FIXUP, 0, 0, 0]).map(drop)
}

const SECBIT_NO_SETUID_FIXUP: usize = 1 << 2;
const CAP_SETUID: u32 = 7;

/// Keeps of all capabilities that of changing one's uid.
pub fn keep_setuid() -> Result<()> {
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as usize;
    prctl(libc::PR_CAP_AMBIENT, [clear, 0, 0, 0])?;
    capset([1 << CAP_SETUID, 1 << CAP_SETUID, 0, 0, 0, 0])
}

const CAP_SETGID: u32 = 6;
const CAP_SETPCAP: u32 = 8;
const CAP_SYS_NICE: u32 = 23;

/// Has exec leave root those capabilities by which the placer confines itself (placer.rs), and that
/// of placing other users' threads, as far as they are there. To be called before the bounding set
/// is emptied, without which exec leaves none. Programs get none of them: whoever executes one has
/// emptied all sets.
pub fn pass_on_to_placer() -> Result<()> {
    let permitted = permitted()?;
    let wanted = [CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_SYS_NICE].iter().fold(0, |set, cap| set | 1 << cap);
    let [low, high] = [permitted as u32, (permitted >> 32) as u32];
    capset([low, low, low & wanted, high, high, 0])
}

/// Keeps of all capabilities that of placing threads, if it is there, for this program alone.
pub fn keep_nice() -> Result<()> {
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as usize;
    prctl(libc::PR_CAP_AMBIENT, [clear, 0, 0, 0])?;
    let nice = permitted()? as u32 & 1 << CAP_SYS_NICE;
    capset([nice, nice, 0, 0, 0, 0])
}

/// As set_uid, with a key that a filter asks for.
pub fn set_uid_by(uid: u32, key: u64) -> Result<()> {
    let uid = uid as usize;
    // SAFETY: the call takes plain numbers.
    unsafe { call(libc::SYS_setresuid, [uid, uid, uid, key as usize, 0]) }.map(drop)
}

/// The kernel's version 3 header and two halves of {effective, permitted, inheritable}.
fn capset(sets: [u32; 6]) -> Result<()> {
    let header = [0x2008_0522u32, 0];
    let args = [header.as_ptr() as usize, sets.as_ptr() as usize, 0, 0, 0];
    // SAFETY: header and data are live arrays of the sizes that version 3 reads.
    unsafe { call(libc::SYS_capset, args) }.map(drop)
}

/// The capabilities that this process may have.
fn permitted() -> Result<u64> {
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    let args = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: header and data are live arrays of the sizes that version 3 uses.
    unsafe { call(libc::SYS_capget, args) }?;
    Ok(sets[1] as u64 | (sets[4] as u64) << 32)
}

/// Empties the effective, permitted, inheritable and ambient sets.
pub fn drop_capabilities() -> Result<()> {
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as usize;
    prctl(libc::PR_CAP_AMBIENT, [clear, 0, 0, 0])?;
    capset([0; 6])
}

/// Weakened starts only: lets the permitted set survive the change of uid.
pub fn keep_capabilities() -> Result<()> {
    prctl(libc::PR_SET_KEEPCAPS, [1, 0, 0, 0]).map(drop)
}

/// Weakened starts only: makes every permitted capability effective and lets it survive the exec.
pub fn raise_capabilities() -> Result<()> {
    let permitted = permitted()?;
    let [low, high] = [permitted as u32, (permitted >> 32) as u32];
    capset([low, low, low, high, high, high])?;
    for cap in (0..64).filter(|cap| permitted & (1 << cap) != 0) {
        prctl(libc::PR_CAP_AMBIENT, [libc::PR_CAP_AMBIENT_RAISE as usize, cap, 0, 0])?;
    }
    Ok(())
}

pub fn set_no_new_privs() -> Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, [1, 0, 0, 0]).map(drop)
}

pub fn set_undumpable() -> Result<()> {
    prctl(libc::PR_SET_DUMPABLE, [0; 4]).map(drop)
}

pub fn set_death_signal() -> Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, [libc::SIGKILL as usize, 0, 0, 0]).map(drop)
}

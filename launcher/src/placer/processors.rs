//! On which processors a thread may run.

use crate::sys::{Result, check};
use libc::{c_long, cpu_set_t};

/// Those on which a thread may run, 0 for the calling one, by their numbers. EINVAL: there are more
/// than 1024.
pub fn affinity(tid: i32) -> Result<Vec<usize>> {
    // SAFETY: the set is plain bits, for which all zeroes is a value.
    let mut set: cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local of the size passed.
    check(unsafe { libc::sched_getaffinity(tid, size_of::<cpu_set_t>(), &mut set) } as c_long)?;
    // SAFETY: the numbers are below the bits of the set.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&n| unsafe { libc::CPU_ISSET(n, &set) }).collect())
}

/// Lets a thread run on these only, which come from `affinity`.
pub fn set_affinity(tid: i32, processors: &[usize]) -> Result<()> {
    // SAFETY: the set is plain bits, for which all zeroes is a value.
    let mut set: cpu_set_t = unsafe { std::mem::zeroed() };
    for &n in processors.iter().filter(|&&n| n < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below the bits of the set.
        unsafe { libc::CPU_SET(n, &mut set) };
    }
    // SAFETY: the pointer is to a local of the size passed.
    check(unsafe { libc::sched_setaffinity(tid, size_of::<cpu_set_t>(), &set) } as c_long).map(drop)
}

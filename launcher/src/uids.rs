//! Which uids live procs have.

use crate::plan::{Bounds, PROC_FIRST};
use std::collections::HashMap;

pub struct Uids {
    base: u32,
    /// The upper half of the range is left to the gids of realms, which sigmad chooses.
    end: u32,
    next: u32,
    /// How many live procs have it: a START may name one that is in use.
    used: HashMap<u32, u32>,
}

impl Uids {
    pub fn new(bounds: Bounds) -> Uids {
        Uids { base: bounds.base, end: bounds.uids / 2, next: PROC_FIRST, used: HashMap::new() }
    }

    /// A uid that no live proc has. They go round, so that one is used again as late as possible:
    /// whatever a proc left somewhere should not find a new owner soon. None when all are in use.
    pub fn choose(&mut self) -> Option<u32> {
        for _ in PROC_FIRST..self.end {
            let uid = self.base + self.next;
            self.next = if self.next + 1 == self.end { PROC_FIRST } else { self.next + 1 };
            if !self.used.contains_key(&uid) {
                self.hold(uid);
                return Some(uid);
            }
        }
        None
    }

    pub fn hold(&mut self, uid: u32) {
        *self.used.entry(uid).or_insert(0) += 1;
    }

    pub fn release(&mut self, uid: u32) {
        if let Some(count) = self.used.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.used.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::UIDS;

    #[test]
    fn they_go_round_and_pass_by_those_in_use() {
        let mut uids = Uids::new(Bounds::new(0, false));
        let first = uids.choose().unwrap();
        assert_eq!(first, (1 << 30) + PROC_FIRST);
        uids.hold(first + 1);
        uids.hold(first + 1);
        assert_eq!(uids.choose(), Some(first + 2));
        uids.release(first + 2);
        assert_eq!(uids.choose(), Some(first + 3), "not at once again");
        uids.release(first + 1);
        for _ in first + 4..(1 << 30) + UIDS / 2 {
            let uid = uids.choose().unwrap();
            uids.release(uid);
        }
        assert_eq!(uids.choose(), Some(first + 2), "the first two are still in use");
        uids.release(first + 1);
        uids.release(first + 1);
        assert_eq!(uids.used.len(), 3);
    }
}

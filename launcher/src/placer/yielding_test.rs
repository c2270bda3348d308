//! The group around the second, as looks see and move it.

use super::*;
use crate::cgroup::Version;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

/// What the kernel is told stays in files, one behind the other.
struct Host {
    yielding: Yielding,
    used: File,
    idle: File,
    /// The descriptor by which it is written.
    class: RawFd,
    weight: File,
    now: u64,
    sum: u64,
}

fn file() -> File {
    // SAFETY: the name is a C string; the descriptor is nobody else's.
    unsafe { File::from_raw_fd(libc::memfd_create(c"group".as_ptr(), libc::MFD_CLOEXEC)) }
}

impl Host {
    fn new() -> Host {
        let nothing = sys::openat(libc::AT_FDCWD, c"/dev/null", libc::O_WRONLY).unwrap();
        let [used, idle, weight] = [file(), file(), file()];
        let of = |file: &File| -> OwnedFd { file.try_clone().unwrap().into() };
        let rivals = Rivals::for_test(Version::V1, nothing);
        let written = of(&idle);
        let class = written.as_raw_fd();
        let rivals = rivals.within("rest", of(&used), written, (of(&weight), "4096"));
        let yielding = Yielding::new("lc", "rest/be", rivals, false);
        let mut host = Host { yielding, used, idle, class, weight, now: 1000 * MS, sum: 0 };
        host.yielding.enter("lc");
        host.yielding.enter("rest/be/one");
        host
    }

    /// Looks whenever one is due, for so long, while the group around has so many hundredths of all
    /// processors.
    fn run(&mut self, time: u64, part: u64) {
        let until = self.now + time;
        while let Some(next) = self.yielding.next_look().filter(|next| *next <= until) {
            self.pass(next, part);
            self.used.write_all_at(format!("{:20}\n", self.sum).as_bytes(), 0).unwrap();
            self.yielding.look(self.now, Vec::new);
        }
        self.pass(until, part);
    }

    fn pass(&mut self, until: u64, part: u64) {
        let over = until.saturating_sub(self.now);
        self.now += over;
        self.sum += over * self.yielding.rivals.width() as u64 * part / 100;
    }

    /// From now on the class is written to this file.
    fn put(&self, file: &File) {
        // SAFETY: no pointers are involved; both are open.
        assert!(unsafe { libc::dup3(file.as_raw_fd(), self.class, libc::O_CLOEXEC) } >= 0);
    }

    /// What was written to the class since the last time.
    fn told(&self) -> String {
        let (mut text, mut idle) = (String::new(), &self.idle);
        idle.seek(SeekFrom::Start(0)).unwrap();
        idle.read_to_string(&mut text).unwrap();
        idle.set_len(0).unwrap();
        idle.seek(SeekFrom::Start(0)).unwrap();
        text
    }
}

#[test]
fn daemons_stand_aside_while_they_get_enough() {
    let mut host = Host::new();
    assert_eq!(host.told(), "", "not looked at yet");
    host.run(500 * MS, 30);
    assert_eq!(host.told(), "1");
    host.run(300 * MS, 0);
    assert_eq!(host.told(), "0", "they get nothing");
    let mut weight = String::new();
    (&host.weight).seek(SeekFrom::Start(0)).unwrap();
    (&host.weight).read_to_string(&mut weight).unwrap();
    assert_eq!(weight, "4096");
    host.run(500 * MS, 30);
    assert_eq!(host.told(), "", "not at once again");
    host.run(1000 * MS, 30);
    assert_eq!(host.told(), "1");
}

#[test]
fn best_effort_work_that_comes_and_goes_does_not_cost_daemons_their_class() {
    let mut host = Host::new();
    host.run(500 * MS, 30);
    host.yielding.leave("rest/be/one");
    assert_eq!(host.told(), "10");
    assert!(host.yielding.next_look().is_none());
    host.yielding.enter("rest/be/one");
    host.run(5000 * MS, 0);
    assert_eq!(host.told(), "10", "the first group took all meanwhile");
    for _ in 0..20 {
        host.yielding.leave("rest/be/one");
        host.yielding.enter("rest/be/one");
        host.run(20 * MS, 0);
    }
    assert_eq!(host.told(), "", "each that comes finds that known");
}

#[test]
fn room_is_looked_at_whatever_looks_at_threads_cost() {
    let mut host = Host::new();
    host.run(500 * MS, 30);
    assert_eq!(host.told(), "1");
    host.yielding.next = host.now + 60_000 * MS;
    let looks = host.yielding.sums.looks;
    host.run(200 * MS, 0);
    assert_eq!(host.told(), "0");
    assert_eq!(host.yielding.sums.looks, looks, "threads were not looked at");
}

#[test]
fn what_daemons_use_must_be_known() {
    let mut host = Host::new();
    host.run(500 * MS, 30);
    assert_eq!(host.told(), "1");
    host.used.set_len(0).unwrap();
    let next = host.yielding.next_look().unwrap();
    host.yielding.look(next, Vec::new);
    assert_eq!(host.told(), "0");
}

#[test]
fn a_class_that_the_kernel_refuses_is_tried_again() {
    let mut host = Host::new();
    host.run(500 * MS, 30);
    assert_eq!(host.told(), "1");
    // SAFETY: no pointers are involved; the descriptor is nobody else's. An eventfd refuses what is
    // shorter than a number.
    let refusing = unsafe { File::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    host.put(&refusing);
    host.run(300 * MS, 0);
    assert_eq!(host.yielding.idle, [Some(true), None]);
    host.put(&host.idle);
    host.run(TICK.max(REST), 0);
    assert_eq!(host.told(), "0");
    host.run(1200 * MS, 30);
    assert_eq!(host.told(), "1");
    host.put(&refusing);
    host.yielding.leave("rest/be/one");
    host.run(50 * MS, 30);
    assert!(host.yielding.next_look().is_some(), "also when nobody has to stand aside any more");
    host.put(&host.idle);
    host.run(50 * MS, 30);
    assert_eq!(host.told(), "0");
    assert!(host.yielding.next_look().is_none());
}

use super::*;
use crate::protocol::Start;

fn start() -> Start {
    Start {
        id: 7,
        uid: 0x4010_0000 + 1024,
        gid: 0x4010_0000 + 2000,
        pids_max: 16,
        memory_max: 1 << 26,
        cpu_shares: 512,
        nofile: 128,
        targets: vec![1, 2, 3],
        group: b"default/be".to_vec(),
        argv: vec![b"hello".to_vec(), b"".to_vec()],
        envp: vec![b"A=1".to_vec()],
        ..Start::default()
    }
}

type Change = fn(&mut Start);

const BOUNDS: Bounds = Bounds { base: 0x4010_0000, uids: UIDS, weaken: true };

/// What a plan says, case by case, is compared with testdata/plans.txt. A change there is a change
/// of behaviour; REWRITE=1 writes the file anew.
#[test]
fn plans_are_as_recorded() {
    let cases: [(&str, Change); 10] = [
        ("a proc", |_| ()),
        ("zeroes stand for defaults", |s| {
            (s.pids_max, s.memory_max, s.cpu_shares, s.nofile) = (0, 0, 0, 0);
        }),
        ("a system program", |s| (s.profile, s.uid, s.gid) = (1, BOUNDS.base + 2, BOUNDS.base + 2)),
        ("a system program in a directory of its own", |s| {
            (s.profile, s.uid, s.gid, s.subdir) = (1, BOUNDS.base + 2, BOUNDS.base + 2, b"r1".to_vec());
        }),
        ("shares are kept within the kernel's range", |s| s.cpu_shares = u32::MAX),
        ("weakened", |s| s.weaken = 1 | 2 | 128),
        ("the last uid", |s| s.uid = BOUNDS.base + UIDS - 1),
        ("four elements", |s| s.group = b"a/b-1/c/d".to_vec()),
        ("a uid of the launcher's choice", |s| s.uid = 0),
        ("all targets", |s| s.targets = (0..64).collect()),
    ];
    let mut got = String::new();
    for (name, change) in cases {
        let mut start = start();
        change(&mut start);
        got += &format!("# {name}\n{:?}\n\n", plan(start, BOUNDS));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/plans.txt");
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(&path, &got).unwrap();
    }
    assert_eq!(got, std::fs::read_to_string(&path).unwrap_or_default());
}

#[test]
fn unlawful_starts_are_refused() {
    let cases: [(&str, Change, i32); 20] = [
        ("unknown profile", |s| s.profile = 3, libc::EINVAL),
        ("sigmad's own id", |s| s.id = SIGMAD_ID, libc::EINVAL),
        ("root", |s| (s.profile, s.uid, s.gid) = (1, 0, BOUNDS.base + 2), libc::ERANGE),
        ("init's uid", |s| s.uid = BOUNDS.base, libc::ERANGE),
        ("a program's uid for a proc", |s| s.uid = BOUNDS.base + 1, libc::ERANGE),
        ("a proc's uid for a program", |s| s.profile = 1, libc::ERANGE),
        ("a foreign instance's uid", |s| s.uid = BOUNDS.base + UIDS, libc::ERANGE),
        ("root's group", |s| s.gid = 0, libc::ERANGE),
        ("a program's group for a proc", |s| s.gid = BOUNDS.base + 1, libc::ERANGE),
        ("the parent directory", |s| s.group = b"..".to_vec(), libc::EINVAL),
        ("an absolute path", |s| s.group = b"/a".to_vec(), libc::EINVAL),
        ("no group", |s| s.group.clear(), libc::EINVAL),
        ("five elements", |s| s.group = b"a/b/c/d/e".to_vec(), libc::EINVAL),
        (
            "a path below the data directory",
            |s| (s.profile, s.uid, s.gid, s.subdir) = (1, BOUNDS.base + 2, BOUNDS.base + 2, b"a/b".to_vec()),
            libc::EINVAL,
        ),
        (
            "the directory above the data",
            |s| (s.profile, s.uid, s.gid, s.subdir) = (1, BOUNDS.base + 2, BOUNDS.base + 2, b"..".to_vec()),
            libc::EINVAL,
        ),
        ("a data directory for a proc", |s| s.subdir = b"a".to_vec(), libc::EINVAL),
        ("the launcher's own group", |s| s.group = b"rest/launcher/x".to_vec(), libc::EINVAL),
        ("the launcher's own group itself", |s| s.group = b"rest/launcher".to_vec(), libc::EINVAL),
        ("no argv", |s| s.argv.clear(), libc::EINVAL),
        ("a zero byte", |s| s.envp = vec![b"A\0B".to_vec()], libc::EINVAL),
    ];
    for (name, change, errno) in cases {
        let mut start = start();
        change(&mut start);
        assert_eq!(plan(start, BOUNDS), Err(Error::Plan(Errno(errno))), "{name}");
    }
    for targets in [vec![1, 1], vec![64], vec![u32::MAX]] {
        let start = Start { targets, ..start() };
        assert_eq!(plan(start, BOUNDS), Err(Error::Plan(Errno(libc::EBADF))));
    }
}

#[test]
fn weakening_needs_leave_and_sense() {
    let weak = |weaken, bounds| plan(Start { weaken, ..start() }, bounds).map(|_| ());
    let refused = |errno| Err(Error::Weaken(Errno(errno)));
    assert_eq!(weak(1, Bounds { weaken: false, ..BOUNDS }), refused(libc::EPERM));
    assert_eq!(weak(512, BOUNDS), refused(libc::EINVAL));
    assert_eq!(weak(128, BOUNDS), refused(libc::EINVAL));
    assert_eq!(weak(128 | 1, BOUNDS), refused(libc::EINVAL));
    assert_eq!(weak(128 | 64, BOUNDS), Ok(()));
    assert_eq!(weak(511, BOUNDS), Ok(()));
}

#[test]
fn instances_own_disjoint_uids() {
    assert_eq!(Bounds::new(0, false).base, 0x4000_0000);
    assert_eq!(Bounds::new(0x401, false).base, 0x4010_0000);
    assert_eq!(Bounds::new(u32::MAX, false).base, 0x7ff0_0000);
}

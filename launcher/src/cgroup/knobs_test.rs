//! What is written to which files of a group that stands aside, in directories that only look like
//! cgroups: so version 2 is tested where the machine has version 1.

use super::*;
use crate::placer::{GroupMeter, Looked, Parts, Rivals};
use crate::protocol::GroupShare;

/// Ends with its directory.
struct Fake {
    dir: PathBuf,
    cgroups: Cgroups,
}

impl Fake {
    fn new(version: Version) -> Fake {
        Fake::of(version, "aside", &["lc", "rest/be", "rest"])
    }

    fn of(version: Version, test: &str, groups: &[&str]) -> Fake {
        let dir = std::env::temp_dir().join(format!("sigma-knobs-{}-{version:?}-{test}", sys::getpid()));
        let files: &[&str] = match version {
            Version::V1 => &["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuacct.usage"],
            Version::V2 => &["cpu.weight", "cpu.max", "cpu.stat", "cpu.pressure", "io.weight", "io.bfq.weight"],
        };
        for group in groups {
            let group = dir.join("sigma-fake").join(group);
            std::fs::create_dir_all(&group).unwrap();
            for file in files.iter().chain(&["cpu.idle"]) {
                std::fs::write(group.join(file), "").unwrap();
            }
        }
        use Controller::{Accounting, Cpu, Memory, Pids};
        let hierarchies = vec![Hierarchy { path: dir.clone(), controllers: vec![Memory, Pids, Cpu, Accounting] }];
        let name = "sigma-fake".to_string();
        let groups = HashMap::new();
        let doomed = Default::default();
        Fake { dir, cgroups: Cgroups { version, hierarchies, freezer: None, name, groups, named: 0, doomed } }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.join("sigma-fake").join(file)
    }

    /// All that was written since `clear`, one behind the other.
    fn written(&self, file: &str) -> String {
        std::fs::read_to_string(self.path("rest/be").join(file)).unwrap()
    }

    fn clear(&self, file: &str) {
        std::fs::write(self.path("rest/be").join(file), "").unwrap();
    }

    fn share(&mut self) {
        let share = GroupShare { cpu_shares: 2, quota_milli: 500, idle: 0, group: b"rest/be".to_vec() };
        self.cgroups.share_group(&share).unwrap();
    }

    /// Has it stand aside, be bounded, and be free again.
    fn aside(&mut self) -> Looked {
        let weight = if self.cgroups.version == Version::V1 { "cpu.shares" } else { "cpu.weight" };
        std::fs::write(self.path("rest").join(weight), "40\n").unwrap();
        let version = self.cgroups.version;
        let (knobs, files): (Vec<_>, Vec<_>) = self.cgroups.open_knobs("lc", "rest/be").unwrap().into_iter().unzip();
        let knobs = knobs.into_iter().map(|knob| knob.bit()).sum();
        let mut rivals = Rivals::new(version, ["lc", "rest/be"], knobs, files, 1).unwrap();
        rivals.set_around_idle(true).unwrap();
        assert_eq!(std::fs::read_to_string(self.path("rest/cpu.idle")).unwrap(), "1");
        rivals.set_around_idle(false).unwrap();
        assert_eq!(std::fs::read_to_string(self.path("rest/cpu.idle")).unwrap(), "10");
        assert_eq!(std::fs::read_to_string(self.path("rest").join(weight)).unwrap(), "40\n");
        rivals.set_idle(true).unwrap();
        rivals.bind(Some(2500)).unwrap();
        rivals.bind(None).unwrap();
        rivals.set_idle(false).unwrap();
        rivals.look()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn version_1() {
    let mut fake = Fake::new(Version::V1);
    fake.share();
    let want = [("cpu.shares", "2"), ("cpu.idle", "0"), ("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "50000")];
    for (file, value) in want {
        assert_eq!(fake.written(file), value, "{file}");
    }
    for file in ["cpu.idle", "cpu.cfs_period_us", "cpu.cfs_quota_us"] {
        fake.clear(file);
    }
    std::fs::write(fake.path("rest/be/cpuacct.usage"), "7000\n").unwrap();
    assert_eq!(fake.aside(), Looked { first: 0, second: 7000, waited: 0 });
    let want =
        [("cpu.shares", "2"), ("cpu.idle", "10"), ("cpu.cfs_period_us", "10000"), ("cpu.cfs_quota_us", "2500-1")];
    for (file, value) in want {
        assert_eq!(fake.written(file), value, "{file}");
    }
}

#[test]
fn version_2() {
    let mut fake = Fake::new(Version::V2);
    fake.share();
    let want = [
        ("cpu.weight", "1"),
        ("cpu.idle", "0"),
        ("cpu.max", "50000 100000"),
        ("io.weight", "1"),
        ("io.bfq.weight", "1"),
    ];
    for (file, value) in want {
        assert_eq!(fake.written(file), value, "{file}");
    }
    for file in ["cpu.idle", "cpu.max"] {
        fake.clear(file);
    }
    std::fs::write(fake.path("rest/be/cpu.stat"), "usage_usec 7\nuser_usec 5\n").unwrap();
    std::fs::write(fake.path("lc/cpu.pressure"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n").unwrap();
    assert_eq!(fake.aside(), Looked { first: 0, second: 7000, waited: 5000 });
    let want = [("cpu.weight", "1"), ("cpu.idle", "10"), ("cpu.max", "2500 10000max 10000")];
    for (file, value) in want {
        assert_eq!(fake.written(file), value, "{file}");
    }
}

/// Of two groups one has all, until both are empty. What was written to the weights of each, one
/// behind the other.
fn held(version: Version, used: &str, first: &str, second: &str) -> [String; 2] {
    const MS: u64 = 1_000_000;
    let mut fake = Fake::of(version, "held", &["be/one", "be/two"]);
    let mut parts = Parts::new("be");
    for group in ["be/one", "be/two"] {
        std::fs::write(fake.path(group).join(used), first).unwrap();
        let share = GroupShare { cpu_shares: 256, quota_milli: 0, idle: 0, group: group.into() };
        fake.cgroups.share_group(&share).unwrap();
        parts.share(group, 256, GroupMeter::new(version, fake.cgroups.open_meter(group).unwrap()));
        parts.enter(group);
    }
    parts.look(1000 * MS);
    std::fs::write(fake.path("be/one").join(used), second).unwrap();
    parts.look(1100 * MS);
    ["be/one", "be/two"].into_iter().for_each(|group| parts.leave(group));
    parts.look(1200 * MS);
    assert!(parts.next_look().is_some(), "procs may come back");
    parts.look(2200 * MS);
    assert_eq!(parts.next_look(), None);
    let file = if version == Version::V1 { "cpu.shares" } else { "cpu.weight" };
    ["be/one", "be/two"].map(|group| std::fs::read_to_string(fake.path(group).join(file)).unwrap())
}

#[test]
fn groups_are_held_to_their_shares() {
    let [one, two] = held(Version::V1, "cpuacct.usage", "5000000", "105000000");
    assert_eq!(
        [&one[..], &two[..]],
        ["161230256", "406284256"],
        "raised, let down again while nobody is there, and given back"
    );
    let [one, two] = held(Version::V2, "cpu.stat", "usage_usec 5000", "usage_usec 105000\nuser_usec 5");
    assert_eq!([&one[..], &two[..]], ["152225", "392725"]);
}

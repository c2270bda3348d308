//! The process that places threads and turns weights, without rights: needs what launcher.rs needs.

#[allow(dead_code)]
mod harness;

use harness::{Machine, Reply, no_victim, skipped, victim};
use std::fs::read_to_string;
use std::time::{Duration, Instant};

/// Boots a machine whose best-effort group stands aside for another, with a proc in each; or returns
/// from the test with the reason printed.
macro_rules! machine {
    () => {{
        if skipped() || no_victim() {
            return;
        }
        let mut machine = Machine::boot(&[]);
        machine.meter(0); // it runs when it has answered
        if machine.cgroups().is_empty() {
            println!("SKIP: there are no cgroups here");
            machine.end(0);
            return;
        }
        for (group, shares) in [("lc", 4096), ("rest", 2048), ("rest/be", 512), ("rest/be/one", 256)] {
            machine.share_group(group, shares);
        }
        machine.stand_aside("lc", "rest/be");
        for (id, group) in [(1, "lc/one"), (2, "rest/be/one")] {
            let mut pause = machine.hello(id, &["pause"]);
            pause.group = group;
            machine.start(&pause, &victim(), &[]);
            assert!(matches!(machine.reply(), Reply::Started { .. }));
        }
        machine
    }};
}

/// A file of a group, in the hierarchy that has it. None: no kernel of this age has it.
fn knob(machine: &Machine, group: &str, file: &str) -> Option<String> {
    let texts = machine.cgroups().into_iter().map(|root| read_to_string(format!("{root}/{group}/{file}")));
    texts.flatten().next().map(|text| text.trim().to_string())
}

fn weight(machine: &Machine, group: &str) -> Option<String> {
    knob(machine, group, "cpu.shares").or_else(|| knob(machine, group, "cpu.weight"))
}

fn await_knob(machine: &Machine, group: &str, file: &str, want: &str) {
    let end = Instant::now() + harness::PATIENCE;
    while knob(machine, group, file).is_some_and(|is| is != want) {
        assert!(Instant::now() < end, "{group} {file} does not become {want}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_placer_has_no_rights_but_to_place_threads() {
    let mut machine = machine!();
    let placer = machine.await_placer(0);
    let status = read_to_string(format!("/proc/{placer}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    let uid = (machine.base + 1023).to_string();
    for name in ["Uid:", "Gid:"] {
        assert_eq!(field(name), [&uid[..]; 4], "{name}");
    }
    assert_eq!(field("Groups:"), [""; 0]);
    for name in ["CapPrm:", "CapEff:"] {
        // CAP_SYS_NICE, or nothing where the launcher has not even that.
        let set = u64::from_str_radix(&field(name)[0], 16).unwrap();
        assert!(set & !(1 << 23) == 0, "{name} {set:x}");
    }
    for name in ["CapInh:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(name), ["0000000000000000"], "{name}");
    }
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    assert_eq!(field("Seccomp:"), ["2"]);
    // Its network is empty, and of files it has only what it was given: no directory but that of
    // the leaves, which it may only read in.
    let link = |name: &str| std::fs::read_link(format!("/proc/{placer}/{name}")).unwrap();
    assert_ne!(link("ns/net"), std::fs::read_link("/proc/self/ns/net").unwrap());
    let open = std::fs::read_dir(format!("/proc/{placer}/fd")).unwrap().flatten();
    let open: Vec<_> = open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let directories: Vec<_> = open.iter().filter(|path| path.is_dir()).collect();
    assert_eq!(directories.len(), 1, "{open:?}");
    assert!(directories[0].ends_with(format!("sigma-{}", machine.instance)), "{open:?}");
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_placer_that_is_killed_harms_nobody_and_another_comes() {
    let mut machine = machine!();
    let mut placer = machine.await_placer(0);
    for round in 0..3 {
        await_knob(&machine, "rest/be", "cpu.idle", "1");
        // SAFETY: kill takes plain numbers; the process is the placer of this test's launcher.
        assert_eq!(unsafe { libc::kill(placer, libc::SIGKILL) }, 0);
        placer = machine.await_placer(placer);
        for id in [1, 2] {
            assert!(matches!(machine.meter(id), Reply::Metered { tasks: 1, .. }), "proc {id} in round {round}");
        }
    }
    await_knob(&machine, "rest/be", "cpu.idle", "1");
    // The launcher serves as before; and the last one to leave ends the standing aside.
    assert_eq!(machine.run(3, &["hello"]).0, "hello test\n");
    machine.kill(1);
    assert!(matches!(machine.reply(), Reply::Exited { .. }));
    await_knob(&machine, "rest/be", "cpu.idle", "0");
    let weights = [("rest", ["2048", "200"]), ("rest/be", ["512", "50"]), ("rest/be/one", ["256", "25"])];
    for (group, want) in weights {
        let is = weight(&machine, group).expect("groups have weights");
        assert!(want.contains(&&is[..]), "{group} weighs {is} when nobody is to stand aside");
    }
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_placer_dies_with_its_launcher() {
    let mut machine = machine!();
    let placer = machine.await_placer(0);
    machine.kill_launcher();
    let end = Instant::now() + harness::PATIENCE;
    while machine.processes().contains(&placer) {
        assert!(Instant::now() < end, "it outlives its launcher");
        std::thread::sleep(Duration::from_millis(5));
    }
    machine.stand_aside("lc", "rest/be");
    machine.await_placer(placer);
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

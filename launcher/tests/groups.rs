//! Groups of cgroups that come and go with realms: needs what launcher.rs needs.

#[allow(dead_code)]
mod harness;

use harness::{Machine, Reply, no_victim, skipped, victim};
use std::time::{Duration, Instant};

const GROUP: &str = "be/gone";

#[test]
fn a_group_that_is_dropped_goes_when_nothing_is_in_it() {
    if skipped() || no_victim() {
        return;
    }
    let mut machine = Machine::boot(&[]);
    machine.meter(0); // it runs when it has answered
    if machine.cgroups().is_empty() {
        println!("skipped: there are no cgroups here");
        machine.end(0);
        return;
    }
    let start = |id| {
        let mut pause = machine.hello(id, &["pause"]);
        pause.group = GROUP;
        machine.start(&pause, &victim(), &[]);
        assert!(matches!(machine.reply(), Reply::Started { .. }));
    };
    let kill = |id| {
        machine.kill(id);
        assert!(matches!(machine.reply(), Reply::Exited { .. }));
    };
    for round in 0..3 {
        start(10 * round);
        let there = machine.hierarchies_with(GROUP);
        assert!(there > 0, "a proc is in no group");
        machine.drop_group(GROUP);
        // Whatever is told later is answered later: the group was looked at while the proc was in
        // it.
        assert!(matches!(machine.meter(10 * round), Reply::Metered { tasks: 1, .. }));
        assert_eq!(machine.hierarchies_with(GROUP), there, "it went although a proc is in it");
        // Who comes meanwhile has it, and leaves it to be dropped again.
        start(10 * round + 1);
        kill(10 * round);
        kill(10 * round + 1);
        machine.drop_group(GROUP);
        let end = Instant::now() + harness::PATIENCE;
        while machine.hierarchies_with(GROUP) > 0 {
            assert!(Instant::now() < end, "the group is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    machine.drop_group("be/never-was");
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

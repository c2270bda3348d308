//! Kills sigmad, launchers and keepers: needs what launcher.rs needs.

#[allow(dead_code)]
mod harness;

use harness::{Machine, Reply, await_frozen, no_victim, pipe, skipped, victim};
use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// Boots a machine or returns from the test with the reason printed.
macro_rules! machine {
    () => {{
        if skipped() || no_victim() {
            return;
        }
        Machine::boot(&[])
    }};
}

fn exited(reply: &Reply) -> (i32, u32) {
    match reply {
        Reply::Exited { status, flags, .. } => (*status, *flags),
        other => panic!("got {other:?}, want EXITED"),
    }
}

#[test]
fn a_kept_proc_outlives_its_sigmad() {
    let mut machine = machine!();
    let (mut reader, writer) = pipe();
    for id in 1..=3 {
        let mut start = machine.hello(id, &["pause"]);
        start.targets = vec![1];
        machine.start(&start, &victim(), &[writer.as_raw_fd()]);
        assert!(matches!(machine.reply(), Reply::Started { .. }));
    }
    let null = File::open("/dev/null").unwrap();
    machine.keep(1, b"one", &[null.as_raw_fd()]);
    machine.keep(2, b"two", &[null.as_raw_fd()]);
    machine.keep(2, b"second", &[]);
    machine.keep(3, b"nothing to keep", &[]);
    machine.kill(2);
    assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 2));
    machine.kill_sigmad();
    // The end that was told of just now is told again; what was not kept is gone.
    assert_eq!(machine.reply(), Reply::Adopt { id: 2, label: b"second".to_vec() });
    assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 2));
    assert_eq!(machine.reply(), Reply::Adopt { id: 1, label: b"one".to_vec() });
    machine.kill(1);
    assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 2));
    drop(writer);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "all three have ended");
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn port_and_share_of_a_machine_outlive_sigmad() {
    if skipped() || no_victim() {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut machine = Machine::boot(&["--listen", &port.to_string(), "--cpu", "500", "--memory", "268435456"]);
    machine.run(1, &["hello"]);
    // Nobody accepts here; a port that is not listened on would refuse.
    let waits = TcpStream::connect(port).expect("the port is open");
    machine.kill_sigmad();
    TcpStream::connect(port).expect("the port is open without sigmad");
    machine.run(2, &["hello"]);
    TcpStream::connect(port).expect("the port is open with another sigmad");
    let got = |names: &[&str]| -> Vec<String> {
        let roots = machine.cgroups();
        let files = roots.iter().flat_map(|root| names.iter().map(move |name| format!("{root}/{name}")));
        files.filter_map(|file| std::fs::read_to_string(file).ok()).map(|text| text.trim().to_string()).collect()
    };
    assert_eq!(got(&["memory.limit_in_bytes", "memory.max"]), ["268435456"]);
    let weight = got(&["cpu.shares", "cpu.weight"]);
    assert!(weight == ["512"] || weight == ["50"], "{weight:?}");
    drop(waits);
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
    assert!(TcpStream::connect(port).is_err(), "the port is open although nobody is there");
}

#[test]
fn a_new_launcher_sweeps_what_a_killed_one_left() {
    let machine = machine!();
    for id in 1..=3 {
        machine.start(&machine.hello(id, &["tree"]), &victim(), &[]);
        assert!(matches!(machine.reply(), Reply::Started { .. }));
    }
    let mut machine = machine.crash_and_reboot();
    let (output, _) = machine.run(1, &["hello"]);
    assert_eq!(output, "hello test\n", "the same id can be started again");
    // sigmad and its init, that of procs, and two seeds: the rest died with the first launcher.
    machine.settle(5);
    assert!(machine.processes().len() <= 5, "{:?}", machine.processes());
    machine.end(0);
    // What the first launcher left dead is reaped by the machine's own init, which may take its
    // time.
    machine.settle(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_killed_launcher_takes_its_procs_along_and_another_serves() {
    let mut machine = machine!();
    for round in 0..2 {
        let (mut reader, writer) = pipe();
        let mut start = machine.hello(10 * round, &["tree"]);
        start.targets = vec![1];
        machine.start(&start, &victim(), &[writer.as_raw_fd()]);
        drop(writer);
        assert!(matches!(machine.reply(), Reply::Started { .. }));
        machine.kill_launcher();
        // Its parked children and the whole tree are gone, or this would wait for ever.
        reader.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(machine.run(10 * round + 1, &["hello"]).0, "hello test\n");
    }
    assert_eq!(machine.kill_launchers().code(), Some(72), "a system that never comes up ends");
    machine.settle(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_launcher_that_dies_again_and_again_is_started_with_pauses() {
    let mut machine = machine!();
    // A system that is so old has come up.
    std::thread::sleep(std::time::Duration::from_secs(10));
    for round in 0..6 {
        machine.kill_launcher();
        assert_eq!(machine.run(round, &["hello"]).0, "hello test\n");
    }
    machine.kill_sigmad();
    assert_eq!(machine.run(7, &["hello"]).0, "hello test\n");
    machine.end(0);
    machine.settle(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

/// In v1 nothing that is frozen dies of a signal, so whoever comes next has to let it.
#[test]
fn what_a_killed_launcher_left_frozen_dies() {
    let machine = machine!();
    let frozen = |machine: &Machine, id| {
        let (reader, writer) = pipe();
        let mut start = machine.hello(id, &["pause"]);
        start.targets = vec![1];
        machine.start(&start, &victim(), &[writer.as_raw_fd()]);
        let Reply::Started { pid, .. } = machine.reply() else { panic!("it did not start") };
        assert_eq!(machine.freeze(id), Reply::Frozen { id, errno: 0 });
        await_frozen(pid);
        reader
    };
    let mut reader = frozen(&machine, 1);
    machine.kill_launcher();
    assert_eq!(machine.run(2, &["hello"]).0, "hello test\n");
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it has ended, having done nothing");
    // The same when the keeper dies, for the next one.
    let mut reader = frozen(&machine, 3);
    let mut machine = machine.crash_and_reboot();
    assert_eq!(machine.run(3, &["hello"]).0, "hello test\n");
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it has ended, having done nothing");
    machine.end(0);
    machine.settle(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

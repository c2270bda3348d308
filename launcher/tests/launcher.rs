//! Runs real procs: needs root, gcc with a static C library, and the cgroup controllers.

#[allow(dead_code)]
mod harness;

use harness::{Machine, Reply, await_frozen, no_victim, open_path, pipe, skipped, victim};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

/// Boots a machine or returns from the test with the reason printed.
macro_rules! machine {
    ($($flag:literal),*) => {{
        if skipped() || no_victim() {
            return;
        }
        Machine::boot(&[$($flag),*])
    }};
}

fn exited(reply: &Reply) -> (i32, u32) {
    match reply {
        Reply::Exited { status, flags, .. } => (*status, *flags),
        other => panic!("got {other:?}, want EXITED"),
    }
}

fn failed(reply: &Reply) -> (&str, i32) {
    match reply {
        Reply::Failed { step, errno, .. } => (step, *errno),
        other => panic!("got {other:?}, want FAILED"),
    }
}

#[test]
fn a_static_program_says_hello() {
    let mut machine = machine!();
    let (output, end) = machine.run(1, &["hello"]);
    assert_eq!(output, "hello test\n");
    assert_eq!(exited(&end), (0, 0));
    let Reply::Exited { memory_peak, .. } = end else { unreachable!() };
    assert!(memory_peak > 4096, "memory peak {memory_peak}");
    assert_eq!(machine.end(5).code(), Some(5), "the launcher's code is sigmad's");
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn endings_are_told_as_wait_tells_them() {
    let machine = machine!();
    let cases = [
        (&["exit", "42"][..], 42 << 8),
        (&["abort"], libc::SIGABRT),
        (&["raise"], libc::SIGUSR1),
        (&["orphan"], 0),
        (&["threads"], 0),
        (&["killall"], 0),
    ];
    for (id, (argv, want)) in (1..).zip(cases) {
        let (_, end) = machine.run(id, argv);
        assert_eq!(exited(&end), (want, 0), "{argv:?}");
    }
}

#[test]
fn kill_minus_one_leaves_others_alone() {
    let machine = machine!();
    // A neighbour with the same uid: only the PID namespace keeps them apart.
    let mut neighbour = machine.hello(1, &["pause"]);
    neighbour.uid = machine.base + 1024 + 2;
    machine.start(&neighbour, &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    let mut killer = machine.hello(2, &["killall"]);
    killer.uid = neighbour.uid;
    machine.start(&killer, &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    assert_eq!(exited(&machine.reply()), (0, 0));
    machine.kill(1);
    assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 2));
}

#[test]
fn the_program_finds_itself_contained() {
    let machine = machine!();
    let (output, _) = machine.run(7, &["facts"]);
    let gid = machine.base + 1024;
    let field = |line: usize, at: usize| output.lines().nth(line).unwrap().split(' ').nth(at).unwrap();
    let (uid, pid) = (field(0, 1), field(1, 1));
    assert!((gid..gid + (1 << 19)).contains(&uid.parse().unwrap()), "{uid}");
    let want = format!(
        "uid {uid} {uid} gid {gid} {gid} groups -1\n\
         pid {pid} ppid 0 session {pid} group {pid}\n\
         nnp 1 seccomp 2 dumpable 1\n\
         bounding 0\nnofile 2048\ncore 1\nfds 0 1 2\n\
         open {} socket {} execve {}\n",
        libc::ENOENT,
        libc::EPERM,
        libc::EPERM
    );
    assert_eq!(output, want);
}

#[test]
fn kill_takes_the_whole_tree() {
    let mut machine = machine!();
    let (mut reader, writer) = pipe();
    let mut start = machine.hello(1, &["tree"]);
    start.targets = vec![1];
    machine.start(&start, &victim(), &[writer.as_raw_fd()]);
    drop(writer);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    let mut up = [0; 12];
    reader.read_exact(&mut up).unwrap();
    let Reply::Metered { id: 1, memory, memory_peak, tasks: 4, .. } = machine.meter(1) else {
        panic!("four processes")
    };
    assert!(0 < memory && memory <= memory_peak, "{memory} bytes, {memory_peak} at most");
    let nothing = machine.meter(99);
    assert!(matches!(nothing, Reply::Metered { id: 99, memory: 0, memory_peak: 0, tasks: 0, .. }), "{nothing:?}");
    machine.kill(1);
    assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 2));
    // Every writer is gone, or this would wait for ever.
    assert_eq!(reader.read(&mut up).unwrap(), 0);
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn what_a_killed_proc_used_is_told() {
    let machine = machine!();
    machine.start(&machine.hello(1, &["spin"]), &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    let used = loop {
        let Reply::Metered { user_us, .. } = machine.meter(1) else { panic!() };
        if user_us >= 50_000 {
            break user_us;
        }
    };
    machine.kill(1);
    let Reply::Exited { user_us, .. } = machine.reply() else { panic!() };
    assert!(user_us >= used, "{user_us} of {used} microseconds");
}

#[test]
fn what_a_proc_leaves_behind_ends_with_it() {
    let mut machine = machine!();
    for (id, behaviour) in (1..).zip(["daemon", "burn", "daemon"]) {
        // The grandchild's end of the pipe would keep us reading for ever.
        let (output, end) = machine.run(id, &[behaviour]);
        assert_eq!((output.as_str(), exited(&end)), ("", (0, 0)));
        let Reply::Exited { user_us, system_us, .. } = end else { unreachable!() };
        if behaviour == "burn" {
            assert!(user_us + system_us > 90_000, "{user_us} {system_us}: nobody waited for who used it");
        }
    }
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn fork_bombs_are_killed_for_sure() {
    let mut machine = machine!();
    for id in 1..=3 {
        let (mut reader, writer) = pipe();
        let mut bomb = machine.hello(id, &["bomb"]);
        (bomb.targets, bomb.pids_max) = (vec![1], 100);
        machine.start(&bomb, &victim(), &[writer.as_raw_fd()]);
        drop(writer);
        let reply = machine.reply();
        assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
        let mut up = [0; 2];
        reader.read_exact(&mut up).unwrap();
        machine.kill(id);
        assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 2));
        assert_eq!(reader.read(&mut up).unwrap(), 0, "every writer is gone");
        // Its seat serves the next.
        assert_eq!(machine.run(10 + id, &["hello"]).0, "hello test\n");
    }
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn frozen_procs_go_on_when_thawed_and_die_when_killed() {
    let mut machine = machine!();
    let (input, mut to) = pipe();
    let (mut from, output) = pipe();
    let mut start = machine.hello(1, &["echo"]);
    start.targets = vec![0, 1];
    machine.start(&start, &victim(), &[input.as_raw_fd(), output.as_raw_fd()]);
    drop((input, output));
    let Reply::Started { pid, .. } = machine.reply() else { panic!() };
    let mut echo = |text: &[u8]| {
        to.write_all(text).unwrap();
        let mut got = vec![0; text.len()];
        from.read_exact(&mut got).unwrap();
        assert_eq!(got.len(), text.len());
    };
    echo(b"awake");
    for _ in 0..2 {
        assert_eq!(machine.freeze(1), Reply::Frozen { id: 1, errno: 0 });
        assert_eq!(machine.freeze(1), Reply::Frozen { id: 1, errno: 0 }, "again");
        await_frozen(pid);
        assert_eq!(machine.run(2, &["hello"]).0, "hello test\n", "others run");
        assert_eq!(machine.thaw(1), Reply::Thawed { id: 1, errno: 0 });
        assert_eq!(machine.thaw(1), Reply::Thawed { id: 1, errno: 0 }, "again");
        echo(b"awake again");
    }
    assert_eq!(machine.freeze(99), Reply::Frozen { id: 99, errno: libc::ESRCH });
    assert_eq!(machine.thaw(99), Reply::Thawed { id: 99, errno: libc::ESRCH });
    assert_eq!(machine.freeze(1), Reply::Frozen { id: 1, errno: 0 });
    machine.kill(1);
    assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 2));
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn the_end_leaves_nothing_frozen() {
    let mut machine = machine!();
    machine.start(&machine.hello(1, &["tree"]), &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    assert_eq!(machine.freeze(1), Reply::Frozen { id: 1, errno: 0 });
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn signals_reach_the_main_process_only() {
    let machine = machine!();
    machine.start(&machine.hello(1, &["pause"]), &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    machine.signal(1, libc::SIGKILL);
    machine.signal(99, libc::SIGTERM);
    machine.signal(1, libc::SIGSTOP);
    machine.signal(1, libc::SIGCONT);
    machine.signal(1, libc::SIGTERM);
    assert_eq!(exited(&machine.reply()), (libc::SIGTERM, 0));
}

#[test]
fn limits_hold() {
    let machine = machine!();
    let mut hog = machine.hello(1, &["hog"]);
    hog.memory_max = 8 << 20;
    machine.start(&hog, &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 1), "out of memory");
    let mut forks = machine.hello(2, &["forks"]);
    forks.pids_max = 10;
    machine.start(&forks, &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    assert_eq!(exited(&machine.reply()), (9 << 8, 0), "nine children and itself");
}

#[test]
fn wrong_starts_fail_with_their_step() {
    let mut machine = machine!();
    let mut foreign = machine.hello(1, &[]);
    foreign.uid = machine.base;
    machine.start(&foreign, &victim(), &[]);
    assert_eq!(failed(&machine.reply()), ("plan", libc::ERANGE));
    let mut weak = machine.hello(2, &[]);
    weak.weaken = 1;
    machine.start(&weak, &victim(), &[]);
    assert_eq!(failed(&machine.reply()), ("weaken", libc::EPERM));
    let mut outside = machine.hello(3, &[]);
    outside.group = "../x";
    machine.start(&outside, &victim(), &[]);
    assert_eq!(failed(&machine.reply()), ("plan", libc::EINVAL));

    let file = |name: &str, content: &str, mode: u32| {
        let path = machine.dir().join(name);
        File::create(&path).unwrap().write_all(content.as_bytes()).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        File::open(path).unwrap()
    };
    machine.start(&machine.hello(4, &[]), &file("text", "not a program", 0o555), &[]);
    assert_eq!(failed(&machine.reply()), ("exec", libc::ENOEXEC));
    machine.start(&machine.hello(5, &[]), &file("script", "#!/bin/sh\n", 0o555), &[]);
    assert_eq!(failed(&machine.reply()), ("exec", libc::ENOENT));
    machine.start(&machine.hello(6, &[]), &file("mode", "x", 0o444), &[]);
    assert_eq!(failed(&machine.reply()), ("exec", libc::EACCES));
    machine.start(&machine.hello(7, &[]), &File::open("/bin/sh").unwrap(), &[]);
    assert_eq!(failed(&machine.reply()).0, "exec", "dynamically linked");
    let mut tiny = machine.hello(8, &[]);
    tiny.memory_max = 4096;
    machine.start(&tiny, &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Failed { .. }), "no memory to be made in");
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_system_program_has_files_and_nothing_else() {
    let machine = machine!();
    let data = machine.dir().join("named");
    assert_eq!(machine.run(2, &["hello"]).0, "hello test\n", "the launcher is up and has made the directory");
    let mut start = machine.hello(1, &["files"]);
    (start.profile, start.uid, start.gid, start.nofile) = (1, machine.base + 2, machine.base + 2, 2000);
    let dir = open_path(&data);
    machine.start(&start, &victim(), &[dir.as_raw_fd()]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    assert_eq!(exited(&machine.reply()), (0, 0));
    let kept = std::fs::read(data.join("g")).unwrap();
    assert_eq!(&kept[..4], b"kept");
}

#[test]
fn descriptors_go_where_they_are_told() {
    let machine = machine!();
    let (mut reader, writer) = pipe();
    let null = File::open("/dev/null").unwrap();
    let mut start = machine.hello(1, &["facts"]);
    start.targets = vec![63, 5, 1, 0];
    let fds = [null.as_raw_fd(), null.as_raw_fd(), writer.as_raw_fd(), null.as_raw_fd()];
    machine.start(&start, &victim(), &fds);
    drop(writer);
    let mut output = String::new();
    reader.read_to_string(&mut output).unwrap();
    assert!(output.contains("\nfds 0 1 2 5 63\n"), "{output}");
}

#[test]
fn weakened_starts_lose_what_they_name() {
    let machine = machine!("--weaken");
    let facts = |id: u64, bits: u32| {
        let (mut reader, writer) = pipe();
        let mut start = machine.hello(id, &["facts"]);
        (start.weaken, start.targets) = (bits, vec![1]);
        machine.start(&start, &victim(), &[writer.as_raw_fd()]);
        drop(writer);
        let started = machine.reply();
        assert!(matches!(started, Reply::Started { .. }), "bits {bits}: {started:?}");
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        machine.reply();
        output
    };
    assert!(facts(1, 1).contains("seccomp 0"));
    let open = facts(2, 1 | 2 | 4);
    assert!(open.contains("open 0"), "{open}");
    assert!(facts(3, 8).contains("seccomp 2"));
    assert!(!facts(4, 16).contains("pid 2 ppid 1"));
    assert!(facts(5, 32).contains("uid 0 0 gid 0 0"));
    assert!(!facts(6, 64).contains("bounding 0"));
    assert!(facts(7, 1 | 2 | 128).contains("nnp 0"));
    assert!(facts(8, 64 | 128).contains("nnp 0"));
    assert!(facts(9, 256).contains("fds 0 1 2 1000"));
    assert!(facts(10, 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128).contains("uid 0 0"));
}

#[test]
fn nothing_is_left_when_sigmad_ends() {
    let mut machine = machine!();
    for id in 1..=3 {
        machine.start(&machine.hello(id, &["tree"]), &victim(), &[]);
        assert!(matches!(machine.reply(), Reply::Started { .. }));
    }
    assert_eq!(machine.end(3).code(), Some(3));
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn sigterm_ends_everything() {
    let mut machine = machine!();
    machine.start(&machine.hello(1, &["pause"]), &victim(), &[]);
    assert!(matches!(machine.reply(), Reply::Started { .. }));
    // SAFETY: kill takes plain numbers; the launcher is this test's own child.
    unsafe { libc::kill(machine.launcher.id() as i32, libc::SIGTERM) };
    assert_eq!(machine.wait().code(), Some(128 + libc::SIGTERM));
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_malformed_message_ends_the_launcher() {
    let mut machine = machine!();
    machine.send(&[99, 0, 1, 0], &[]);
    assert_eq!(machine.wait().code(), Some(70));
    assert_eq!(machine.leftovers(), [""; 0]);
}

/// Unmodified programs of other languages, whose run-time systems probe more than C's.
#[test]
fn programs_of_other_languages_run() {
    let machine = machine!();
    for (id, (name, program)) in (1..).zip([("rust", harness::rust_program()), ("go", harness::go_program())]) {
        let Some(program) = program else {
            println!("SKIP: no compiler for {name} here");
            continue;
        };
        for profile in [0, 1, 2] {
            let (mut reader, writer) = pipe();
            let mut start = machine.hello(10 * profile as u64 + id, &[]);
            (start.targets, start.pids_max, start.profile) = (vec![1, 2], 64, profile);
            let dir = open_path(machine.dir());
            let mut fds = vec![writer.as_raw_fd(), writer.as_raw_fd()];
            if profile == 1 {
                (start.profile, start.uid, start.gid) = (1, machine.base + 2, machine.base + 2);
                fds.insert(0, dir.as_raw_fd());
            }
            machine.start(&start, &program, &fds);
            drop(writer);
            let started = machine.reply();
            assert!(matches!(started, Reply::Started { .. }), "{name}: {started:?}");
            let mut output = String::new();
            reader.read_to_string(&mut output).unwrap();
            assert_eq!(output, format!("hello {name} 7\n"));
            assert_eq!(exited(&machine.reply()), (0, 0), "{name}");
        }
    }
}

/// Goal: no record is lost when sigmad does not read. Method: more starts than its socket holds
/// answers for, all sent before the first answer is read.
#[test]
fn a_slow_sigmad_loses_no_record() {
    let mut machine = machine!();
    const COUNT: u64 = 500;
    for id in 1..=COUNT {
        machine.start(&machine.hello(id, &["exit", "3"]), &victim(), &[]);
    }
    let (mut started, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..2 * COUNT {
        match machine.reply() {
            Reply::Started { id, .. } => started.push(id),
            Reply::Exited { id, status, .. } => {
                assert_eq!(status, 3 << 8);
                assert!(started.contains(&id), "EXITED before STARTED");
                ended.push(id);
            }
            failed => panic!("{failed:?}"),
        }
    }
    started.sort();
    ended.sort();
    assert_eq!(started, (1..=COUNT).collect::<Vec<_>>());
    assert_eq!(ended, started);
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

/// Goal: whatever comes when, each START has one answer and each STARTED one end. Method: starts of
/// good and bad programs in three groups with KILLs at every stage, from a fixed seed.
#[test]
fn every_start_has_one_answer_and_one_end() {
    let mut machine = machine!();
    const COUNT: u64 = 400;
    let text = machine.dir().join("text");
    std::fs::write(&text, "not a program").unwrap();
    std::fs::set_permissions(&text, PermissionsExt::from_mode(0o555)).unwrap();
    let mut seed = 42u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let groups = ["default/be", "default/lc", "other"];
    let argvs: [&[&str]; 4] = [&["exit", "1"], &["pause"], &["abort"], &["orphan"]];
    let (mut answered, mut started, mut ended) = (0, Vec::new(), Vec::new());
    let begun = std::time::Instant::now();
    for id in 1..=COUNT {
        let mut start = machine.hello(id, argvs[random(4) as usize]);
        start.group = groups[random(3) as usize];
        let bad = random(8) == 0;
        machine.start(&start, &if bad { File::open(&text).unwrap() } else { victim() }, &[]);
        if random(2) == 0 {
            machine.kill(1 + random(id));
        }
        if random(50) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    (1..=COUNT).for_each(|id| machine.kill(id));
    while answered < COUNT || ended.len() < started.len() {
        match machine.reply() {
            Reply::Started { id, .. } => {
                assert!(!started.contains(&id), "{id} started twice");
                started.push(id);
                answered += 1;
            }
            Reply::Failed { id, .. } => {
                assert!(!started.contains(&id), "{id} failed after its start");
                answered += 1;
            }
            Reply::Exited { id, .. } => {
                assert!(started.contains(&id) && !ended.contains(&id), "{id} ended early or twice");
                ended.push(id);
            }
            other => panic!("{other:?}"),
        }
    }
    println!("{COUNT} starts, {} of them good, in {} ms", started.len(), begun.elapsed().as_millis());
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

/// The pids of seeds: processes of the launcher's own program under a realm's gid.
fn parked(machine: &Machine) -> Vec<i32> {
    let is_parked = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.starts_with("Name:\tlauncher\n")
            && !status.contains("State:\tZ")
            && harness::id_of(&status, "Gid:\t").is_some_and(|gid| gid >= machine.base + 1024)
    };
    machine.processes().into_iter().filter(is_parked).collect()
}

/// Waits until so many children are parked.
fn wait_parked(machine: &Machine, count: usize) -> Vec<i32> {
    let end = std::time::Instant::now() + harness::PATIENCE;
    loop {
        let found = parked(machine);
        if found.len() == count {
            return found;
        }
        assert!(std::time::Instant::now() < end, "{} are parked, want {count}", found.len());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The cgroup of a process in the memory or unified hierarchy, below the instance's.
fn cgroup_of(machine: &Machine, pid: i32) -> String {
    let lines = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let root = format!("/sigma-{}/", machine.instance);
    lines.lines().find_map(|line| line.split_once(&root)).expect("in our cgroups").1.to_string()
}

#[test]
fn a_parked_childs_program_finds_nothing_but_its_own() {
    let machine = machine!();
    for id in 1..=4 {
        let (output, end) = machine.run(id, &["state", &format!("secret of {id}")]);
        let want = format!(
            "arg victim\narg state\narg secret of {id}\nenv NAME=test\n\
             blocked, pending, timers 0, alarm 0, children 0\n\
             fd 0 flags 0\nfd 1 flags 0\nfd 2 flags 0\nrestrict {}\nruleset {}\n",
            libc::EBADF,
            libc::EPERM
        );
        assert_eq!(output, want);
        assert_eq!(exited(&end), (0, 0));
        wait_parked(&machine, 2);
    }
}

#[test]
fn descriptors_reach_a_parked_child_in_any_order() {
    let machine = machine!();
    // Descriptors arrive as 5, 6, 7 and so on: these are in their place, in each other's, or in the
    // program's.
    let orders: [&[u32]; 6] = [&[5, 6, 7], &[6, 5, 7], &[7, 5, 6], &[8, 7, 6, 5], &[3, 4, 5], &[63, 0, 2, 3, 62, 6]];
    for (id, targets) in (1..).zip(orders) {
        let names: Vec<String> = targets.iter().map(u32::to_string).collect();
        let argv: Vec<&str> = ["number"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let (mut readers, writers): (Vec<_>, Vec<_>) = targets.iter().map(|_| pipe()).unzip();
        let fds: Vec<_> = writers.iter().map(AsRawFd::as_raw_fd).collect();
        let mut start = machine.hello(id, &argv);
        start.targets = targets.to_vec();
        machine.start(&start, &victim(), &fds);
        drop(writers);
        assert!(matches!(machine.reply(), Reply::Started { .. }));
        assert_eq!(exited(&machine.reply()), (0, 0), "{targets:?}");
        for (reader, want) in readers.iter_mut().zip(&names) {
            let mut got = String::new();
            reader.read_to_string(&mut got).unwrap();
            assert_eq!(&got, want, "{targets:?}");
        }
    }
}

#[test]
fn parked_children_serve_their_own_group_and_gid_only() {
    let machine = machine!();
    for (round, (group, gid)) in (1..).zip([("a/be", 1), ("a/lc", 1), ("b/be", 2), ("a/be", 3), ("a/be", 1)]) {
        let gid = machine.base + (1 << 19) + gid;
        for id in [10 * round, 10 * round + 1] {
            let (mut reader, writer) = pipe();
            let mut start = machine.hello(id, &["facts"]);
            (start.group, start.gid, start.targets) = (group, gid, vec![1]);
            machine.start(&start, &victim(), &[writer.as_raw_fd()]);
            drop(writer);
            assert!(matches!(machine.reply(), Reply::Started { .. }));
            let mut output = String::new();
            reader.read_to_string(&mut output).unwrap();
            assert!(output.contains(&format!(" gid {gid} {gid} groups")), "{output}");
            machine.reply();
            let mut pause = machine.hello(id + 5, &["pause"]);
            (pause.group, pause.gid) = (group, gid);
            machine.start(&pause, &victim(), &[]);
            let Reply::Started { pid, .. } = machine.reply() else { panic!() };
            let cgroup = cgroup_of(&machine, pid);
            assert!(cgroup.starts_with(&format!("{group}/spare-")), "{cgroup}");
            machine.kill(id + 5);
            machine.reply();
        }
    }
}

#[test]
fn weakened_starts_and_named_uids_take_no_parked_child() {
    let machine = machine!("--weaken");
    machine.run(1, &["hello"]);
    wait_parked(&machine, 2);
    let cases = [(2, 1, 0, 2048), (3, 0, machine.base + 5000, 2048), (4, 0, 0, 64)];
    for (id, weaken, uid, nofile) in cases {
        let mut start = machine.hello(id, &["pause"]);
        (start.weaken, start.uid, start.nofile) = (weaken, uid, nofile);
        machine.start(&start, &victim(), &[]);
        let Reply::Started { pid, .. } = machine.reply() else { panic!() };
        assert_eq!(cgroup_of(&machine, pid), format!("default/be/{id}"));
        assert_eq!(parked(&machine).len(), 2);
        machine.kill(id);
        machine.reply();
    }
}

#[test]
fn a_start_survives_the_death_of_parked_children() {
    let mut machine = machine!();
    for id in 1..=10 {
        assert_eq!(machine.run(id, &["hello"]).0, "hello test\n");
        let waiting = wait_parked(&machine, 2);
        for pid in &waiting {
            // SAFETY: kill takes plain numbers; the process is a child of this test's launcher.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
        while parked(&machine).iter().any(|pid| waiting.contains(pid)) {}
    }
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn the_seed_of_a_proc_that_lives_on_is_let_go() {
    let mut machine = machine!();
    let (mut reader, writer) = pipe();
    let mut start = machine.hello(1, &["tree"]);
    start.targets = vec![1];
    machine.start(&start, &victim(), &[writer.as_raw_fd()]);
    drop(writer);
    let Reply::Started { pid, .. } = machine.reply() else { panic!() };
    reader.read_exact(&mut [0; 12]).unwrap();
    let own = cgroup_of(&machine, pid);
    let end = std::time::Instant::now() + harness::PATIENCE;
    let is_beside =
        |seed: &i32| std::fs::read_to_string(format!("/proc/{seed}/cgroup")).unwrap_or_default().contains(&own);
    while parked(&machine).iter().any(is_beside) {
        assert!(std::time::Instant::now() < end, "the seed is still there");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(matches!(machine.meter(1), Reply::Metered { tasks: 4, .. }), "the seed does not count");
    machine.kill(1);
    assert_eq!(exited(&machine.reply()), (libc::SIGKILL, 2));
    machine.end(0);
    assert_eq!(machine.leftovers(), [""; 0]);
}

#[test]
fn a_leaf_starts_from_zero_for_each_proc() {
    let machine = machine!();
    for id in 1..=6 {
        // The parked child was made with the other limit.
        let mut hog = machine.hello(10 * id, &["hog"]);
        hog.memory_max = (8 + id) << 20;
        machine.start(&hog, &victim(), &[]);
        assert!(matches!(machine.reply(), Reply::Started { .. }));
        let Reply::Exited { status, flags, memory_peak, .. } = machine.reply() else { panic!() };
        assert_eq!((status, flags), (libc::SIGKILL, 1), "out of memory");
        assert_eq!(memory_peak, (8 + id) << 20);
        for id in 10 * id + 1..10 * id + 4 {
            let (_, end) = machine.run(id, &["hello"]);
            let Reply::Exited { status, flags, memory_peak, .. } = end else { panic!() };
            assert_eq!((status, flags), (0, 0));
            assert!(memory_peak < 4 << 20, "memory peak {memory_peak}");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn idle_groups_keep_nothing() {
    let machine = machine!();
    for id in 1..=5 {
        machine.run(id, &["hello"]);
    }
    wait_parked(&machine, 2);
    wait_parked(&machine, 0);
    machine.settle(3);
    assert_eq!(machine.processes().len(), 3, "sigmad, its init and that of procs");
    let spares = || -> usize {
        let group = |root: String| std::path::Path::new(&root).join("default/be");
        let leaves = machine.cgroups().into_iter().map(group).flat_map(|dir| std::fs::read_dir(dir).unwrap()).flatten();
        leaves.filter(|entry| entry.file_name().to_string_lossy().starts_with("spare-")).count()
    };
    let end = std::time::Instant::now() + harness::PATIENCE;
    while spares() > 0 {
        assert!(std::time::Instant::now() < end, "{} leaves are left", spares());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort();
    values[values.len() / 2] / 1000
}

/// Prints how long starts take, back to back and at rest in between, and posix_spawn of the same
/// program, which is the floor, in turn with them. `cargo test --release --test launcher --
/// --nocapture start_times`.
#[test]
fn start_times() {
    let machine = machine!();
    let programs = [("C", victim()), ("no library", harness::tiny())];
    let modes = [("back to back", 500, 0), ("at rest", 50, 20)];
    let runs = modes.iter().flat_map(|mode| programs.iter().map(move |program| (mode, program)));
    for (first, ((name, count, rest_ms), (kind, program))) in (0..).map(|run| 1 + 1000 * run).zip(runs) {
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let mut rows = Vec::new();
        let mut floor = Vec::new();
        for id in first..first + count {
            std::thread::sleep(std::time::Duration::from_millis(*rest_ms));
            machine.start(&machine.hello(id, &["exit", "0"]), program, &[]);
            let Reply::Started { received, cloned, contained, exec, .. } = machine.reply() else { panic!() };
            machine.reply();
            rows.push([cloned - received, contained - cloned, exec - contained, exec - received]);
            std::thread::sleep(std::time::Duration::from_millis(*rest_ms));
            floor.push(harness::spawn_time(&path));
        }
        let [clone, contain, exec, all] = [0, 1, 2, 3].map(|column| median(rows.iter().map(|row| row[column])));
        let floor = median(floor.into_iter());
        println!(
            "{name}, {kind}, p50 us: handed over {clone}, contained {contain}, exec'd {exec}, all {all}; posix_spawn {floor}"
        );
    }
}

/// Prints how many starts there are in a second, ends and all, with so many under way at a time.
#[test]
fn start_rate() {
    let machine = machine!();
    let program = harness::tiny();
    for (round, window) in [1, 4, 16, 64].into_iter().enumerate() {
        const COUNT: u64 = 3000;
        let begun = std::time::Instant::now();
        let (mut sent, mut ended) = (0, 0);
        while ended < COUNT {
            while sent < COUNT && sent < ended + window {
                sent += 1;
                machine.start(&machine.hello(sent + round as u64 * COUNT, &["exit", "0"]), &program, &[]);
            }
            match machine.reply() {
                Reply::Exited { .. } => ended += 1,
                Reply::Started { .. } => {}
                failed => panic!("{failed:?}"),
            }
        }
        println!("{window} at a time: {:.0} starts/s", COUNT as f64 / begun.elapsed().as_secs_f64());
    }
}

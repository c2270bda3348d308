use super::*;
use crate::calls::{INIT, SEED_CLONE, linux, sigma, system};

/// A dumb interpreter of the instructions used, to run filters on made-up calls.
fn run(program: &[sock_filter], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
    let mut data = [0u8; 64];
    data[0..4].copy_from_slice(&nr.to_le_bytes());
    data[4..8].copy_from_slice(&arch.to_le_bytes());
    for (i, arg) in args.iter().enumerate() {
        data[16 + 8 * i..24 + 8 * i].copy_from_slice(&arg.to_le_bytes());
    }
    let (mut pc, mut acc) = (0, 0u32);
    loop {
        let op = program[pc];
        pc += 1;
        match op.code {
            LOAD => acc = u32::from_le_bytes(data[op.k as usize..op.k as usize + 4].try_into().unwrap()),
            AND => acc &= op.k,
            JUMP => pc += op.k as usize,
            IF_EQUAL => pc += if acc == op.k { op.jt } else { op.jf } as usize,
            IF_AT_LEAST => pc += if acc >= op.k { op.jt } else { op.jf } as usize,
            RETURN => return op.k,
            code => panic!("unknown code {code:#x}"),
        }
    }
}

const KEY: u64 = 0x1234_5678_9abc_def0;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ENOENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOENT as u32;
const EINVAL: u32 = libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// The meaning of a list, without any program: compared with the compiled one for every number.
fn meaning(entries: &[Entry], default: Verdict, nr: u32, args: [u64; 6]) -> u32 {
    if (X32_FIRST..X32_END).contains(&nr) {
        return KILL;
    }
    let holds = |test: &Test| match *test {
        Test::Is(arg, value) => args[arg as usize] as u32 == value,
        Test::Masked(arg, mask, value) => args[arg as usize] as u32 & mask == value,
        Test::Null(arg) => args[arg as usize] == 0,
        Test::Key(arg) => args[arg as usize] == KEY,
    };
    let verdict = match entries.iter().find(|entry| entry.0 == nr as libc::c_long) {
        None => default,
        Some((_, Rule::Always(verdict))) => *verdict,
        Some((_, Rule::When(any, otherwise))) => {
            if any.iter().any(|all| all.iter().all(holds)) {
                Verdict::Allow
            } else {
                *otherwise
            }
        }
    };
    finish(verdict).k
}

#[test]
fn compiled_lists_mean_what_the_lists_say() {
    let (sigma, linux, system) = (sigma(), linux(), system());
    let eperm = Verdict::Errno(libc::EPERM);
    for (entries, default) in [(&sigma[..], eperm), (&linux[..], eperm), (&system[..], eperm), (INIT, Verdict::Kill)] {
        let program = compile(entries, default, KEY);
        let numbers = (0..600).chain([X32_FIRST - 1, X32_FIRST, X32_FIRST + 1, X32_END - 1, X32_END, u32::MAX]);
        for nr in numbers {
            for value in [0, 1, 2, 4, 5, 0x1000, 0x5401, 1000, 0x1_0000_0000, libc::CLONE_NEWUSER as u64, u64::MAX] {
                for args in [
                    [value; 6],
                    [1000, 0, 0, 0, value, 0],
                    [1, value, 0, value, 0, 0],
                    [0, 1, value, 0, 0, 0],
                    [value, 0, 0, KEY, 0, 0],
                ] {
                    let got = run(&program, ARCH, nr, args);
                    assert_eq!(got, meaning(entries, default, nr, args), "call {nr} with {args:x?}");
                }
            }
        }
        assert_eq!(run(&program, 0x4000_0003, 1, [0; 6]), KILL, "i386");
    }
}

#[test]
fn lists_name_no_call_twice() {
    for mut numbers in [sigma(), linux(), system()].map(|list| list.iter().map(|e| e.0).collect::<Vec<_>>()) {
        let len = numbers.len();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), len);
    }
}

#[test]
fn sigma_decides_as_the_document_says() {
    let program = compile(&sigma(), Verdict::Errno(libc::EPERM), KEY);
    let ask = |nr: libc::c_long, args: [u64; 6]| run(&program, ARCH, nr as u32, args);
    let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
    let cases = [
        ("read", ask(libc::SYS_read, [0; 6]), ALLOW),
        ("thread", ask(libc::SYS_clone, [thread, 0, 0, 0, 0, 0]), ALLOW),
        ("new user namespace", ask(libc::SYS_clone, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]), EPERM),
        ("a child of our parent's", ask(libc::SYS_clone, [libc::CLONE_PARENT as u64, 0, 0, 0, 0, 0]), EPERM),
        ("a seed's clone", ask(libc::SYS_clone, [SEED_CLONE as u64, 1 << 40, 0, KEY, 0, 0]), ALLOW),
        (
            "a seed's clone with half the key",
            ask(libc::SYS_clone, [SEED_CLONE as u64, 0, 0, KEY as u32 as u64, 0, 0]),
            EPERM,
        ),
        ("setresuid", ask(libc::SYS_setresuid, [7, 7, 7, 0, 0, 0]), EPERM),
        ("setresuid by a seed", ask(libc::SYS_setresuid, [7, 7, 7, KEY, 0, 0]), ALLOW),
        ("own affinity", ask(libc::SYS_sched_getaffinity, [0; 6]), ALLOW),
        ("another's affinity", ask(libc::SYS_sched_getaffinity, [7, 0, 0, 0, 0, 0]), ENOSYS),
        ("another's session", ask(libc::SYS_getsid, [7, 0, 0, 0, 0, 0]), EPERM),
        ("another's group", ask(libc::SYS_getpgid, [7, 0, 0, 0, 0, 0]), EPERM),
        ("own processor time", ask(libc::SYS_clock_gettime, [u64::MAX << 3 | 2, 0, 0, 0, 0, 0]), ALLOW),
        ("another's processor time", ask(libc::SYS_clock_gettime, [(!7u64) << 3 | 2, 0, 0, 0, 0, 0]), EINVAL),
        ("clone3", ask(libc::SYS_clone3, [0; 6]), ENOSYS),
        ("openat", ask(libc::SYS_openat, [0; 6]), ENOENT),
        ("socket", ask(libc::SYS_socket, [1, 1, 0, 0, 0, 0]), EPERM),
        ("execveat of the program, with the key", ask(libc::SYS_execveat, [1000, 1, 1, 1, 0x1000, KEY]), ALLOW),
        ("execveat of what a program put there", ask(libc::SYS_execveat, [1000, 1, 1, 1, 0x1000, 0]), EPERM),
        ("execveat of another", ask(libc::SYS_execveat, [999, 1, 1, 1, 0x1000, 0]), EPERM),
        ("execve", ask(libc::SYS_execve, [0; 6]), EPERM),
        ("fstat", ask(libc::SYS_newfstatat, [3, 1, 1, 0x1000, 0, 0]), ALLOW),
        ("stat by path", ask(libc::SYS_newfstatat, [3, 1, 1, 0, 0, 0]), ENOENT),
        ("sendto with an address", ask(libc::SYS_sendto, [3, 1, 1, 0, 1 << 40, 0]), EPERM),
        ("send", ask(libc::SYS_sendto, [3, 1, 1, 0, 0, 0]), ALLOW),
        ("TIOCSTI", ask(libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0]), EPERM),
        ("TIOCSTI with a dirty upper half", ask(libc::SYS_ioctl, [0, 0x1_0000_5412, 0, 0, 0, 0]), EPERM),
        ("setrlimit", ask(libc::SYS_prlimit64, [0, 7, 1 << 32, 0, 0, 0]), EPERM),
        ("F_SETOWN", ask(libc::SYS_fcntl, [0, 8, 0, 0, 0, 0]), EPERM),
        ("ptrace", ask(libc::SYS_ptrace, [0; 6]), EPERM),
        ("io_uring_setup", ask(libc::SYS_io_uring_setup, [0; 6]), EPERM),
        ("x32 read", ask(0x4000_0000, [0; 6]), KILL),
    ];
    for (name, got, want) in cases {
        assert_eq!(got, want, "{name}: got {got:#x}, want {want:#x}");
    }
}

#[test]
fn linux_gets_more_files_and_threads_but_no_sockets() {
    let program = compile(&linux(), Verdict::Errno(libc::EPERM), KEY);
    let ask = |nr: libc::c_long, args: [u64; 6]| run(&program, ARCH, nr as u32, args);
    let cases = [
        ("memfd_create", ask(libc::SYS_memfd_create, [0; 6]), ALLOW),
        ("openat", ask(libc::SYS_openat, [0; 6]), ENOENT),
        ("own affinity", ask(libc::SYS_sched_setaffinity, [0; 6]), ALLOW),
        ("another's affinity", ask(libc::SYS_sched_setaffinity, [7, 0, 0, 0, 0, 0]), EPERM),
        ("a clock of another", ask(libc::SYS_timerfd_create, [(!7u64) << 3 | 2, 0, 0, 0, 0, 0]), EINVAL),
        ("global barrier", ask(libc::SYS_membarrier, [1, 0, 0, 0, 0, 0]), EPERM),
        ("private barrier", ask(libc::SYS_membarrier, [8, 0, 0, 0, 0, 0]), ALLOW),
        ("clone3", ask(libc::SYS_clone3, [0; 6]), ENOSYS),
        ("another personality", ask(libc::SYS_personality, [0x4_0000, 0, 0, 0, 0, 0]), EPERM),
        ("TIOCSTI", ask(libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0]), EPERM),
        ("F_SETLK", ask(libc::SYS_fcntl, [0, 6, 0, 0, 0, 0]), EPERM),
        ("PR_SET_MM", ask(libc::SYS_prctl, [35, 0, 0, 0, 0, 0]), EPERM),
        ("execve", ask(libc::SYS_execve, [0; 6]), ENOENT),
    ];
    for (name, got, want) in cases {
        assert_eq!(got, want, "{name}: got {got:#x}, want {want:#x}");
    }
    let never = [
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_sendmsg,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_pidfd_open,
        libc::SYS_mount,
        libc::SYS_setuid,
        libc::SYS_io_uring_setup,
        libc::SYS_userfaultfd,
        libc::SYS_vmsplice,
        libc::SYS_flock,
    ];
    for nr in never {
        assert_eq!(ask(nr, [0; 6]), EPERM, "call {nr}");
    }
}

#[test]
fn system_never_gets_the_dangerous_calls() {
    let program = compile(&system(), Verdict::Errno(libc::EPERM), KEY);
    let never = [
        libc::SYS_mount,
        libc::SYS_ptrace,
        libc::SYS_bpf,
        libc::SYS_keyctl,
        libc::SYS_io_uring_setup,
        libc::SYS_setuid,
        libc::SYS_setresuid,
        libc::SYS_setgid,
        libc::SYS_setresgid,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_execve,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_capset,
        libc::SYS_process_vm_readv,
        libc::SYS_pidfd_getfd,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
    ];
    for nr in never {
        assert_eq!(run(&program, ARCH, nr as u32, [0; 6]), EPERM, "call {nr}");
    }
    let ask = |nr: libc::c_long, domain: u64| run(&program, ARCH, nr as u32, [domain, 1, 0, 0, 0, 0]);
    assert_eq!(ask(libc::SYS_socket, libc::AF_UNIX as u64), ALLOW);
    assert_eq!(ask(libc::SYS_socket, libc::AF_INET as u64), EPERM);
    assert_eq!(ask(libc::SYS_socket, libc::AF_NETLINK as u64), EPERM);
}

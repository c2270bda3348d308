// Procs that are in the same PID namespace, and so have numbers: to know a number must not even tell that somebody is there.

G("a proc of the same realm", "probe a sibling by its scheduler")
A("a sibling's policy", SECCOMP | PIDS, R(0), sched_getscheduler(VICTIM))
A("a sibling's scheduling parameters", SECCOMP | PIDS, R(0), ({ struct sched_param p; sched_getparam(VICTIM, &p); }))
A("a sibling's slice", SECCOMP | PIDS, R(0), ({ struct timespec t; sched_rr_get_interval(VICTIM, &t); }))
A("a sibling's scheduling attributes", SECCOMP | PIDS, R(0), ({ char b[56]; syscall(SYS_sched_getattr, VICTIM, b, sizeof b, 0); }))

G("a proc of the same realm", "move a sibling's memory to other nodes")
A("migrate a sibling's pages", SECCOMP | LANDLOCK | PIDS | ROOT, R(ENOSYS, EINVAL), syscall(SYS_migrate_pages, VICTIM, 0, NULL, NULL))

G("a proc of the same realm", "count a sibling's events")
A("perf_event_open of a sibling", SECCOMP | LANDLOCK | PIDS | ROOT, R(0), perf(VICTIM, -1))

G("a proc of the same realm", "become a sibling by its uid")
A("setresuid to a sibling's uid", SECCOMP | CAPS, R(0), syscall(SYS_setresuid, VICTIM_UID, VICTIM_UID, VICTIM_UID))
A("setfsuid to a sibling's uid", SECCOMP | CAPS, R(0), syscall(SYS_setfsuid, VICTIM_UID))
A("every uid of the instance", SECCOMP | CAPS, R(0), any_uid(VICTIM_UID & ~0xfffff))

// What makes procs has their filter too, and may do more by a number that only it knows.
G("the filter", "guess the key of who makes procs")
A("guess the key that changes a uid", SECCOMP, R(0), guess_key(0))
A("guess the key that changes a limit", SECCOMP, R(0), guess_key(1))
A("guess the key that makes a child for the launcher", SECCOMP, R(0), guess_key(2))

G("a proc of the same realm", "clock a sibling's processor time")
A("a sibling's clock", SECCOMP | PIDS, R(0), ({ struct timespec t; clock_gettime(~(clockid_t)VICTIM << 3 | 2, &t); }))

G("a proc of the same realm", "take a sibling for a child")
A("wait for a sibling", NONE, R(0), syscall(SYS_waitid, P_PID, VICTIM, NULL, WEXITED | WNOHANG, NULL))
A("wait4 for a sibling", NONE, R(0), syscall(SYS_wait4, VICTIM, NULL, WNOHANG, NULL))
A("join a sibling's process group", NONE, R(0), setpgid(0, VICTIM))
A("move a sibling to a process group", NONE, R(0), setpgid(VICTIM, getpid()))
A("signal a sibling's process group", NONE, R(0), kill(-VICTIM, 0))
A("a timer for a sibling's thread", NONE, R(0), timer_for(VICTIM))

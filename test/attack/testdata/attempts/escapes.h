// Ways out that take something outside to lead to: the test made it and tells by the environment where it is.

// The pattern of CVE-2024-21626: runc left a descriptor of the host open across its exec.
G("files of the host", "leave by a descriptor that was left open")
A("a descriptor that nobody passed", PROGRAM, R(0), left_open(0))
A("a directory that nobody passed", OUTSIDE, R(0), left_open(S_IFDIR))
A("openat beneath a directory that nobody passed", OUTSIDE, R(0), openat(left_open(S_IFDIR), "etc/passwd", O_RDONLY))
A("fchdir to a directory that nobody passed", OUTSIDE, R(0), fchdir(left_open(S_IFDIR)))
A("fstatat of a directory that nobody passed", OUTSIDE, R(0), ({ struct stat st; syscall(SYS_newfstatat, left_open(S_IFDIR), "..", &st, AT_EMPTY_PATH); }))

G("services of the host", "connect to an abstract name")
A("connect to the host's abstract name", SECCOMP | LANDLOCK | NETWORK, R(0), connect_unix(getenv("ABSTRACT"), 1))

G("services of the host", "connect to a socket by its path")
A("connect to a socket by its path", FILES, R(0), connect_unix(getenv("SOCKET"), 0))

G("sigmad", "connect to sigmad as the provider")
A("connect to sigmad's socket of the provider", FILES | ROOT, R(EPROTOTYPE), connect_unix(getenv("ADMIN"), 0))

G("privilege", "execute a set-uid program")
A("execve a set-uid program of root", FILES | NNP, R(0), exec_set_uid(getenv("SETUID")))

package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// mountMemory is the most memory in bytes that the server of a mount can have, whatever the trees
// are like that it shows: four times what 131,072 inodes need. Beyond it the server ends, and its
// keeper unmounts.
const mountMemory = 1 << 30

// limitMemory sets that limit for this process; the collector works harder from half of it on.
func limitMemory() error {
	debug.SetMemoryLimit(mountMemory / 2)
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: mountMemory, Max: mountMemory}); err != nil {
		return sigma.Wrap("sigma.mount", "", err)
	}
	return nil
}

// mountUIDs is the first of the uids of servers, which are nobody's: those below procs', one for
// each process number.
const mountUIDs = 0x3fc0_0000

// pidsMost is how many process numbers Linux can have.
const pidsMost = 1 << 22

// mayMount says whether this process can mount, and give a server of its own no rights.
func mayMount() bool {
	var have [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &have[0])
	const need = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return err == nil && os.Geteuid() == 0 && have[0].Effective&need == need
}

// dropRights takes all rights from this process for ever: it has a uid that owns nothing, no groups
// and no capabilities, and gets none by executing a program. In a user namespace without that uid
// it keeps its own, and nothing else.
func dropRights(uid int) error {
	const op = "sigma.dropRights"
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return sigma.Wrap(op, "", errno)
	}
	if err := syscall.Setgroups(nil); err != nil &&
		!errors.Is(err, syscall.EPERM) { // EPERM: not in this user namespace
		return sigma.Wrap(op, "", err)
	}
	if err := syscall.Setresgid(uid, uid, uid); err != nil && !errors.Is(err, syscall.EINVAL) { // EINVAL: as above
		return sigma.Wrap(op, "", err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil && !errors.Is(err, syscall.EINVAL) {
		return sigma.Wrap(op, "", err)
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&none)), 0); errno != 0 { // SAFETY: the kernel reads both during the call
		return sigma.Wrap(op, "", errno)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return sigma.Wrap(op, "", err)
	}
	return nil
}

// cgroupPrefix begins the names of servers' cgroups; the keeper's process number follows.
const cgroupPrefix = "sigma-mount-"

// limitedCgroup puts a process into a cgroup of its own that may have so much memory, and returns
// that; "" where this host does not allow it. Those of keepers that are gone are removed.
func limitedCgroup(pid int, most int64) string {
	parent, limit := memoryParent()
	if parent == "" {
		return ""
	}
	old, _ := filepath.Glob(filepath.Join(parent, cgroupPrefix+"*"))
	for _, dir := range old {
		keeper, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix))
		if err == nil && errors.Is(syscall.Kill(keeper, 0), syscall.ESRCH) {
			unix.Rmdir(dir) // which fails while its server lives
		}
	}
	dir := filepath.Join(parent, cgroupPrefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return ""
	}
	for _, w := range [][2]string{{limit, strconv.FormatInt(most, 10)}, {"cgroup.procs", strconv.Itoa(pid)}} {
		if err := os.WriteFile(filepath.Join(dir, w[0]), []byte(w[1]), 0); err != nil {
			unix.Rmdir(dir)
			return ""
		}
	}
	return dir
}

// memoryParent finds where this process may have cgroups of memory made, and the file of their
// limit: within its own in version 1; beside it in version 2, where a cgroup with processes can
// have none within.
func memoryParent() (parent, limit string) {
	mounted, _ := os.ReadFile("/proc/self/mountinfo")
	own, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(mounted)) {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 5 || len(r) < 3 {
			continue
		}
		for mine := range strings.Lines(string(own)) {
			f := strings.SplitN(strings.TrimSpace(mine), ":", 3)
			switch {
			case len(f) < 3:
			case r[0] == "cgroup" && f[1] == "memory" && slices.Contains(strings.Split(r[2], ","), "memory"):
				return filepath.Join(l[4], f[2]), "memory.limit_in_bytes"
			case r[0] == "cgroup2" && f[1] == "":
				dir := filepath.Join(l[4], filepath.Dir(f[2]))
				given, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
				if slices.Contains(strings.Fields(string(given)), "memory") {
					return dir, "memory.max"
				}
			}
		}
	}
	return "", ""
}

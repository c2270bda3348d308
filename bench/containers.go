package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// containers are what people start isolated programs with today, each made to isolate as nearly as
// it can what a proc's walls do (SECURITY.md), and no more:
//
//   - bwrap: empty network, a PID namespace with an init, IPC, UTS, cgroup and mount namespaces, an
//     empty root with the program read-only, no capabilities, a session of its own. It does less
//     than a proc's start: no cgroup with limits, no filter of system calls, no Landlock, no uid of
//     its own.
//   - docker: the same by its own words, with a daemon of the bench's own (docker.go).
//   - runc and crun: the same namespaces, an empty read-only root with /proc (which they need
//     themselves), a uid of its own, no capabilities, no_new_privs, limits of memory and processes
//     in a cgroup, an allow list of system calls of about the length of ours. They do less than a
//     proc's start: no Landlock, no init in the PID namespace.
//
// None of them gives the program an identity, logs, or a place to be found.
type container struct {
	name, pack string // and the Debian package that has it
	command    func(r *Run, path, program string) ([]string, error)
}

func containers() []container {
	return []container{{"bwrap", "bubblewrap", bwrapCommand}, {"runc", "runc", ociCommand},
		{"crun", "crun", ociCommand}}
}

// installMax is how long installing a peer may take: it counts for --quick.
const installMax = 20 * time.Second

// find returns where a program is, installing its Debian package if it has to.
func find(ctx context.Context, name, pack string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	ctx, cancel := context.WithTimeout(ctx, installMax)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "apt-get", "install", "-qq", "-y", "--no-install-recommends",
		pack).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("is not installed, and apt-get install %s fails: %w: %.200s", pack, err,
			lines[len(lines)-1])
	}
	return exec.LookPath(name)
}

// hybridUnified is where the second version of cgroups is mounted beside the first. crun refuses to
// run there, so it is shown a machine that has the first only.
const hybridUnified = "/sys/fs/cgroup/unified"

func withoutUnified() []string {
	return []string{"unshare", "--mount", "sh", "-c", "umount " + hybridUnified + ` && exec "$0" "$@"`}
}

func bwrapCommand(_ *Run, path, program string) ([]string, error) {
	return []string{path, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
		"--die-with-parent", "--new-session", "--cap-drop", "ALL",
		"--clearenv", "--ro-bind", program, "/start", "--remount-ro", "/", "/start"}, nil
}

// ociCalls is what a static C program needs and about as much again, so that the filter is as long
// as ours.
const ociCalls = `read write readv writev pread64 pwrite64 lseek close dup dup2 dup3 fstat newfstatat fcntl ioctl pipe pipe2 eventfd2 poll ppoll select pselect6 epoll_create1 epoll_ctl
epoll_wait epoll_pwait brk mmap munmap mprotect madvise mremap mincore clone fork vfork futex set_robust_list get_robust_list rseq set_tid_address arch_prctl sched_yield
sched_getaffinity gettid getpid getppid exit exit_group wait4 waitid rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack tgkill tkill kill rt_sigtimedwait pause
restart_syscall clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday getrandom uname getuid geteuid getgid getegid prlimit64 getrusage prctl execve openat
access faccessat2 stat lstat statx readlink readlinkat getcwd statfs fstatfs getdents64 close_range recvfrom recvmsg sendto shutdown getsockname getpeername setsockopt getsockopt`

// ociCommand writes a bundle, as the runtimes want it.
func ociCommand(r *Run, path, program string) ([]string, error) {
	name := filepath.Base(path)
	dir := filepath.Join(r.dir, "bundle-"+name+"-"+filepath.Base(program))
	for _, d := range []string{"proc", "dev"} { // crun wants to find both
		if err := os.MkdirAll(filepath.Join(dir, "rootfs", d), 0o755); err != nil {
			return nil, err
		}
	}
	bytes, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "rootfs", "start"), bytes, 0o755)
	}
	if err != nil {
		return nil, err
	}
	type object = map[string]any
	var namespaces []object
	for _, n := range []string{"pid", "network", "ipc", "uts", "mount"} {
		namespaces = append(namespaces, object{"type": n})
	}
	config := object{
		"ociVersion": "1.0.2",
		"process": object{"terminal": false, "user": object{"uid": 60000, "gid": 60000}, "args": []string{"/start"},
			"env": []string{}, "cwd": "/", "capabilities": object{},
			"noNewPrivileges": true},
		"root":     object{"path": "rootfs", "readonly": true},
		"hostname": "sigma",
		"mounts":   []object{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": object{
			"cgroupsPath": "/" + filepath.Base(r.dir) + "-" + name,
			"resources":   object{"memory": object{"limit": 64 << 20}, "pids": object{"limit": 64}},
			"namespaces":  namespaces,
			"seccomp": object{"defaultAction": "SCMP_ACT_ERRNO", "architectures": []string{"SCMP_ARCH_X86_64"},
				"syscalls": []object{{"names": strings.Fields(ociCalls), "action": "SCMP_ACT_ALLOW"}}},
		},
	}
	text, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644)
	}
	return []string{path, "--root", filepath.Join(r.dir, "state-"+name), "run", "--bundle", dir,
		filepath.Base(r.dir) + "-" + name}, err
}

package hostsetup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// Rootless mode: the launcher is root only in a user namespace of its own, in which the user is 0
// and a range of subordinate uids follows (docs/reference/rootless.md).
const (
	rootlessLeast = 4096    // uids, of which a quarter is for services; the launcher takes no fewer
	rootlessMost  = 1 << 20 // as many as root's systems have
	mapTimeout    = 20 * time.Second
)

// idRange is one line of /etc/subuid or /etc/subgid.
type idRange struct{ first, count uint64 }

// subordinate finds a user's largest range; a line names the user or gives the uid.
func subordinate(text string, u *user.User) idRange {
	var best idRange
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 || f[0] != u.Username && f[0] != u.Uid {
			continue
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 == nil && err2 == nil && count > best.count {
			best = idRange{first, count}
		}
	}
	return best
}

// Rootless is what this machine offers an ordinary user. Its zero value offers nothing.
type Rootless struct {
	uids, gids       idRange
	uidMap, gidMap   string // paths of newuidmap and newgidmap
	CGroup           string // a directory of version 2 whose subtree is the user's; "" if there is none
	cgroupWhy        string // why there is none
	Missing, HowMore string // what prevents the mode; "" if nothing does
}

// FindRootless looks, without changing anything but the controllers of a cgroup of the user's.
func FindRootless() Rootless {
	r := Rootless{}
	fail := func(missing, how string) Rootless {
		r.Missing, r.HowMore = missing, how
		return r
	}
	u, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil {
		return fail(fmt.Sprintf("the user %d has no name", os.Getuid()),
			"give it one in /etc/passwd: newuidmap asks for it")
	}
	if r.uidMap, err = exec.LookPath("newuidmap"); err == nil {
		r.gidMap, err = exec.LookPath("newgidmap")
	}
	if err != nil {
		return fail("no newuidmap or newgidmap", "apt-get install uidmap")
	}
	uids, _ := os.ReadFile("/etc/subuid")
	gids, _ := os.ReadFile("/etc/subgid")
	r.uids, r.gids = subordinate(string(uids), u), subordinate(string(gids), u)
	if min(r.uids.count, r.gids.count) < rootlessLeast {
		return fail(fmt.Sprintf("user %s has fewer than %d subordinate uids or gids", u.Username, rootlessLeast),
			fmt.Sprintf("as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", u.Username))
	}
	for file, off := range map[string]string{"user/max_user_namespaces": "0", "kernel/unprivileged_userns_clone": "0",
		"kernel/apparmor_restrict_unprivileged_userns": "1"} {
		if b, err := os.ReadFile("/proc/sys/" + file); err == nil && strings.TrimSpace(string(b)) == off {
			return fail("ordinary users may not make user namespaces: "+file+" is "+off,
				"as root: sysctl -w "+strings.ReplaceAll(file, "/", ".")+"=N, with another N than "+off)
		}
	}
	r.CGroup, r.cgroupWhy = delegated()
	return r
}

// Count is how many uids the system gets.
func (r Rootless) Count() uint64 { return min(r.uids.count, r.gids.count, rootlessMost) }

// Weaker says what this user's mode lacks compared with root's.
func (r Rootless) Weaker() []string {
	out :=
		[]string{
			"outside, procs and services are uids of yours: what escapes from a proc's walls is on your account's " +
				"ground, not on a stranger's"}
	if r.CGroup == "" {
		out = append(out, "no cgroup ("+r.cgroupWhy+
			"): no limit of memory, no weight of processor time, no status oom; processes are bounded by "+
			"RLIMIT_NPROC alone. "+
			"With systemd: systemd-run --user --scope -p Delegate=yes sigma up --rootless")
	}
	return out
}

// delegated finds the nearest cgroup, from this process's own on upwards, in which this user may
// make others with our controllers.
func delegated() (dir, why string) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err.Error()
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	own, root := "", ""
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own = path
		}
	}
	for line := range strings.Lines(string(mounts)) {
		left, right, _ := strings.Cut(line, " - ")
		if f := strings.Fields(left); len(f) > 4 && strings.HasPrefix(right, "cgroup2 ") && f[3] == "/" {
			root = f[4]
			break
		}
	}
	if own == "" || root == "" || strings.HasPrefix(own, "/..") {
		return "", "there are none of version 2"
	}
	why = "none of those that this process is in belongs to you"
	for at := filepath.Clean(own); ; at = filepath.Dir(at) {
		dir := filepath.Join(root, at)
		// Who moves a process must be allowed to write both here and where it comes from.
		if unix.Access(dir, unix.W_OK) != nil || unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) != nil {
			return "", why
		}
		has, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if missing := MissingControllers(strings.Fields(string(has))); len(missing) > 0 {
			why = "the one that belongs to you lacks " + strings.Join(missing, ", ")
		} else if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory +pids +cpu"),
			0); err == nil {
			return dir, ""
		}
		if at == "/" {
			return "", why
		}
	}
}

// RootlessStart is the part of a start that maps the namespace of a launcher.
type RootlessStart struct {
	Rootless
	ours, Theirs *os.File // a socket pair
}

// Start prepares a start in this mode.
func (r Rootless) Start() (*RootlessStart, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &RootlessStart{r, os.NewFile(uintptr(fds[0]), "mapping"), os.NewFile(uintptr(fds[1]), "mapping")}, nil
}

// Argument is what the launcher is told, which gets theirs as number fd.
func (s *RootlessStart) Argument(fd int) []string {
	return []string{"--rootless", fmt.Sprintf("%d:%d:%s", fd, s.Count(), s.CGroup)}
}

// Close lets go of the sockets.
func (s *RootlessStart) Close() {
	if s == nil {
		return
	}
	s.ours.Close()
	s.Theirs.Close()
}

// MapIDs waits until the launcher has its namespace, maps it, and says so.
func (s *RootlessStart) MapIDs(pid int) error {
	s.Theirs.Close() // so that the end of the launcher is seen
	c, err := net.FileConn(s.ours)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(mapTimeout))
	if _, err := bufio.NewReader(c).ReadByte(); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the launcher could not make one; see sigma.log")
		}
		return &sigma.Error{Op: "hostsetup.Rootless", Kind: sigma.KindUnavailable, Msg: "no user namespace", Err: err,
			Hint: "what is missing is told by: sigma doctor"}
	}
	for _, m := range []struct {
		tool string
		self int
		ids  idRange
	}{{s.uidMap, os.Getuid(), s.uids}, {s.gidMap, os.Getgid(), s.gids}} {
		text := func(n uint64) string { return strconv.FormatUint(n, 10) }
		cmd := exec.Command(m.tool, strconv.Itoa(pid), "0", strconv.Itoa(m.self), "1", "1", text(m.ids.first),
			text(s.Count()))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if out, err := cmd.CombinedOutput(); err != nil {
			return &sigma.Error{Op: "hostsetup.Rootless", Kind: sigma.KindPermission,
				Msg: fmt.Sprintf("%s: %s", filepath.Base(m.tool), strings.TrimSpace(string(out))), Err: err,
				Hint: "what is missing is told by: sigma doctor"}
		}
	}
	_, err = c.Write([]byte("m"))
	return err
}

// Controllers are those of control groups that hold procs to their limits.
func Controllers() []string { return []string{"memory", "pids", "cpu"} }

// MissingControllers are those that a hierarchy of control groups lacks.
func MissingControllers(has []string) []string {
	return slices.DeleteFunc(Controllers(), func(c string) bool { return slices.Contains(has, c) })
}

package testenv

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sigmaos.dev/kernel/hostsetup"
)

// A proc can leave something in many places, so all are counted: processes, control groups, mounts,
// namespaces, sockets and pipes in the daemons, temporary files. Everything is found by the
// instance's number, its uids or its data directory; so what other systems on the host do at the
// same time does not disturb.

// parkedMax is how many children the launcher keeps ready, and sparesMax how many cgroup leaves it
// has beyond those of procs (launcher/src/parking.rs, cgroup.rs). How many changes all the time, so
// those up to the limit count as none. What they are called by tells nothing: a leaf goes from proc
// to proc.
const (
	parkedMax = 64
	sparesMax = parkedMax + 128
)

func spare(cgroup string) bool { return strings.HasPrefix(filepath.Base(cgroup), "spare-") }

// uidRange is how many uids an instance has (docs/internals/launcher-protocol.md).
const uidRange = 1 << 20

// Census is what there is of one system at a moment: how many by kind and place, "process
// rest/be/default/17 hello": 1.
type Census map[string]int

// process is one of this system's, as /proc tells.
type process struct {
	pid    int
	name   string
	parent int
	cgroup string // below sigma-INSTANCE; "" if in none
	uid    uint32
	zombie bool
	args   string
}

// readProcess reads what /proc tells of a process, and false if there is none, or it is a thread of
// the kernel.
func readProcess(pid int) (process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	p := process{pid: pid}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return p, false
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch key {
		case "Name":
			p.name = fields[0]
		case "State":
			p.zombie = fields[0] == "Z" || fields[0] == "X"
		case "Kthread": // of Linux 6.8 and newer
			if fields[0] == "1" {
				return p, false
			}
		case "PPid":
			p.parent, _ = strconv.Atoi(fields[0])
		case "Uid":
			n, _ := strconv.ParseUint(fields[0], 10, 32)
			p.uid = uint32(n)
		}
	}
	args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	p.args = string(bytes.ReplaceAll(args, []byte{0}, []byte{' '}))
	groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	if _, at, ok := strings.Cut(string(groups), "/sigma-"); ok && len(at) > 8 {
		p.cgroup = "/sigma-" + strings.SplitN(at, "\n", 2)[0]
	}
	return p, true
}

// processes lists those of this system. Zombies are left out: they hold nothing, and whose child
// they are is their parent's business.
func (s *System) processes() (out []process) {
	if s.instance == "" {
		return nil
	}
	number, _ := strconv.ParseUint(s.instance, 16, 32)
	base, uids := uint32(0x40000000+number%1024<<20), uint32(uidRange)
	if first, count,
		rootless := RootlessUIDs(); rootless { // of all systems of this user, so a package in this mode should have one
		base, uids = first, count
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, ok := readProcess(pid)
		if !ok || p.zombie {
			continue
		}
		whole := p
		group, in := strings.CutPrefix(p.cgroup, "/sigma-"+s.instance)
		p.cgroup = strings.TrimPrefix(group, "/")
		if !in {
			p.cgroup = ""
		}
		if in || p.uid >= base && p.uid-base < uids && s.owns(whole) ||
			strings.Contains(p.args, "--instance "+s.instance) ||
			strings.Contains(p.args, s.DataDir) && strings.HasPrefix(p.args, s.bin) {
			out = append(out, p)
		}
	}
	return out
}

// owns reports whether no other system owns a process with a uid of this one.
func (s *System) owns(p process) bool {
	owner := p.owner()
	return owner == "" || owner == s.instance
}

// owner is the instance that a process says it is of, by its cgroup, or by its arguments or those
// of who started it; "" if nobody says so. Uids do not tell systems on one host apart: they come
// from ten bits of the instance, so now and then two have the same.
func (p process) owner() string {
	if group, ok := strings.CutPrefix(p.cgroup, "/sigma-"); ok {
		return strings.SplitN(group, "/", 2)[0]
	}
	for range 16 { // generations, far more than there are between a proc and its launcher
		if _, after, ok := strings.Cut(p.args, "--instance "); ok {
			return strings.SplitN(after, " ", 2)[0]
		}
		if p.parent <= 1 {
			break
		}
		var ok bool
		if p, ok = readProcess(p.parent); !ok {
			break
		}
	}
	return ""
}

// Census counts what there is now.
func (s *System) Census() Census {
	c := Census{}
	spaces := map[string]map[string]bool{"net": {}, "mnt": {}, "ipc": {}, "uts": {}, "user": {}}
	for _, p := range s.processes() {
		if p.name == "launcher" && (p.cgroup == "" || spare(p.cgroup)) || p.name == "keeper" && p.cgroup == "" {
			c["process keeper, launcher or one of its spares"] = 1
		} else {
			c[fmt.Sprintf("process %s %s", p.cgroup, p.name)]++
		}
		for kind, seen := range spaces {
			if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.pid, kind)); err == nil {
				seen[ns] = true
			}
		}
		if slices.Contains(hostsetup.BootSet(), p.name) ||
			p.name == "launcher" && strings.Contains(p.args, "--instance") && p.cgroup == "" && p.uid == 0 &&
				p.pid == s.PID("launcher") {
			for kind, n := range openFiles(p.pid) {
				if p.name == "launcher" {
					n /= 4 * parkedMax // its parked children hold some
				}
				c[fmt.Sprintf("%ss open in %s", kind, p.name)] = n
			}
		}
	}
	for kind, seen := range spaces {
		c[kind+" namespaces"] = len(seen)
	}
	spares := 0
	for _, g := range s.cgroups() {
		if spare(g) {
			spares++
		} else {
			c["cgroup "+g]++
		}
	}
	c["cgroups of spares beyond their limit"] = max(0, spares-4*sparesMax) // in up to four hierarchies
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.DataDir) || s.instance != "" && strings.Contains(line, s.instance) {
			c["mount "+strings.TrimSpace(line)]++
		}
	}
	c["mounted namespaces"] = nsfsMounts() - s.nsfs
	filepath.WalkDir(s.DataDir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
		case d.Type()&fs.ModeSocket != 0 && filepath.Base(filepath.Dir(path)) == peerSockets:
			// A named that is killed leaves them, and the next one on the machine removes them.
		case d.Type()&fs.ModeSocket != 0:
			c["socket "+path]++
		case strings.HasPrefix(d.Name(), "fetch-"), strings.HasPrefix(d.Name(), "put-"),
			strings.HasSuffix(d.Name(), "~"):
			c["temporary file "+path]++
		}
		return nil
	})
	maps.DeleteFunc(c, func(_ string, n int) bool { return n == 0 })
	return c
}

// peerSockets is the directory of named's sockets to its peers (named.EnterSocketDir).
const peerSockets = "peers"

// openFiles counts what a process has open that is no file of the disk: sockets, pipes, and what
// the kernel calls anonymous (pidfds, epolls, event counters).
func openFiles(pid int) map[string]int {
	out := map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		to, _ := os.Readlink(filepath.Join(dir, e.Name()))
		if kind, _, ok := strings.Cut(to, ":["); ok && (kind == "socket" || kind == "pipe" || kind == "anon_inode") {
			out[kind]++
		}
	}
	return out
}

// cgroups lists the instance's control groups in all hierarchies.
func (s *System) cgroups() (out []string) {
	if s.instance == "" {
		return nil
	}
	for _, root := range s.cgroupRoots() {
		filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				out = append(out, path)
			}
			return nil
		})
	}
	return out
}

func (s *System) cgroupRoots() (out []string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		left, right, _ := strings.Cut(line, " - ")
		if f := strings.Fields(left); len(f) > 4 && strings.HasPrefix(right, "cgroup") {
			filepath.WalkDir(f[4], func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() && d.Name() == "sigma-"+s.instance {
					out = append(out, path)
					return fs.SkipDir
				}
				return nil
			})
		}
	}
	return out
}

func nsfsMounts() int {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	return strings.Count(string(b), " - nsfs ")
}

// Beyond lists what c has more than before.
func (c Census) Beyond(before Census) []string {
	var out []string
	for _, what := range slices.Sorted(maps.Keys(c)) {
		if n := c[what] - before[what]; n > 0 {
			out = append(out, fmt.Sprintf("%+d %s", n, what))
		}
	}
	return out
}

// NoLeaks fails the test if the running system does not soon return to what it was before.
func (s *System) NoLeaks(tb testing.TB, before Census) {
	tb.Helper()
	if err := poll(func() error { return leakError(s.Census().Beyond(before)) }); err != nil {
		tb.Errorf("the system leaks: %v", err)
	}
}

func leakError(leaks []string) error {
	if len(leaks) == 0 {
		return nil
	}
	if len(leaks) > 30 {
		leaks = append(leaks[:30], fmt.Sprintf("and %d more", len(leaks)-30))
	}
	return fmt.Errorf("left over:\n  %s", strings.Join(leaks, "\n  "))
}

// Gone checks that a system that is down, or was killed and started again since, has left nothing
// on the host.
func (s *System) Gone() error {
	return poll(func() error { return leakError(s.Census().Beyond(nil)) })
}

// close takes the system down, counts what is left, and sweeps.
func (s *System) close() error {
	var err error
	if s.Running() {
		stdout, stderr, code, cerr := s.cli("down", "--now")
		if cerr != nil || code != 0 {
			err = fmt.Errorf("sigma down: exit code %d, %v\n%s%s", code, cerr, stdout, stderr)
		}
	} else if s.instance != "" { // it was killed; the next start would have removed what it left
		err = s.up()
		if _, _, code, cerr := s.cli("down", "--now"); err == nil && (cerr != nil || code != 0) {
			err = fmt.Errorf("sigma down after a kill: exit code %d, %v", code, cerr)
		}
	}
	if err == nil {
		err = s.Gone()
	}
	s.sweep()
	return err
}

// sweep removes by force what is left, and the data directory.
func (s *System) sweep() {
	for _, p := range s.processes() {
		syscall.Kill(p.pid, syscall.SIGKILL)
	}
	s.sweepGroups()
	os.RemoveAll(s.home)
	s.guardian.release()
}

// sweepGroups removes the control groups of a system of which nothing runs.
func (s *System) sweepGroups() {
	poll(func() error {
		groups := s.cgroups()
		slices.Reverse(groups)
		for _, g := range groups {
			syscall.Rmdir(g)
		}
		return leakError(s.cgroups())
	})
}

// CPUTime is how much time the system's processes of a name have used so far, in a form that can be
// compared.
func (s *System) CPUTime(name string) string {
	var out []string
	for _, p := range s.processes() {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", p.pid)); err == nil && p.name == name {
			out = append(out, strings.TrimSpace(string(stat)))
		}
	}
	return strings.Join(out, ", ")
}

// GroupFiles reads a file of the cgroups that match a pattern below the instance's, as in "lc/*";
// without those that have none.
func (s *System) GroupFiles(pattern, file string) (out []string) {
	for _, root := range s.cgroupRoots() {
		paths, _ := filepath.Glob(filepath.Join(root, pattern, file))
		for _, path := range paths {
			if text, err := os.ReadFile(path); err == nil {
				out = append(out, strings.TrimSpace(string(text)))
			}
		}
	}
	return out
}

package bench

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// footprint is what a system holds on the host, what the launcher keeps ready for later starts
// included: an idle one keeps nothing.
type footprint struct {
	processes  int
	leaves     int // cgroups of services and procs, and those that are kept for procs to come
	mounts     int
	namespaces int                // that a process of the system is in
	files      int                // open in launcher and daemons
	memory     map[string]float64 // KiB, proportional set size of launcher and daemons
}

// leakMetrics are in the order in which they are printed.
var leakMetrics = [...]string{"leaked_processes", "leaked_cgroups", "leaked_mounts", "leaked_namespaces",
	"leaked_descriptors"}

// leaks tells what there is more of than when the system had just booted; of descriptors, than when
// it was warm: some are for connections that are made when they are first needed.
func (f footprint) leaks(booted, warm footprint) [len(leakMetrics)]int {
	return [...]int{f.processes - booted.processes, f.leaves - booted.leaves, f.mounts - booted.mounts,
		f.namespaces - booted.namespaces, f.files - warm.files}
}

// footprint counts.
func (s *system) footprint() footprint {
	f := footprint{memory: map[string]float64{}}
	namespaces := map[string]bool{}
	family := s.family()
	space := s.space(family)
	for _, p := range family {
		if p.pid == space {
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(p.pid))
		f.processes++
		for _, kind := range []string{"pid", "mnt", "net", "ipc", "uts", "user", "cgroup"} {
			if ns, err := os.Readlink(filepath.Join(dir, "ns", kind)); err == nil {
				namespaces[ns] = true
			}
		}
		if p.daemon() || s.launcher(p) {
			open, _ := os.ReadDir(filepath.Join(dir, "fd"))
			f.files += len(open)
			f.memory[p.name] += kibField(filepath.Join(dir, "smaps_rollup"), "Pss")
		}
	}
	f.namespaces = len(namespaces)
	for _, root := range s.cgroupRoots() {
		filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && isLeaf(d.Name()) {
				f.leaves++
			}
			return nil
		})
	}
	for _, who := range []string{"self", strconv.Itoa(s.pid)} {
		mounts, _ := os.ReadFile(filepath.Join("/proc", who, "mountinfo"))
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, "sigma") { // others mount and unmount meanwhile
				f.mounts++
			}
		}
	}
	return f
}

// space is the init of the PID namespace that all procs share, which the launcher makes when it is
// first needed and keeps: the oldest child of the launcher proper that has its name, and no
// children that anybody but the launcher started. 0: there is none yet.
func (s *system) space(family []process) int {
	parents := map[int]bool{}
	for _, p := range family {
		parents[p.parent] = true
	}
	oldest := 0
	for _, p := range family {
		if p.name == "launcher" && !s.launcher(p) && !parents[p.pid] && (oldest == 0 || p.pid < oldest) {
			oldest = p.pid
		}
	}
	return oldest
}

// isLeaf tells the cgroups that are made for one proc from those of groups, which stay with their
// realm.
func isLeaf(name string) bool {
	_, err := strconv.ParseUint(strings.TrimPrefix(name, "spare-"), 10, 64)
	return err == nil
}

// cgroupRoots are the system's cgroups at the top, one in each hierarchy that is in use.
func (s *system) cgroupRoots() []string {
	id, _ := os.ReadFile(filepath.Join(s.data, "instance"))
	name := "sigma-" + strings.TrimSpace(string(id))
	var roots []string
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name {
			roots = append(roots, path)
			return fs.SkipDir
		}
		return nil
	})
	return roots
}

// settleMax is how long a system may take to be idle: what the launcher keeps ready is given up 10
// s after the last start.
const settleMax = 20 * time.Second

// settle waits until no more is held than before, or a deadline, and returns what there is.
func (s *system) settle(booted, warm footprint) footprint {
	for deadline := time.Now().Add(settleMax); ; time.Sleep(100 * time.Millisecond) {
		f := s.footprint()
		worst := 0
		for _, n := range f.leaks(booted, warm) {
			worst = max(worst, n)
		}
		if worst == 0 || time.Now().After(deadline) {
			return f
		}
	}
}

// leakCheck compares what is held at the end with what was.
type leakCheck struct {
	s            *system
	booted, warm footprint
	held         float64 // KiB when warm
}

// watchLeaks is called when the system has booted and nothing was started yet.
func (s *system) watchLeaks() *leakCheck { return &leakCheck{s: s, booted: s.footprint()} }

// isWarm is called when a few procs have been started.
func (c *leakCheck) isWarm() {
	c.warm = c.s.footprint()
	c.held = c.s.held()
}

// held is the memory that cannot be had back from the system while it lives, in KiB: that of its
// processes and of the kernel's objects for them, as its cgroups count them, and of launcher and
// keeper, which are in none. Others on the machine do not disturb it, as they would what the
// machine has left.
func (s *system) held() (sum float64) {
	for _, p := range s.family() {
		if s.launcher(p) {
			sum += kibField(fmt.Sprintf("/proc/%d/smaps_rollup", p.pid), "Pss")
		}
	}
	for _, root := range s.cgroupRoots() {
		sum += number(root+"/memory.kmem.usage_in_bytes") / 1024
		stat, _ := os.ReadFile(root + "/memory.stat")
		for line := range strings.Lines(string(stat)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if name == "total_rss" || name == "anon" ||
				name == "kernel" { // of the first version of cgroups; of the second
				n, _ := strconv.ParseFloat(value, 64)
				sum += n / 1024
			}
		}
	}
	return sum
}

// report prints what was left over, in which nothing is best. What is remembered of procs that have
// ended, some 4 KiB each of the last 8,192 of a realm, is in the memory.
func (c *leakCheck) report(starts int) error {
	r := c.s.r
	after := c.s.settle(c.booted, c.warm)
	for i, n := range after.leaks(c.booted, c.warm) {
		if err := r.print(Line{Metric: leakMetrics[i], Unit: "1", Ours: float64(n), Peer: "none", Theirs: pointer(0),
			Floor: pointer(0), N: starts}); err != nil {
			return err
		}
	}
	grown := c.s.held() - c.held
	if err := r.print(Line{Metric: "leaked_kib_per_start", Unit: "KiB", Ours: grown / float64(max(starts, 1)),
		Peer: "none", Theirs: pointer(0), Floor: pointer(0), N: starts}); err != nil {
		return err
	}
	var text strings.Builder
	for _, part := range slices.Sorted(maps.Keys(after.memory)) {
		fmt.Fprintf(&text, "; %s %.1f MiB, %.1f MiB", part, c.warm.memory[part]/1024, after.memory[part]/1024)
	}
	r.note("memory when warm and at the end: all %+.1f MiB%s", grown/1024, text.String())
	return nil
}

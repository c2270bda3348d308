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

// footprint is what a system holds on the host. Processes and cgroups that the launcher keeps ready for later starts are not in it: how many there are changes with
// the load, and has a limit of its own.
type footprint struct {
	processes, cgroups, mounts, files int
	memory                            map[string]float64 // KiB, proportional set size of launcher and daemons
}

// leaks names what there is more of than before.
func (f footprint) leaks(before footprint) map[string]int {
	return map[string]int{"leaked_processes": f.processes - before.processes, "leaked_cgroups": f.cgroups - before.cgroups, "leaked_mounts": f.mounts - before.mounts,
		"leaked_descriptors": f.files - before.files}
}

// footprint counts.
func (s *system) footprint() footprint {
	f := footprint{memory: map[string]float64{}}
	for _, p := range s.family() {
		dir := filepath.Join("/proc", strconv.Itoa(p.pid))
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if numberedLeaf(string(group)) {
			f.processes++
		}
		if p.daemon() {
			open, _ := os.ReadDir(filepath.Join(dir, "fd"))
			f.files += len(open)
		}
		if p.daemon() || s.launcher(p) { // the launcher's files grow with what it keeps ready
			f.memory[p.name] += kibField(filepath.Join(dir, "smaps_rollup"), "Pss")
		}
	}
	for _, root := range s.cgroupRoots() {
		filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && numberedLeaf(path) {
				f.cgroups++
			}
			return nil
		})
	}
	for _, who := range []string{"self", strconv.Itoa(s.pid)} {
		mounts, _ := os.ReadFile(filepath.Join("/proc", who, "mountinfo"))
		f.mounts += strings.Count(string(mounts), "\n")
	}
	return f
}

// numberedLeaf reports whether a cgroup, or the first line of /proc/PID/cgroup that is of a system, ends in a number, as those of procs and services do.
func numberedLeaf(text string) bool {
	_, path, ok := strings.Cut(text, "/sigma-")
	path, _, _ = strings.Cut(path, "\n")
	_, err := strconv.ParseUint(filepath.Base(path), 10, 64)
	return ok && err == nil && strings.Contains(path, "/")
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

// settle waits until no more is held than before, or a deadline, and returns what there is.
func (s *system) settle(before footprint) footprint {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		f := s.footprint()
		worst := 0
		for _, n := range f.leaks(before) {
			worst = max(worst, n)
		}
		if worst == 0 || time.Now().After(deadline) {
			return f
		}
	}
}

// reportLeaks prints what was left over, in which nothing is best.
func (r *Run) reportLeaks(before, after footprint, starts int) error {
	leaks := after.leaks(before)
	for _, metric := range []string{"leaked_processes", "leaked_cgroups", "leaked_mounts", "leaked_descriptors"} {
		if err := r.print(Line{Metric: metric, Unit: "1", Ours: float64(leaks[metric]), Peer: "none", Theirs: pointer(0), Floor: pointer(0), N: starts}); err != nil {
			return err
		}
	}
	var text strings.Builder
	for _, part := range slices.Sorted(maps.Keys(after.memory)) {
		fmt.Fprintf(&text, "; %s %.1f MiB, %.1f MiB", part, before.memory[part]/1024, after.memory[part]/1024)
	}
	r.note("memory before and after%s", text.String())
	return nil
}

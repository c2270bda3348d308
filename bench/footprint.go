package bench

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// footprint is what a system holds on the host. Processes and cgroups that the launcher keeps ready for later starts are not in it: how many there are changes with
// the load, and has a limit of its own.
type footprint struct {
	processes, cgroups, mounts, files int
	memory                            float64 // KiB, proportional set size of launcher and daemons
}

// leaks names what there is more of than before.
func (f footprint) leaks(before footprint) map[string]int {
	return map[string]int{"leaked_processes": f.processes - before.processes, "leaked_cgroups": f.cgroups - before.cgroups, "leaked_mounts": f.mounts - before.mounts,
		"leaked_descriptors": f.files - before.files}
}

// footprint counts.
func (s *system) footprint() footprint {
	f := footprint{}
	family, _ := s.family()
	for _, pid := range family {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if numberedLeaf(string(group)) {
			f.processes++
		}
		exe, _ := os.ReadFile(filepath.Join(dir, "comm"))
		daemon := strings.TrimSpace(string(exe))
		if pid == s.pid || daemon == "sigmad" || daemon == "named" || daemon == "besched" || daemon == "s3d" {
			if pid != s.pid { // the launcher's grow with what it keeps ready
				open, _ := os.ReadDir(filepath.Join(dir, "fd"))
				f.files += len(open)
			}
			kib, _, _ := strings.Cut(procField(filepath.Join(dir, "smaps_rollup"), "Pss"), " ")
			n, _ := strconv.ParseFloat(kib, 64)
			f.memory += n
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
	r.note("memory of launcher and daemons: %s before, %s after", mib(before.memory), mib(after.memory))
	return nil
}

func mib(kib float64) string { return fmt.Sprintf("%.1f MiB", kib/1024) }

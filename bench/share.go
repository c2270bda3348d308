package bench

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed programs/share.c
var shareSource string

// buildShare compiles programs/share.c, and returns where it is.
func (r *Run) buildShare(ctx context.Context) (string, error) {
	local := filepath.Join(r.dir, "share")
	if err := os.WriteFile(local+".c", []byte(shareSource), 0o644); err != nil {
		return "", err
	}
	return local, r.make(ctx, "cc", "-static", "-O2", "-pthread", "-o", local, local+".c")
}

// mostShares makes a cgroup outweigh what else the host does, so that that disturbs all arms alike,
// and little.
const mostShares = 262144

// hostGroup is a cgroup of the bench's own, with others below it, outside of sigmaOS.
type hostGroup struct{ name string }

// cpuFile finds a file of the processor controllers' hierarchies; "" if there is none.
func cpuFile(group, file string) string {
	for _, root := range cgroupMounts() {
		path := filepath.Join(root, group, file)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// makeHostGroup makes a group with children of these names.
func makeHostGroup(name string, children ...string) (hostGroup, error) {
	g := hostGroup{name}
	for _, root := range cgroupMounts() {
		if base := filepath.Base(root); base != "cpu" && base != "cpuacct" && base != "cpu,cpuacct" &&
			base != "cgroup" {
			continue
		}
		os.Mkdir(filepath.Join(root, name), 0o755)
		os.WriteFile(filepath.Join(root, name, "cgroup.subtree_control"), []byte("+cpu"), 0) // of version 2 only
		for _, c := range children {
			if err := os.MkdirAll(filepath.Join(root, name, c), 0o755); err != nil {
				return g, err
			}
		}
	}
	return g, weigh(name, mostShares)
}

// weigh sets a cgroup's weight, given in shares.
func weigh(group string, shares int) error {
	if path := cpuFile(group, "cpu.shares"); path != "" {
		return os.WriteFile(path, []byte(strconv.Itoa(shares)), 0)
	}
	if path := cpuFile(group, "cpu.weight"); path != "" {
		return os.WriteFile(path, []byte(strconv.Itoa(min(10000, max(1, shares*100/1024)))), 0)
	}
	return fmt.Errorf("no cgroup %s with a weight", group)
}

// groupCPU is the processor time that a cgroup has used.
func groupCPU(group string) time.Duration {
	if path := cpuFile(group, "cpuacct.usage"); path != "" {
		return time.Duration(number(path))
	}
	stat, _ := os.ReadFile(cpuFile(group, "cpu.stat"))
	for line := range strings.Lines(string(stat)) {
		if us, is := strings.CutPrefix(line, "usage_usec "); is {
			n, _ := strconv.ParseInt(strings.TrimSpace(us), 10, 64)
			return time.Duration(n) * time.Microsecond
		}
	}
	return 0
}

// command is a program in one of the group's children. It ends with ctx, and its children with it.
func (g hostGroup) command(ctx context.Context, child string, args ...string) *exec.Cmd {
	enter := ""
	for _, root := range cgroupMounts() {
		if path := filepath.Join(root, g.name, child, "cgroup.procs"); exists(path) {
			enter += "echo $$ > " + path + " && "
		}
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", enter + `exec "$0" "$@"`}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// remove kills what is in the group and removes it.
func (g hostGroup) remove() {
	for range 100 {
		left := 0
		for _, root := range cgroupMounts() {
			var dirs []string
			filepath.WalkDir(filepath.Join(root, g.name), func(path string, e os.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for i := range dirs {
				dir := dirs[len(dirs)-1-i]
				members, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
				for _, pid := range strings.Fields(string(members)) {
					if n, err := strconv.Atoi(pid); err == nil && n > 1 && n != os.Getpid() {
						syscall.Kill(n, syscall.SIGKILL)
					}
				}
				if os.Remove(dir) != nil {
					left++
				}
			}
		}
		if left == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// instanceGroup is the cgroup of a system, below which all of it is.
func (s *system) instanceGroup() (string, error) {
	for _, p := range s.family() {
		if p.name != "sigmad" {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if at := strings.Index(line, "/sigma-"); at >= 0 {
				group, _, _ := strings.Cut(strings.TrimSpace(line[at+1:]), "/")
				return group, nil
			}
		}
	}
	return "", fmt.Errorf("the system has no cgroups")
}

// busy is the processor time that all of the host has used, or that was taken from it.
func busy() (sum time.Duration) {
	stat, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, f := range strings.Fields(line) { // cpu user nice system idle iowait irq softirq steal; guests are in user
		if n, err := strconv.ParseInt(f, 10, 64); err == nil && i != 4 && i != 5 && i < 9 {
			sum += time.Duration(n) * time.Second / 100
		}
	}
	return sum
}

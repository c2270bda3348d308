package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A placement says on which processors the two sides of a connection run.
const (
	free     = "free"     // where the scheduler has them
	apart    = "apart"    // each on a processor of its own
	together = "together" // both on one
)

// processors are those that a bench may use.
func processors() (all unix.CPUSet, err error) {
	return all, os.NewSyscallError("sched_getaffinity", unix.SchedGetaffinity(0, &all))
}

// nth is the n-th of them alone.
func nth(all unix.CPUSet, n int) (one unix.CPUSet) {
	for cpu := range 8 * 8 * len(all) {
		if all.IsSet(cpu) {
			if n == 0 {
				one.Set(cpu)
				break
			}
			n--
		}
	}
	return one
}

// placeMost is how long a process that is to be placed may take to begin.
const placeMost = 10 * time.Second

// place has all threads of the processes in whose command lines these words follow each other run
// on some processors, and waits until there is such a process. Processes of procs, containers and
// this host are placed alike, from outside.
func place(on unix.CPUSet, words ...string) error {
	end := time.Now().Add(placeMost)
	for {
		pids, err := commanded(words...)
		if err != nil || len(pids) > 0 {
			for _, pid := range pids {
				err = errors.Join(err, placeProcess(pid, on))
			}
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("there is no process %q", words)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// commanded finds processes by their command line.
func commanded(words ...string) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	want := []byte("\x00" + strings.Join(words, "\x00") + "\x00")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // it may end meanwhile
		if bytes.Contains(line, want) && !wrapper(line) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// wrapper says that a command is one that starts another, and runs none of its threads.
func wrapper(line []byte) bool {
	name, _, _ := bytes.Cut(line, []byte{0})
	return slices.Contains([]string{"docker", "sh", "ip"}, filepath.Base(string(name)))
}

// placeProcess places all threads of a process. Those that they make later begin where their maker
// is, so it is over when there were no new ones.
func placeProcess(pid int, on unix.CPUSet) error {
	placed := map[int]bool{}
	for before := -1; before != len(placed); {
		before = len(placed)
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || placed[tid] {
				continue
			}
			if err := unix.SchedSetaffinity(tid, &on); err != nil && err != unix.ESRCH {
				return os.NewSyscallError("sched_setaffinity", err)
			}
			placed[tid] = true
		}
	}
	return nil
}

// twins are cgroups like those of two procs: with the same controllers, as far below the root, two
// beside each other. What a plain process does in one costs what the kernel takes for any
// container.
type twins struct {
	name    string
	created []string
	last    [2][]string // one for each controller
}

// newTwins makes them like those of a process. name is that of the topmost.
func newTwins(pid int, name string) (t *twins, err error) {
	t = &twins{name: name}
	defer func() {
		if err != nil {
			t.remove()
		}
	}()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return t, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[2] == "/" {
			continue
		}
		dir, depth := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(f[1], "name=")), strings.Count(f[2], "/")
		for i := range depth {
			if f[1] == "" { // version 2: what is above says what is below
				os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0)
			}
			if i == depth-1 {
				break
			}
			dir = filepath.Join(dir, fmt.Sprintf("%s-%d", t.name, i))
			if err := t.make(dir); err != nil {
				return t, err
			}
		}
		for i := range t.last {
			leaf := filepath.Join(dir, fmt.Sprintf("%s-leaf-%d", t.name, i))
			if err := t.make(leaf); err != nil {
				return t, err
			}
			t.last[i] = append(t.last[i], leaf)
		}
	}
	if len(t.created) == 0 {
		return t, errors.New("procs are in no cgroups")
	}
	return t, nil
}

func (t *twins) make(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		t.created = append(t.created, dir)
	}
	return err
}

// enter is what starts a command in one of the two.
func (t *twins) enter(i int) []string {
	return []string{"sh", "-c", "for d in " + strings.Join(t.last[i],
		" ") + `; do echo $$ > $d/cgroup.procs || exit 1; done; exec "$0" "$@"`}
}

// remove removes them, when nobody is in them any more.
func (t *twins) remove() {
	for _, dir := range slices.Backward(t.created) {
		os.Remove(dir)
	}
}

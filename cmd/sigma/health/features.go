package health

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/hostsetup"
)

// What doctor says about what sigmaOS can do without: each is ok, or weak with a word about what
// that means for procs and how to get more. How well the host is protected against others is its
// owner's business, and no subject here.

func (m machine) release() string { return strings.TrimSpace(m.read("/proc/sys/kernel/osrelease")) }

func ok(check, found string) finding { return finding{Check: check, State: findingOK, Found: found} }

func weak(check, found, advice string) finding {
	return finding{Check: check, State: findingWeak, Found: found, Advice: advice}
}

// features are what of the kernel sigmaOS uses where it is there.
func (m machine) features() []finding {
	return []finding{m.freezer(), m.swapAccounting(), m.pressure(), m.ioWeight(), m.fuse(), m.resend()}
}

// landlockAdds says what each ABI brought: what a Landlock of a proc cannot restrict before it.
var landlockAdds = []struct {
	abi    int
	what   string
	kernel string
}{{1, "files", "5.13"}, {2, "moves between directories", "5.19"}, {3, "truncation", "6.2"}, {4, "TCP", "6.7"},
	{5, "ioctls of devices", "6.10"}, {6, "signals and abstract UNIX sockets", "6.12"}, {7, "audit", "6.15"}}

// landlockWanted is the first ABI that adds all that the launcher uses where it is there.
const landlockWanted = 6

// landlockWords tells what an ABI restricts, and what the next ones would add.
func landlockWords(abi int) (found, advice string) {
	var has, lacks []string
	kernel := ""
	for _, a := range landlockAdds {
		switch {
		case a.abi <= abi:
			has = append(has, a.what)
		case a.abi <= landlockWanted:
			lacks, kernel = append(lacks, a.what), a.kernel
		}
	}
	found = fmt.Sprintf("ABI %d: %s", abi, strings.Join(has, ", "))
	if len(lacks) > 0 {
		advice =
			fmt.Sprintf(
				"it cannot restrict %s, which the filter of system calls and the namespaces do alone then; Linux %s "+
					"can", strings.Join(lacks, ", "), kernel)
	}
	return found, advice
}

func (m machine) hierarchies() map[string]string { return hostsetup.Hierarchies(m.read) }

func (m machine) freezer() finding {
	h := m.hierarchies()
	switch {
	case h[""] != "":
		return ok("freezer", "of cgroup version 2")
	case h["freezer"] != "":
		return ok("freezer", "of cgroup version 1")
	}
	return weak("freezer", "none is mounted",
		"sigma freeze stops procs by signals then, which they can see: mkdir /sys/fs/cgroup/freezer && mount -t "+
			"cgroup -o freezer none /sys/fs/cgroup/freezer")
}

func (m machine) swapAccounting() finding {
	h := m.hierarchies()
	swaps := strings.Count(strings.TrimSpace(m.read("/proc/swaps")), "\n")
	file := filepath.Join(h["memory"], "memory.memsw.limit_in_bytes")
	if h[""] != "" {
		file = filepath.Join(h[""], "init.scope", "memory.swap.max")
	}
	switch {
	case swaps == 0:
		return ok("swap", "none, so nothing of a proc can be swapped out past its limit")
	case m.read(file) != "":
		return ok("swap", "counted")
	case h[""] != "":
		return ok("swap", "there is some; cgroup version 2 counts it unless the kernel was booted with swapaccount=0")
	}
	return weak("swap", "not counted",
		"a proc at its memory limit is swapped out instead of ended, which slows all: boot with swapaccount=1, or "+
			"switch swap off")
}

func (m machine) pressure() finding {
	if m.read("/proc/pressure/memory") == "" {
		return weak("pressure", "not measured",
			"how long procs wait for memory and processors is not known: boot with psi=1")
	}
	return ok("pressure", "measured (PSI)")
}

// ioWeight tells whether a disk serves groups by their weights: version 2 of control groups gives
// them, and a scheduler of the disk must honour them.
func (m machine) ioWeight() finding {
	const check = "I/O weight"
	if f := m.cgroups(); !strings.HasPrefix(f.Found, "version 2") {
		return weak(check, "not with version 1 of control groups",
			"best-effort procs may delay the disk for latency-critical ones: boot with "+
				"systemd.unified_cgroup_hierarchy=1")
	}
	if strings.Contains(m.read("/sys/fs/cgroup/io.cost.qos"), "enable=1") {
		return ok(check, "by io.cost")
	}
	var lack []string
	for _, disk := range m.list("/sys/block") {
		schedulers := m.read("/sys/block/" + disk + "/queue/scheduler")
		for _, not := range []string{"loop", "ram", "zram", "dm-", "md"} { // in memory, or made of others
			if strings.HasPrefix(disk, not) {
				schedulers = ""
			}
		}
		if schedulers != "" && !strings.Contains(schedulers, "[bfq]") {
			lack = append(lack, disk)
		}
	}
	if lack != nil {
		return weak(check, "not honoured by "+strings.Join(lack, ", "),
			"best-effort procs may delay the disk for latency-critical ones: echo bfq > /sys/block/"+lack[0]+
				"/queue/scheduler")
	}
	return ok(check, "by bfq, where there is a disk")
}

func (m machine) fuse() finding {
	if !m.exists("/dev/fuse") {
		return weak("fuse", "no /dev/fuse",
			"programs are fetched whole before they start, not page by page, and sigma mount does not work: modprobe "+
				"fuse")
	}
	return ok("fuse", "/dev/fuse")
}

// resendLeast is the first kernel that gives requests of a FUSE mount out again, which a daemon
// read and did not live to answer.
const resendLeast = "6.9"

func (m machine) resend() finding {
	if release := m.release(); !versionAtLeast(release, resendLeast) {
		return weak("fuse resend", "not in Linux "+cli.OrElse(release, "of unknown version"),
			"a proc that waits for a page of its program when sigmad is killed waits for ever: use Linux "+resendLeast+
				" or newer")
	}
	return ok("fuse resend", "in this kernel")
}

// madeWithin is how long the launcher may need to make a process.
const madeWithin = 100 * time.Millisecond

// active looks at what runs on DATA: does every process of the system have its walls?
func (a *app) active(m machine) finding {
	const check = "running system"
	dir, err := a.DataDir()
	if err != nil {
		return ok(check, "none")
	}
	pid, is, err := datadir.Running(dir)
	switch {
	case err != nil || a.Addr != "":
		return ok(check, "not looked at")
	case !is:
		return ok(check, "none on "+dir)
	}
	before := map[int]bool{} // one that is being made has no walls yet, but does not last
	for _, p := range m.descendants(pid) {
		before[p.pid] = len(p.lacks()) > 0
	}
	time.Sleep(madeWithin)
	walls, bare := 0, []string{}
	for _, p := range m.descendants(pid) {
		if lacks := p.lacks(); len(lacks) > 0 && before[p.pid] {
			bare = append(bare, fmt.Sprintf("%s (%d): %s", p.fields["Name"], p.pid, strings.Join(lacks, ", ")))
		} else {
			walls++
		}
	}
	if len(bare) > 0 {
		return weak(check, fmt.Sprintf("%d of %d processes lack a wall", len(bare), len(bare)+walls),
			strings.Join(bare[:min(3, len(bare))], "; ")+
				"; a system that was not started with --weaken has none such: restart it, and report this if it "+
				"happens "+
				"again")
	}
	return ok(check, fmt.Sprintf("%d processes: own users, no capabilities, no_new_privs, filters of system calls",
		walls))
}

// hostProcess is what /proc/PID/status says.
type hostProcess struct {
	pid    int
	fields map[string]string
}

// onlySetUID is what the launcher's seeds keep of root's capabilities: the procs that grow from
// them change their uid first, and lose this one by it.
const onlySetUID = "0000000000000080"

// onlySysNice is what the launcher's placer keeps of them, so that it can place threads of others.
const onlySysNice = "0000000000800000"

// lacks names the walls that a process of the system should have and has not.
func (p hostProcess) lacks() (out []string) {
	capabilities := "0000000000000000"
	seed := p.fields["Name"] == "launcher" && p.fields["CapEff"] == onlySetUID
	placer := p.fields["Name"] == "placer" && p.fields["CapEff"] == onlySysNice
	if seed || placer {
		capabilities = p.fields["CapEff"]
	}
	for _, w := range []struct {
		field, want, what string
	}{{"NoNewPrivs", "1", "no_new_privs"}, {"Seccomp", "2", "filter"},
		{"CapEff", capabilities, "an empty set of capabilities"}} {
		if p.fields[w.field] != w.want {
			out = append(out, "no "+w.what)
		}
	}
	if seed {
		return out
	}
	if f := strings.Fields(p.fields["Uid"]); len(f) > 1 && f[1] == "0" {
		out = append(out, "it is root")
	}
	return out
}

// descendants lists what a keeper and its launcher have started and what came of that, without
// themselves and what has ended.
func (m machine) descendants(keeper int) (out []hostProcess) {
	all := map[int]hostProcess{}
	for _, name := range m.list("/proc") {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p := hostProcess{pid, map[string]string{}}
		for line := range strings.Lines(m.read("/proc/" + name + "/status")) {
			key, value, _ := strings.Cut(line, ":")
			p.fields[key] = strings.TrimSpace(value)
		}
		all[pid] = p
	}
	parent := func(p hostProcess) int { n, _ := strconv.Atoi(p.fields["PPid"]); return n }
	for pid, p := range all {
		if pid == keeper || parent(p) == keeper && p.fields["Name"] == "launcher" ||
			strings.HasPrefix(p.fields["State"], "Z") {
			continue
		}
		for at, hops := parent(p), 0; at > 1 && hops < 64; at, hops = parent(all[at]), hops+1 {
			if at == keeper {
				out = append(out, p)
				break
			}
		}
	}
	slices.SortFunc(out, func(a, b hostProcess) int { return a.pid - b.pid })
	return out
}

func (m machine) list(dir string) (names []string) {
	entries, _ := fs.ReadDir(m.dirs, strings.TrimPrefix(dir, "/"))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (m machine) exists(path string) bool {
	_, err := fs.Stat(m.dirs, strings.TrimPrefix(path, "/"))
	return err == nil
}

// thisMachine reads the real files.
func thisMachine() machine { return machine{files: os.ReadFile, dirs: os.DirFS("/")} }

//go:build system

// Package attack attacks a running sigmaOS from inside procs and counts: what was tried, what succeeded, which must be nothing, and how many positive controls showed that
// the attempt would succeed if it were not for the protection it is about. docs/internals/attacks.md says how to add one.
//
// Attempts run on a system that was started in the ordinary way, with a SIGMA_WEAKEN in their environment that must not matter; controls run on one that was started for that.
package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/test/attack/forge"
)

// testMax bounds the whole.
const testMax = 3 * time.Minute

// score is what the suite is for.
type score struct {
	mu        sync.Mutex
	attempts  int // mu
	successes int // mu
	controls  int // mu
}

// attempt counts one and fails the test if it succeeded.
func (s *score) attempt(t *testing.T, name string, succeeded bool, detail string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	if succeeded {
		s.successes++
		t.Errorf("%s: SUCCEEDED: %s", name, detail)
	}
}

// control counts one, and fails the test if the attempt failed even so: then its failure elsewhere shows nothing.
func (s *score) control(t *testing.T, name string, succeeded bool, detail string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if succeeded {
		s.controls++
	} else {
		t.Errorf("%s: the control fails too: %s", name, detail)
	}
}

// arena is a system with two realms, a proc in each to be attacked, and the attackers' programs.
type arena struct {
	*testenv.System
	own, other    *sdk.Client
	sibling       forge.World // of the attackers' realm
	stranger      forge.World // of the other
	attack, forge string      // paths of the programs in the realm
}

const (
	realmOther sigma.RealmID = "other"
	realmSpare sigma.RealmID = "spare"
)

// programs are built once.
type programs struct{ attack, forger string }

func build(t *testing.T) programs {
	dir, err := os.MkdirTemp("", "sigma-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return programs{testenv.BuildC(t, dir, "testdata/attack.c"), testenv.BuildGo(t, dir, "testdata/forger")}
}

func newArena(ctx context.Context, t *testing.T, p programs, o testenv.Options) *arena {
	a := &arena{System: testenv.Boot(t, o)}
	admin := a.Connect(ctx, t, sigma.DefaultRealm)
	for _, r := range []sigma.RealmID{realmOther, realmSpare} {
		if err := admin.Realms().Create(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	a.own, a.other = admin, a.Connect(ctx, t, realmOther)
	a.attack = a.Install(ctx, t, a.own, p.attack)
	a.forge = a.Install(ctx, t, a.own, p.forger)
	a.sibling = a.hold(ctx, t, a.own)
	a.Install(ctx, t, a.other, p.forger)
	a.stranger = a.hold(ctx, t, a.other)
	a.stranger.Spare = realmSpare
	return a
}

// hold starts a proc that has what attackers are after.
func (a *arena) hold(ctx context.Context, t *testing.T, c *sdk.Client) (w forge.World) {
	t.Helper()
	// With a uid of its own off (32), where that counts, so that attackers with theirs off have the same: the right to another's limits without CAP_SYS_RESOURCE, which
	// not even root has everywhere.
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: a.forge, Args: []string{"hold"}, Env: []string{"SIGMA_WEAKEN=32"}, Start: sigma.StartedByCall})
	if err == nil {
		err = c.WaitStart(ctx, ids[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the victim tells what it has", func() error {
		b, _, err := c.Get(ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
		if err == nil {
			err = json.Unmarshal(b, &w)
		}
		return err
	})
	return w
}

// run runs a proc of the attackers' realm to its end.
func (a *arena) run(ctx context.Context, t *testing.T, d sigma.Descriptor) (stdout string, s sigma.Status) {
	t.Helper()
	ids, err := a.own.Spawn(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = a.own.WaitExit(ctx, ids[0]); err != nil {
		t.Fatal(err)
	}
	b, _, err := a.own.Get(ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
	if err != nil && sigma.KindOf(err) != sigma.KindTooBig {
		t.Fatal(err)
	}
	if e, _, err := a.own.Get(ctx, sigma.JoinPath("proc", string(ids[0]), "stderr")); err == nil && len(e) > 0 {
		t.Logf("%s %q: %.2000s", d.Program, d.Args, e)
	}
	return string(b), s
}

// hostPIDs finds the processes of a proc, as the host numbers them, its program's own first.
func hostPIDs(id sigma.ProcID) (out []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if slices.Contains(strings.Split(string(env), "\x00"), "SIGMA_PROC_ID="+string(id)) {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

func (a *arena) hostPID(t *testing.T, w forge.World) int {
	t.Helper()
	pids := hostPIDs(w.Proc)
	if len(pids) != 1 {
		t.Fatalf("proc %s has the processes %v, want one", w.Proc, pids)
	}
	return pids[0]
}

// env tells the attackers whom to attack.
func (a *arena) env(t *testing.T, weaken int) []string {
	known, err := json.Marshal(forge.Env{Other: a.stranger, Sibling: a.sibling})
	if err != nil {
		t.Fatal(err)
	}
	return []string{fmt.Sprintf("SIGMA_WEAKEN=%d", weaken), fmt.Sprintf("VICTIM=%d", a.hostPID(t, a.sibling)), fmt.Sprintf("ANOTHER=%d", a.hostPID(t, a.stranger)),
		fmt.Sprintf("DAEMON=%d", a.PID("sigmad")), "FORGE=" + string(known)}
}

// line is what the programs print for an attempt.
type line struct{ name, result, detail string }

func lines(t *testing.T, out string) (ls []line) {
	t.Helper()
	for l := range strings.Lines(out) {
		w := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		if len(w) == 3 {
			ls = append(ls, line{w[0], w[1], w[2]})
		}
	}
	return ls
}

// everything is what a weakening can take off.
const everything = 511

// daemons must be the same at the end.
func (a *arena) daemons() (pids [5]int) {
	for i, name := range []string{"launcher", "sigmad", "named", "besched", "s3d"} {
		pids[i] = a.PID(name)
	}
	return pids
}

// Goal: no attempt succeeds, each that has a control is shown to be a real one, and the system is as well afterwards as before.
func TestAttacks(t *testing.T) {
	testenv.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), testMax)
	defer cancel()
	p := build(t)
	plain, weak := newArena(ctx, t, p, testenv.Options{}), newArena(ctx, t, p, testenv.Options{Weaken: true, Machine: "weak"})
	before := plain.daemons()
	var s score
	defer func() {
		fmt.Printf("attack: %d attempts, %d successes, %d controls\n", s.attempts, s.successes, s.controls)
	}()

	t.Run("calls", func(t *testing.T) { attackByCalls(ctx, t, &s, p, plain, weak) })
	t.Run("depth", func(t *testing.T) { attackInDepth(ctx, t, &s, weak) })
	t.Run("descriptors", func(t *testing.T) { attackByDescriptors(ctx, t, &s, p, plain, weak) })
	t.Run("exhaustion", func(t *testing.T) { attackByExhaustion(ctx, t, &s, p, plain) })
	t.Run("messages", func(t *testing.T) { attackByMessages(ctx, t, &s, plain) })
	t.Run("requests", func(t *testing.T) { attackByRequests(ctx, t, &s, plain) })

	if after := plain.daemons(); after != before {
		t.Errorf("daemons are the processes %v, were %v", after, before)
	}
	if out := plain.Must(t, "run", p.forger, "nothing"); out != "" {
		t.Errorf("got %q of a run after all that, want nothing", out)
	}
	if s.attempts < 100 || s.controls < s.attempts/2 {
		t.Errorf("%d attempts and %d controls are too few to mean anything", s.attempts, s.controls)
	}
}

// attackByCalls runs the table of testdata/attempts.h: all of it as an ordinary proc, then each with what its line says taken off.
func attackByCalls(ctx context.Context, t *testing.T, s *score, p programs, plain, weak *arena) {
	list, err := exec.Command(p.attack, "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	controls := map[int][]string{}
	for l := range strings.Lines(string(list)) {
		name, bits, _ := strings.Cut(strings.TrimSpace(l), "\t")
		n, err := strconv.Atoi(bits)
		if err != nil || slices.Contains(names, name) {
			t.Fatalf("line %q of the list", l)
		}
		names = append(names, name)
		controls[n] = append(controls[n], name)
	}
	out, _ := plain.run(ctx, t, sigma.Descriptor{Program: plain.attack, Args: []string{"run"}, Env: plain.env(t, everything)})
	results := lines(t, out)
	if len(results) != len(names) {
		t.Errorf("got %d results of %d attempts; the last is %v", len(results), len(names), results[max(0, len(results)-1):])
	}
	for _, l := range results {
		s.attempt(t, l.name, l.result != "blocked", l.result+" "+l.detail)
	}
	const outside = 1 << 16 // attack.c
	for bits, names := range controls {
		args := append([]string{"run"}, names...)
		if bits == outside {
			cmd := exec.Command(p.attack, args...)
			b, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			out = string(b)
		} else {
			out, _ = weak.run(ctx, t, sigma.Descriptor{Program: weak.attack, Args: args, Env: weak.env(t, bits)})
		}
		results := lines(t, out)
		if len(results) != len(names) {
			t.Errorf("got %d results of the %d controls with %d taken off", len(results), len(names), bits)
		}
		for _, l := range results {
			s.control(t, l.name, l.result == "SUCCEEDED", fmt.Sprintf("%s %s, with %d taken off", l.result, l.detail, bits))
		}
	}
}

// attackInDepth leaves one protection of several and shows that it is enough: what the controls take off together are walls one behind the other.
func attackInDepth(ctx context.Context, t *testing.T, s *score, weak *arena) {
	const seccomp, landlock, mounts, pids, root, caps = 1, 2, 4, 16, 32 + 64, 64
	files := []string{"open /etc/passwd", "open(2) /etc/passwd", "open /proc/self/status", "open /sys", "open above the root", "create a file in /tmp", "mkdir", "symlink", "mknod of a file", "execve /bin/true", "execveat by path"}
	seen := []string{"stat /etc/passwd", "access /etc/passwd", "readlink /proc/self/exe", "chdir /etc"}
	signals := []string{"signal a sibling", "signal another realm's proc", "signal sigmad", "tkill a sibling"}
	others := []string{"ptrace a sibling", "read a sibling's memory", "write a sibling's memory", "read another realm's memory", "ptrace sigmad"}
	limits := []string{"set a sibling's limits", "set a sibling's affinity", "set a sibling's priority", "set a sibling's scheduler"}
	privileged := []string{"setuid", "setgroups", "unshare mounts", "unshare network", "clone with processes", "chroot", "bpf", "perf_event_open of the machine", "socket INET raw", "sethostname", "syslog", "reboot"}
	for _, x := range []struct {
		left  string
		off   int
		names []string
	}{
		{"the filter", landlock | mounts | pids | root, slices.Concat(files, seen, others, limits, privileged)},
		{"Landlock", seccomp | mounts, files},
		{"the empty root", seccomp | landlock, slices.Concat(files, seen)},
		{"the PID namespace", seccomp | landlock | root, slices.Concat(signals, others, limits)},
		{"the uid", seccomp | landlock | pids, slices.Concat(signals, others, limits)},
		{"the lack of capabilities", seccomp | landlock | mounts, privileged},
	} {
		out, _ := weak.run(ctx, t, sigma.Descriptor{Program: weak.attack, Args: append([]string{"run"}, x.names...), Env: weak.env(t, x.off)})
		results := lines(t, out)
		if len(results) != len(x.names) {
			t.Errorf("got %d results of the %d attempts that only %s stops", len(results), len(x.names), x.left)
		}
		for _, l := range results {
			s.attempt(t, l.name+", stopped by "+x.left+" alone", l.result != "blocked", l.result+" "+l.detail)
		}
	}
}

// attackByDescriptors misuses descriptors passed for reading. The controls of what the descriptor itself forbids are made outside, with one for writing; those of what a
// protection forbids, with it off.
func attackByDescriptors(ctx context.Context, t *testing.T, s *score, p programs, plain, weak *arena) {
	out, _ := plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"descriptor"}, Env: plain.env(t, everything)})
	results := lines(t, out)
	if !strings.HasSuffix(out, "all of them\n") {
		s.attempt(t, "become another program by a passed descriptor", true, "the program did not reach its end")
	}
	for _, l := range results {
		s.attempt(t, l.name, l.result != "blocked", l.detail)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("#!/bin/true\nof the test"), 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := exec.Command(p.forger, "descriptor", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines(t, string(b)) {
		s.control(t, l.name, l.result == "SUCCEEDED", l.detail)
	}
	if len(results) < 60 {
		t.Errorf("got %d results, the last is %v", len(results), results[max(0, len(results)-1):])
	}
}

// attackByExhaustion takes processes, memory, descriptors and disk until something gives, which must be the attacker, while its sibling and its machine live.
func attackByExhaustion(ctx context.Context, t *testing.T, s *score, p programs, plain *arena) {
	sibling := plain.hostPID(t, plain.sibling)
	proc := func(args ...string) (string, sigma.Status) {
		return plain.run(ctx, t, sigma.Descriptor{Program: plain.attack, Args: args, Env: plain.env(t, everything)})
	}
	outside := func(args ...string) string {
		cmd := exec.Command("sh", append([]string{"-c", "ulimit -n 10000; exec \"$@\"", "sh", p.attack}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out)
	}
	number := func(out string) int { n, _ := strconv.Atoi(strings.TrimSpace(out)); return n }

	const forksMax, filesMax, logMax = 512, 4096, 16 << 20 // kernel: pidsMax, noFileMax; output: LogMax
	out, _ := proc("forks")
	s.attempt(t, "make processes without end", number(out) <= 0 || number(out) >= forksMax, out)
	s.control(t, "make processes", number(outside("forks", "600")) == 600, out)
	out, st := proc("memory")
	s.attempt(t, "take memory without end", st.Code != sigma.StatusOOM, fmt.Sprint(st, out))
	s.control(t, "take memory", outside("memory", strconv.Itoa(100<<20)) == "all of it\n", "")
	out, _ = proc("files")
	s.attempt(t, "take descriptors without end", number(out) <= 0 || number(out) >= filesMax, out)
	s.control(t, "take descriptors", number(outside("files")) > filesMax, out)
	out, _ = proc("output")
	s.attempt(t, "print without end", len(out) > logMax, strconv.Itoa(len(out)))
	s.control(t, "print", len(outside("output")) == 48<<20, "")
	proc("killall")
	s.attempt(t, "kill everybody", syscall.Kill(sibling, 0) != nil, "the sibling is gone")
}

// attackByMessages sends what no client sends. After each the machine must answer its neighbours at once.
func attackByMessages(ctx context.Context, t *testing.T, s *score, plain *arena) {
	daemons := plain.daemons()
	healthy := func(name string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, _, err := plain.other.Get(ctx, forge.Names)
		for _, path := range []string{forge.UX + "/secret", forge.Object} {
			if err == nil {
				_, _, err = plain.other.Get(ctx, path)
			}
		}
		if err == nil && plain.daemons() != daemons {
			err = errors.New("a daemon is another process now")
		}
		s.attempt(t, name, err != nil, fmt.Sprint("the neighbours notice: ", err))
	}
	for _, name := range []string{"noise", "zeros", "empty", "size", "short", "types", "replies", "unready", "huge", "flood", "deaf", "versions"} {
		plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"raw", name}})
		healthy("messages of kind " + name)
	}
	for _, name := range []string{"attach", "fids"} {
		out, _ := plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"raw", name}})
		results := lines(t, out)
		if len(results) == 0 {
			t.Errorf("no results of %s", name)
		}
		for _, l := range results {
			if l.result == "control" {
				s.control(t, l.name, true, "")
			} else {
				s.attempt(t, l.name, l.result != "blocked", l.detail)
			}
		}
	}
	ids, err := plain.own.Spawn(ctx, slices.Repeat([]sigma.Descriptor{{Program: plain.forge, Args: []string{"hoard"}}}, 2)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		testenv.Eventually(t, "the hoarders have what they get", func() error {
			b, _, err := plain.own.Get(ctx, sigma.JoinPath("proc", string(id), "stdout"))
			if err == nil && len(b) == 0 {
				err = errors.New("not yet")
			}
			return err
		})
	}
	healthy("connections, files and calls without end")
	for _, id := range ids {
		if err := plain.own.Kill(ctx, id); err != nil {
			t.Error(err)
		}
	}
}

// attackByRequests runs forge.All in a proc, and its controls by those who may.
func attackByRequests(ctx context.Context, t *testing.T, s *score, plain *arena) {
	out, st := plain.run(ctx, t, sigma.Descriptor{Program: plain.forge, Args: []string{"attack"}, Env: plain.env(t, everything)})
	all := forge.All()
	tried := map[string]bool{}
	for _, l := range lines(t, out) {
		switch l.result {
		case "control":
			s.control(t, l.name, true, "")
		case "control failed":
			s.control(t, l.name, false, l.detail)
		default:
			tried[l.name] = true
			s.attempt(t, l.name, l.result != "blocked", l.detail)
		}
	}
	if len(tried) != len(all) {
		t.Errorf("got %d results of %d attempts; it ended with %v %s", len(tried), len(all), st.Code, st.Msg)
	}
	provider := &forge.Env{C: plain.other, Other: plain.stranger, Sibling: plain.sibling}
	for _, last := range []bool{false, true} {
		for _, a := range all {
			if a.Own == nil && a.Last == last {
				err := a.Try(ctx, provider)
				s.control(t, a.Name, err == nil, fmt.Sprint("by the provider: ", err))
			}
		}
	}
}

//go:build system

package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/test/attack/forge"
)

// testMax bounds each test.
const testMax = 5 * time.Minute

// arena is a system with two realms, a proc in each to be attacked, and the attackers' programs.
type arena struct {
	*testenv.System
	own, other    *sdk.Client
	sibling       forge.World // of the attackers' realm
	stranger      forge.World // of the other
	attack, forge string      // paths of the programs in the realm
	programs      programs
	outside       []string // tells the attackers of what the test made outside for them
}

const (
	realmOther sigma.RealmID = "other"
	realmSpare sigma.RealmID = "spare"
)

// Bits of what can be taken off a proc (docs/internals/launcher-protocol.md).
const (
	everything    = 511
	withoutFilter = 1
	withoutPIDs   = 16 // it is in the host's PID namespace
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
	a := &arena{System: testenv.Boot(t, o), programs: p}
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
	a.outside = makeOutside(t, p, a)
	return a
}

// hold starts a proc that has what attackers are after.
func (a *arena) hold(ctx context.Context, t *testing.T, c *sdk.Client) (w forge.World) {
	t.Helper()
	// With a uid of its own off (32), where that counts, so that attackers with theirs off have the
	// same: the right to another's limits without CAP_SYS_RESOURCE, which not even root has
	// everywhere.
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: a.forge, Args: []string{"hold"},
		Env: []string{"SIGMA_WEAKEN=32"}, Start: sigma.StartedByCall})
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
	victim, another := a.hostPID(t, a.sibling), a.hostPID(t, a.stranger)
	uid := status(t, victim)["Uid"]
	if a.shared(t) && weaken&withoutPIDs == 0 {
		victim, another = numberWithin(t, victim), numberWithin(t, another)
	}
	return append(a.outside, fmt.Sprintf("SIGMA_WEAKEN=%d", weaken), fmt.Sprintf("VICTIM=%d", victim),
		fmt.Sprintf("ANOTHER=%d", another),
		"VICTIM_UID="+strings.Fields(uid)[0], fmt.Sprintf("DAEMON=%d", a.PID("sigmad")), "FORGE="+string(known))
}

// shared reports whether procs share a PID namespace, so that attackers know their victims by the
// numbers there.
func (a *arena) shared(t *testing.T) bool {
	one, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", a.hostPID(t, a.sibling)))
	other, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", a.hostPID(t, a.stranger)))
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return one == other
}

// numberWithin is a process's number in its own PID namespace.
func numberWithin(t *testing.T, pid int) int {
	numbers := strings.Fields(status(t, pid)["NSpid"])
	n, err := strconv.Atoi(numbers[len(numbers)-1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// makeOutside makes what attempts/escapes.h goes for: sockets that everybody may connect to, one of
// them by its abstract name, and a set-uid program.
func makeOutside(t *testing.T, p programs, a *arena) []string {
	dir, err := os.MkdirTemp("", "sigma-attack-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, abstract, setUID := filepath.Join(dir, "socket"), filepath.Base(dir), filepath.Join(dir, "set-uid")
	for _, address := range []string{socket, "@" + abstract} {
		l, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	program, err := os.ReadFile(p.attack)
	if err == nil {
		err = errors.Join(os.Chmod(socket, 0o666), os.WriteFile(setUID, program, 0o755),
			os.Chmod(setUID, 0o755|os.ModeSetuid))
	}
	if err != nil {
		t.Fatal(err)
	}
	return []string{"ABSTRACT=" + abstract, "SOCKET=" + socket, "ADMIN=" + a.Socket(), "SETUID=" + setUID}
}

// line is what the programs print for an act. The forger's say to which attempt it belongs.
type line struct {
	act
	result, detail string
}

func lines(t *testing.T, out string) (ls []line) {
	t.Helper()
	for l := range strings.Lines(out) {
		w := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		switch len(w) {
		case 3:
			ls = append(ls, line{act{name: w[0]}, w[1], w[2]})
		case 5:
			ls = append(ls, line{act{w[0], w[3], w[4]}, w[1], w[2]})
		}
	}
	return ls
}

// daemons gives the processes that nothing may harm.
func (a *arena) daemons() map[string]int {
	pids := map[string]int{}
	for _, name := range testenv.Daemons() {
		pids[name] = a.PID(name)
	}
	return pids
}

// harmless runs a group of attempts and checks after it that each daemon is the process it was and
// answers: names by named, an object by s3d, and a proc by besched, sigmad and the launcher.
func (a *arena) harmless(ctx context.Context, t *testing.T, s *score, group string, do func(t *testing.T)) {
	before := a.daemons()
	t.Run(group, func(t *testing.T) {
		s.groups++
		do(t)
	})
	harm := func(name string, err error) {
		s.harmed[name] = true
		t.Errorf("%s was harmed by %s: %v", name, group, err)
	}
	after := a.daemons()
	for name, pid := range after {
		if pid != before[name] || pid == 0 {
			harm(name, fmt.Errorf("it was process %d and is %d", before[name], pid))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	for name, path := range map[string]string{"named": forge.Names, "s3d": forge.Object,
		"sigmad": forge.UX + "/secret"} {
		if _, _, err := a.other.Get(ctx, path); err != nil {
			harm(name, err)
		}
	}
	ids, err := a.other.Spawn(ctx, sigma.Descriptor{Program: a.forge, Args: []string{"nothing"}})
	if err == nil {
		var st sigma.Status
		if st, err = a.other.WaitExit(ctx, ids[0]); err == nil && !st.OK() {
			err = errors.New(st.Msg)
		}
	}
	if err != nil {
		harm("besched", err)
		harm("launcher", err)
	}
}

// answerMax is within what a daemon that is well answers on a busy machine.
const answerMax = time.Minute

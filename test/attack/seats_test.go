//go:build system

package attack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Goal: a proc finds nothing of those that had its seat, its uid or its number before, of whichever
// realm: no file, memory, queue, key, name, socket, process or setting. Method: procs of two realms
// in turns look for what could be left, and leave all that they can; halfway the launcher is
// killed, after which uids are given from the first on again, with the realms the other way round.
// The control leaves and finds all of it outside.
func TestSeatsChangeHands(t *testing.T) {
	testenv.RequireRoot(t)
	starts := 400
	if n, err := strconv.Atoi(os.Getenv("SIGMA_TEST_SEATS")); err == nil {
		starts = n
	}
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	local := testenv.BuildC(t, t.TempDir(), "testdata/remains.c")
	controlRemains(t, local)
	s := testenv.Boot(t, testenv.Options{})
	s.Must(t, "realm", "create", string(realmOther))
	realms := []*remains{{ctx: ctx, uids: map[string]int{}}, {ctx: ctx, uids: map[string]int{}}}
	for i, id := range []sigma.RealmID{sigma.DefaultRealm, realmOther} {
		realms[i].c = s.Connect(ctx, t, id)
		realms[i].program = s.Install(ctx, t, realms[i].c, local)
	}
	for half := range 2 {
		var all sync.WaitGroup
		for w := range 4 {
			all.Go(func() {
				for n := range starts / 8 {
					realms[(w+n+half)%2].run(t, half, n%2 == 0)
				}
			})
		}
		all.Wait()
		if half == 0 {
			s.Kill9(t, "launcher")
			testenv.Eventually(t, "procs are started again", func() error {
				_, err := realms[0].try(true)
				return err
			})
		}
	}
	both, found := 0, 0
	for uid, half := range realms[0].uids {
		if h, ok := realms[1].uids[uid]; ok && h != half {
			both++
		}
	}
	for _, r := range realms {
		found += len(r.found)
		for _, f := range r.found {
			t.Errorf("a proc found what another left: %s", f)
		}
	}
	if both < starts/8 {
		t.Errorf("%d uids were had by procs of both realms; want %d", both, starts/8)
	}
	fmt.Printf("seats: %d starts, %d uids of both realms, %d remains found\n", starts, both, found)
}

// remains are the procs of one realm.
type remains struct {
	ctx     context.Context
	c       *sdk.Client
	program string

	mu    sync.Mutex
	uids  map[string]int // mu; in which half procs had them
	found []string       // mu
}

// try runs one proc to its end and gives what it printed.
func (r *remains) try(linux bool) (string, error) {
	d := sigma.Descriptor{Program: r.program, Memory: 8 * sigma.MiB}
	if linux {
		d.Profile = sigma.ProfileLinux
	}
	ids, err := r.c.Spawn(r.ctx, d)
	if err != nil {
		return "", err
	}
	if st, err := r.c.WaitExit(r.ctx, ids[0]); err != nil || !st.OK() {
		return "", fmt.Errorf("it ended as %+v: %w", st, err)
	}
	said, _, err := r.c.Get(r.ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
	if err == nil && !strings.HasSuffix(string(said), "done\n") {
		err = fmt.Errorf("it said %q", said)
	}
	return string(said), err
}

func (r *remains) run(t *testing.T, half int, linux bool) {
	said, err := r.try(linux)
	if err != nil {
		t.Error(err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range strings.Lines(said) {
		if uid, ok := strings.CutPrefix(l, "uid "); ok {
			r.uids[uid] = half
		}
		if strings.HasPrefix(l, "found ") && len(r.found) < 20 {
			r.found = append(r.found, strings.TrimSpace(l))
		}
	}
}

// controlRemains leaves and finds in one set of namespaces, with a root directory of its own.
func controlRemains(t *testing.T, local string) {
	t.Helper()
	root := t.TempDir()
	program, err := os.ReadFile(local)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"tmp", "var/tmp", "dev/shm", "run", "data"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "remains"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("chroot %[1]s /remains leave && chroot %[1]s /remains find", root)
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr =
		&syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET |
				syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, what := range []string{"/tmp/sigma-remains", "/dev/shm/sigma-remains", "memory", "semaphores", "messages",
		"queue", "processes", "name of the host"} {
		if !strings.Contains(string(out), "found "+what+"\n") && !strings.Contains(string(out),
			"found "+strings.Replace(what, "/", "//", 1)+"\n") {
			t.Errorf("the control does not find %s: %s", what, out)
		}
	}
}

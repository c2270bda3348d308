//go:build system

package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// again connects to a sigmad that is being started again.
func again(ctx context.Context, t *testing.T, s *testenv.System, not int) (c *sdk.Client) {
	t.Helper()
	testenv.Eventually(t, "another sigmad answers", func() error {
		if pid := s.PID("sigmad"); pid == 0 || pid == not {
			return fmt.Errorf("sigmad is %d", pid)
		}
		var err error
		c, err = sdk.Connect(ctx, s.Socket(), defaultRealm)
		return err
	})
	t.Cleanup(c.Close)
	return c
}

// counted checks that sigmad, and what died with it, say how often they were started again.
func counted(ctx context.Context, t *testing.T, c *sdk.Client, least uint32) {
	t.Helper()
	list, err := c.Services(ctx)
	if err != nil || len(list) < 3 {
		t.Fatalf("services are %v, %v", list, err)
	}
	for _, s := range list {
		if s.State == "running" && s.Name != "launcher" && s.Restarts < least {
			t.Errorf("%s was restarted %d times, it is said, after %d deaths of sigmad", s.Name, s.Restarts, least)
		}
	}
}

// keptAll waits until so many procs are old enough to outlive sigmad.
func keptAll(ctx context.Context, t *testing.T, c *sdk.Client, least uint64) {
	t.Helper()
	testenv.Eventually(t, "the procs are old enough to outlive sigmad", func() error {
		b, _, err := c.Get(ctx, "/sys/metrics")
		_, after, _ := strings.Cut(string(b), "\nsigma_kernel_procs_kept_total ")
		var n uint64
		if _, serr := fmt.Sscan(after, &n); serr != nil || n < least {
			return fmt.Errorf("%d are: %w", n, errors.Join(err, serr))
		}
		return nil
	})
}

// same checks that procs are what they were.
func same(t *testing.T, before, after []sigma.ProcInfo) {
	t.Helper()
	for _, list := range [][]sigma.ProcInfo{before, after} {
		slices.SortFunc(list, func(a, b sigma.ProcInfo) int { return cmp.Compare(a.ID, b.ID) })
	}
	for i, p := range after {
		b := before[i]
		if p.ID != b.ID || p.State != sigma.ProcRunning || p.Name != b.Name || p.Program != b.Program ||
			p.Parent != b.Parent || p.Memory != b.Memory || !p.Times.Spawned.Equal(b.Times.Spawned) {
			t.Errorf("a proc was %+v and is %+v", b, p)
		}
	}
}

// Procs outlive sigmad: they are the same afterwards, with the same processes; who waits for them
// is answered; what they write is stored; and those that use the SDK get errors for what was under
// way, and go on: also listeners, at the same endpoints.
func TestKillSigmad(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	ctx := testContext(t)
	c := s.Connect(ctx, t, defaultRealm)
	probe, goprobe := s.Install(ctx, t, c, program(t, "probe.c")), s.Install(ctx, t, c, program(t, "goprobe"))
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: probe, Name: "sleeps", Args: []string{"ignore"},
		Memory: 32 * sigma.MiB}, sigma.Descriptor{Program: probe, Args: []string{"leave"}},
		sigma.Descriptor{Program: goprobe, Args: []string{"survive", probe, "leave"},
			View: []sigma.ViewEntry{{Path: "/", Target: "/", Rights: sigma.RightsAll}, {Path: "/hidden", Target: "/",
				Rights: sigma.RightsNone}}})
	if err != nil {
		t.Fatal(err)
	}
	sleeps, leaves, parent := ids[0], ids[1], ids[2]
	var child sigma.ProcID
	testenv.Eventually(t, "all run", func() error {
		for _, id := range ids {
			if err := c.WaitStart(ctx, id); err != nil {
				return err
			}
		}
		text, _, err := c.Get(ctx, "/proc/"+string(parent)+"/stdout")
		if _, err := fmt.Sscanf(string(text), "child %s\n", &child); err != nil {
			return err
		}
		return err
	})
	keptAll(ctx, t, c, 4)
	// What each round does to the parent's output is told by it once; the others stay over two
	// rounds.
	processes := func() (out []string) {
		for what := range s.Census() {
			if strings.Contains(what, "process rest/be/default") {
				out = append(out, what)
			}
		}
		return out
	}
	for round := range 2 {
		before, err := c.List(ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		was, old := len(processes()), s.PID("sigmad")
		outside := c
		over := make(chan error, 1)
		go func() { over <- survived(ctx, outside, parent) }() // a program outside waits over the death, too
		s.Kill9(t, "sigmad")
		c = again(ctx, t, s, old)
		counted(ctx, t, c, uint32(round+1))
		if _, err := outside.Stat(ctx, "/proc"); err != nil {
			t.Errorf("round %d: a program outside: %v", round, err)
		}
		after, err := c.List(ctx, false)
		if caps, cerr := c.Caps(ctx, parent); round == 0 && (cerr != nil || caps.All || len(caps.View) != 2) {
			t.Errorf("a proc with a view may reach %+v, %v", caps, cerr)
		}
		if err != nil || len(after) != len(before) {
			t.Fatalf("round %d: %d procs were there, and %d are, %v", round, len(before), len(after), err)
		}
		same(t, before, after)
		if is := len(processes()); is != was || was == 0 {
			t.Errorf("round %d: %d processes of procs were there, and %d are", round, was, is)
		}
		if out := s.Must(t, "run", program(t, "hello.c")); out != "hello\n" {
			t.Errorf("round %d: run: %q", round, out)
		}
		if round > 0 {
			break
		}
		dialled(ctx, t, c, "/survives")
		if err := c.Evict(ctx, child, 0); err != nil {
			t.Fatal(err)
		}
		if err := <-over; err != nil {
			t.Errorf("the parent: %v", err)
		}
		text, _, err := c.Get(ctx, "/proc/"+string(parent)+"/stdout")
		if want := "child " + string(child) + "\naccept <nil>\nwrite lost\nchild ended\n"; string(text) != want ||
			err != nil {
			t.Errorf("the parent wrote %q, %v, want %q", text, err, want)
		}
		if text, _, err := c.Get(ctx, "/survived"); string(text) != "yes" || err != nil {
			t.Errorf("the parent stored %q, %v", text, err)
		}
		appendedOnce(ctx, t, c)
	}
	canBeEnded(ctx, t, c, leaves, sleeps)
}

// canBeEnded: a proc that outlived sigmad is told to go, and another is killed.
func canBeEnded(ctx context.Context, t *testing.T, c *sdk.Client, leaves, sleeps sigma.ProcID) {
	t.Helper()
	if err := c.Evict(ctx, leaves, 0); err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitExit(ctx, leaves); err != nil || st.ExitCode != 3 {
		t.Errorf("one that is told to go: %+v, %v", st, err)
	}
	if text, _, err := c.Get(ctx, "/proc/"+string(leaves)+"/stdout"); !strings.Contains(string(text), "told to go") {
		t.Errorf("it wrote %q, %v", text, err)
	}
	if err := c.Kill(ctx, sleeps); err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitExit(ctx, sleeps); err != nil || st.ExitCode != 137 {
		t.Errorf("one that is killed: %+v, %v", st, err)
	}
}

// dialled waits until somebody listens again at an endpoint that was published before.
func dialled(ctx context.Context, t *testing.T, c *sdk.Client, path string) {
	t.Helper()
	testenv.Eventually(t, "the parent's listener is there again", func() error {
		conn, err := c.DialPath(ctx, path)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// survived waits for the proc that tells so.
func survived(ctx context.Context, c *sdk.Client, id sigma.ProcID) error {
	st, err := c.WaitExit(ctx, id)
	if err == nil && (!st.OK() || st.Msg != "survived") {
		err = fmt.Errorf("%+v", st)
	}
	return err
}

// appendedOnce checks what a proc appended all the time, in which sigmad died: each line is there
// once.
func appendedOnce(ctx context.Context, t *testing.T, c *sdk.Client) {
	t.Helper()
	lines, _, err := c.Get(ctx, "/appended")
	for i, line := range strings.Fields(string(lines)) {
		if line != fmt.Sprint(i) {
			t.Errorf("line %d of what the parent appended is %s", i, line)
			break
		}
	}
	if len(lines) < 20 || err != nil {
		t.Errorf("the parent appended %d bytes, %v", len(lines), err)
	}
}

// Procs outlive sigmad also while pages of their program are missing: the next sigmad brings them,
// to one that touches them later and to one that waits for them when sigmad dies. The store is so
// far from the first sigmad that it cannot have fetched everything before it is killed, and near to
// the next.
func TestKillSigmadWhilePaging(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getenv("SIGMA_TEST_ROOTLESS") != "" {
		t.Skip("nothing is paged without FUSE")
	}
	s := testenv.Boot(t, testenv.Options{})
	ctx := testContext(t)
	c := s.Connect(ctx, t, defaultRealm)
	const path = "/bin/pages"
	if _, err := c.Put(ctx, path, unseen(t), sigma.PutOptions{Perm: 0o755}); err != nil {
		t.Fatal(err)
	}
	far := filepath.Join(s.DataDir, "sigmad", "store-delay")
	if err := os.WriteFile(far, []byte("150ms"), 0o644); err != nil {
		t.Fatal(err)
	}
	old := s.PID("sigmad")
	s.Kill9(t, "sigmad")
	c = again(ctx, t, s, old)
	if err := os.Remove(far); err != nil { // it has been read
		t.Fatal(err)
	}
	desc := sigma.Descriptor{Program: path, Args: []string{"wait"}, Memory: 32 * sigma.MiB}
	ids, err := c.Spawn(ctx, desc, desc)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		testenv.Eventually(t, "it is ready", func() error {
			text, _, err := c.Get(ctx, "/proc/"+string(id)+"/stdout")
			if string(text) != "ready\n" {
				return fmt.Errorf("it wrote %q, %v", text, err)
			}
			return nil
		})
	}
	keptAll(ctx, t, c, 2)
	waits, later := ids[0], ids[1]
	if err := c.Evict(ctx, waits, testMax); err != nil {
		t.Fatal(err)
	}
	old = s.PID("sigmad")
	s.Kill9(t, "sigmad")
	c = again(ctx, t, s, old)
	if err := c.Evict(ctx, later, testMax); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		st, err := c.WaitExit(ctx, id)
		text, _, gerr := c.Get(ctx, "/proc/"+string(id)+"/stdout")
		if err != nil || st.ExitCode != 3 || !strings.HasSuffix(string(text), "read 7\n") {
			t.Errorf("it ended as %+v, %v, and wrote %q, %v", st, err, text, gerr)
		}
	}
	text := s.Must(t, "cat", "/sys/metrics")
	_, after, _ := strings.Cut(text, "\nsigma_binfs_fetched_bytes_total ")
	var fetched int
	if _, err := fmt.Sscan(after, &fetched); err != nil || fetched == 0 || fetched >= 16<<20 ||
		!strings.Contains(text, "\nsigma_binfs_corrupt_stored_chunks_total 0\n") {
		t.Errorf("%d bytes were fetched, %v: nothing was missing, or what was there was not used:\n%s", fetched, err,
			text)
	}
}

// Leases of procs outlive named and sigmad, killed without warning, as long as who holds them
// renews them; when the holder has died together with named they are over within their time after
// the restart, and so are its files.
func TestLeasesOverKills(t *testing.T) {
	const ttl = 6 * time.Second // a restart takes less, on a busy host too
	s := testenv.Boot(t, testenv.Options{})
	ctx := testContext(t)
	c := s.Connect(ctx, t, defaultRealm)
	goprobe := s.Install(ctx, t, c, program(t, "goprobe"))
	hold := func(path string) sigma.ProcID {
		t.Helper()
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: goprobe, Args: []string{"ephemeral", path, ttl.String()},
			Start: sigma.StartedByCall})
		if err == nil {
			err = c.WaitStart(ctx, ids[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		return ids[0]
	}
	is := func(path string) error {
		if st, err := c.Stat(sigma.WithSync(ctx), path); err != nil || !st.Ephemeral {
			return fmt.Errorf("%s is %+v, %w", path, st, err)
		}
		return nil
	}
	stays, dies := hold("/stays"), hold("/dies")
	keptAll(ctx, t, c, 2)
	s.Kill9(t, "named")
	if err := is("/stays"); err != nil {
		t.Fatal(err)
	}
	old := s.PID("sigmad")
	s.Kill9(t, "sigmad")
	killed := time.Now()
	c = again(ctx, t, s, old)
	testenv.Eventually(t, "the lease's time is over",
		func() error { // it is looked at all the time, for longer than it would live unless it was renewed
			if err := is("/stays"); err != nil {
				t.Fatal(err)
			}
			if left := ttl + time.Second - time.Since(killed); left > 0 {
				return fmt.Errorf("%v are left", left)
			}
			return nil
		})
	if err := is("/dies"); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(ctx, dies); err != nil {
		t.Fatal(err)
	}
	s.Kill9(t, "named")
	killed = time.Now()
	testenv.Eventually(t, "the file of a dead holder is gone", func() error {
		if err := is("/dies"); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it is not: %w", err)
		}
		return nil
	})
	t.Logf(
		"the file of a holder that died with named, and with a sigmad between, was gone after %v; its lease was of %v",
		time.Since(killed), ttl)
	if err := is("/stays"); err != nil {
		t.Error(err)
	}
	if err := c.Kill(ctx, stays); err != nil {
		t.Fatal(err)
	}
}

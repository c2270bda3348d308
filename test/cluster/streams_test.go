//go:build system

package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Goal: pipes of the tree carry bytes between procs and programs of different machines, in order
// and to their end; whoever is left when the other end dies, with its machine too, is told; and who
// follows a proc's log from anywhere gets all of it and ends with the proc.
func TestStreams(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3})
	m1, m2, m3 := c.Machine(0), c.Machine(1), c.Machine(2)
	client, err := m1.Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer client.Close()
	far, err := m3.Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer far.Close()
	program := m1.Install(ctx, t, client, testenv.BuildGo(t, t.TempDir(), "testdata/streams"))
	served, err := client.Spawn(ctx, sigma.Descriptor{Program: m1.Install(ctx, t, client,
		testenv.BuildGo(t, t.TempDir(), "../machine/testdata/goprobe")),
		Args: []string{"tree", "/pipes"}}) // at home, since there is room
	must(t, err)
	must(t, client.WaitStart(ctx, served[0]))
	must(t, client.WaitFor(ctx, "/pipes"))
	for _, name := range []string{"feed", "broken", "poured", "lost"} {
		_, err := client.Put(ctx, "/pipes/"+name, nil, sigma.PutOptions{Kind: sigma.KindPipe, Perm: 0o666})
		must(t, err)
	}
	m1.Must(t, "machine", "cordon", "m1", "m3")
	// at starts a proc, which is on m2.
	at := func(args ...string) (id sigma.ProcID) {
		t.Helper()
		testenv.Eventually(t, "a proc is on m2", func() error { // besched hears of cordons a little later
			ids, err := client.Spawn(ctx, sigma.Descriptor{Program: program, Args: args})
			must(t, err)
			id = ids[0]
			must(t, client.WaitStart(ctx, id))
			on := runs(ctx, t, client, ids)
			if len(on["m2"]) == 1 {
				return nil
			}
			must(t, client.Kill(ctx, id))
			exit(ctx, t, client, id)
			return fmt.Errorf("%s is on %v", id, on)
		})
		return id
	}
	t.Run("log", func(t *testing.T) { followsLogs(ctx, t, client, at("print", "/pipes/feed"), m1, m2, m3) })

	// A writer whose reader is killed.
	id := at("print", "/pipes/broken")
	h, err := client.Open(ctx, "/pipes/broken", sigma.OpenWrite)
	must(t, err)
	_, err = h.Write([]byte("before\n"))
	must(t, err)
	testenv.Eventually(t, "it has read", func() error {
		if b, _, err := far.Get(ctx, sigma.JoinPath("proc", string(id), "stdout")); err != nil ||
			string(b) != "before\n" {
			return fmt.Errorf("it printed %q, %w", b, err)
		}
		return nil
	})
	must(t, client.Kill(ctx, id))
	for err = nil; err == nil; {
		_, err = h.Write([]byte("after\n"))
	}
	if sigma.KindOf(err) != sigma.KindUnavailable || !strings.Contains(err.Error(), "/pipes/broken") {
		t.Errorf("a writer whose reader was killed: %v (%v)", err, sigma.KindOf(err))
	}
	h.Close()

	// Readers whose writer is killed, alone and with its machine.
	for _, last := range []bool{false, true} {
		name := "/pipes/poured"
		if last {
			name = "/pipes/lost"
		}
		id := at("pour", name)
		h, err := far.Open(ctx, name, sigma.OpenRead)
		must(t, err)
		lines := bufio.NewReader(h)
		n := 0
		for err = nil; err == nil; n++ {
			var line string
			line, err = lines.ReadString('\n')
			if err == nil && line != fmt.Sprintf("line %d\n", n) {
				t.Fatalf("%s: line %d is %q", name, n, line)
			}
			if n == 1000 && last {
				must(t, m2.PowerOff())
			} else if n == 1000 {
				must(t, client.Kill(ctx, id))
			}
		}
		if err != io.EOF || n < 1000 {
			t.Errorf("%s: a reader whose writer died read %d lines, and then: %v", name, n, err)
		}
		h.Close()
	}
	must(t, m2.Restart())
}

// followsLogs feeds a proc that prints, while its log is followed at all machines in all ways.
func followsLogs(ctx context.Context, t *testing.T, client *sdk.Client, id sigma.ProcID, machines ...*testenv.Machine) {
	var want strings.Builder
	for n := range 300 {
		fmt.Fprintf(&want, "%d %s\n", n, strings.Repeat("x", n))
	}
	var followers sync.WaitGroup
	for _, m := range machines {
		for _, args := range [][]string{{"logs", "-f", string(id)}, {"logs", "-f", "--stdout", string(id)}} {
			followers.Go(func() {
				stdout, stderr, code := m.CLI(t, args...)
				errs := ""
				if !slices.Contains(args, "--stdout") {
					errs = "the end\n"
				}
				if code != 0 || stdout != want.String() || stderr != errs {
					t.Errorf("%q at %s: exit code %d, %d bytes of %d, and %q", args, m.Name, code, len(stdout),
						want.Len(), stderr)
				}
			})
		}
	}
	h, err := client.Open(ctx, "/pipes/feed", sigma.OpenWrite)
	must(t, err)
	for line := range strings.Lines(want.String()) {
		if _, err := h.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	must(t, h.Close())
	if st, err := client.WaitExit(ctx, id); err != nil || !st.OK() {
		t.Errorf("the proc that prints ended as %+v, %v", st, err)
	}
	followers.Wait()
	if b, _, err := client.Get(ctx, sigma.JoinPath("proc", string(id), "log")); err != nil ||
		string(b) != want.String()+"the end\n" {
		t.Errorf("the log has %d bytes, %v", len(b), err)
	}
}

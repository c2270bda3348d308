//go:build system

package cluster

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Goal: procs that are spawned at one machine run on all, and from each machine they are waited
// for, read and killed wherever they are. Who waits for a proc of a machine that dies hears so,
// also at another machine; what that machine was the home of goes on elsewhere.
func TestProcsEverywhere(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3})
	clients := map[sigma.MachineID]*sdk.Client{}
	for _, m := range cluster.Machines() {
		c, err := m.Client(ctx, sigma.DefaultRealm)
		must(t, err)
		defer c.Close()
		clients[m.Name] = c
	}
	program := cluster.Machine(0).Install(ctx, t, clients["m1"], testenv.BuildC(t, t.TempDir(),
		"../machine/testdata/probe.c"))
	d := sigma.Descriptor{Program: program, Args: []string{"stay"}, Memory: 8 * sigma.MiB}
	spawn := func(at sigma.MachineID, n int, enough func(on placed) bool) placed {
		return spread(ctx, t, clients[at], clients["m2"], clients["m3"], slices.Repeat([]sigma.Descriptor{d}, n),
			enough)
	}
	on := spawn("m1", 100, func(on placed) bool {
		return len(on["m1"]) >= 10 && len(on["m2"]) >= 10 && len(on["m3"]) >= 10
	})

	// From a machine that is neither the home nor the one that runs it.
	far := on["m2"][0]
	if out, _, err := clients["m3"].Get(ctx, "/proc/"+string(far)+"/status"); err != nil ||
		!strings.Contains(string(out), `"machine":"m2"`) {
		t.Errorf("status of %s at m3: %q, %v", far, out, err)
	}
	waited := make(chan sigma.Status, 1)
	go func() { waited <- exit(ctx, t, clients["m3"], far) }()
	must(t, clients["m1"].Kill(ctx, far))
	if s := <-waited; s.Code != sigma.StatusEvicted {
		t.Errorf("a proc that was killed from afar: %+v", s)
	}

	// m3 dies: with it what it ran of m1, and not what the others run of it.
	elsewhere := spawn("m3", 30, func(on placed) bool { return len(on["m1"])+len(on["m2"]) > 0 })
	kept := slices.Concat(elsewhere["m1"], elsewhere["m2"])
	lost := make(chan sigma.Status)
	for _, id := range on["m3"] {
		for _, at := range []sigma.MachineID{"m1", "m2"} {
			go func() { lost <- exit(ctx, t, clients[at], id) }()
		}
	}
	must(t, cluster.Machine(2).Kill())
	for range 2 * len(on["m3"]) {
		if s := <-lost; s.Code != sigma.StatusLost || !strings.Contains(s.Msg, "m3") {
			t.Errorf("a proc of the machine that died: %+v", s)
		}
	}
	testenv.Eventually(t, "what was at home at m3 is listed where it runs", func() error {
		now := runs(ctx, t, clients["m2"], kept)
		if n := len(now["m1"]) + len(now["m2"]); n != len(kept) {
			return sigma.Errorf("test", sigma.KindOther, "%d of %d are listed", n, len(kept))
		}
		return nil
	})
	for i, id := range kept {
		at := []sigma.MachineID{"m1", "m2"}[i%2]
		must(t, clients[at].Kill(ctx, id))
		if s := exit(ctx, t, clients[at], id); s.Code != sigma.StatusEvicted {
			t.Errorf("a proc whose home died, killed: %+v", s)
		}
	}

	// It comes back in a new life, and runs procs again.
	must(t, cluster.Machine(2).Restart())
	fresh, err := cluster.Machine(2).Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer fresh.Close()
	clients["m3"] = fresh
	back := spawn("m1", 20, func(on placed) bool { return len(on["m3"]) > 0 })["m3"]

	// It is drained: what it runs is asked to go, wherever it is at home, and nothing new comes.
	cluster.Machine(1).Must(t, "machine", "drain", "m3")
	for _, id := range back {
		if s := exit(ctx, t, clients["m2"], id); s.Code != sigma.StatusEvicted {
			t.Errorf("a proc of the machine that is drained: %+v", s)
		}
	}
	if on := spawn("m2", 20, func(placed) bool { return true }); len(on["m3"]) > 0 {
		t.Errorf("%d procs were placed on a machine that is drained", len(on["m3"]))
	}
}

// placed are procs by the machine that they run on.
type placed = map[sigma.MachineID][]sigma.ProcID

// spread spawns procs until they run where they should, which it says is seen from another machine.
// On a busy host a machine may ask for procs so late that the others have taken all of a burst.
func spread(ctx context.Context, t *testing.T, at, waiter, lister *sdk.Client, ds []sigma.Descriptor,
	enough func(placed) bool) (on placed) {
	t.Helper()
	testenv.Eventually(t, "procs run where they should", func() error {
		ids, err := at.Spawn(ctx, ds...)
		must(t, err)
		for _, id := range ids {
			must(t, waiter.WaitStart(ctx, id))
		}
		if on = runs(ctx, t, lister, ids); enough(on) {
			return nil
		}
		for _, id := range ids {
			must(t, at.Kill(ctx, id))
			exit(ctx, t, at, id)
		}
		return sigma.Errorf("test", sigma.KindOther, "%v", on)
	})
	return on
}

// everywhere waits until all machines take part: until a burst is spread over so many.
func everywhere(ctx context.Context, t *testing.T, c *sdk.Client, d sigma.Descriptor, machines int) {
	t.Helper()
	on := spread(ctx, t, c, c, c, slices.Repeat([]sigma.Descriptor{d}, 3*machines), func(on placed) bool {
		return len(on) == machines
	})
	for _, ids := range on {
		for _, id := range ids {
			must(t, c.Kill(ctx, id))
			exit(ctx, t, c, id)
		}
	}
}

// runs groups those of ids that are listed as not ended by the machine that they run on.
func runs(ctx context.Context, t *testing.T, c *sdk.Client, ids []sigma.ProcID) placed {
	t.Helper()
	infos, err := c.List(ctx, false)
	must(t, err)
	on := placed{}
	for _, p := range infos {
		if slices.Contains(ids, p.ID) {
			on[p.Machine] = append(on[p.Machine], p.ID)
		}
	}
	return on
}

func exit(ctx context.Context, t *testing.T, c *sdk.Client, id sigma.ProcID) sigma.Status {
	s, err := c.WaitExit(ctx, id)
	if err != nil {
		t.Errorf("wait for %s: %v", id, err)
	}
	return s
}

// Goal: a sigmad that dies is followed by one that knows all again: what it ran for others goes on
// and is reported, and what others run for it is listed and waited for there. No proc is lost, but
// for those that a machine's sigmad has not kept yet.
func TestSigmadRestarts(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3})
	home, runner, other := cluster.Machine(0), cluster.Machine(1), cluster.Machine(2)
	client := func(m *testenv.Machine) (c *sdk.Client) {
		testenv.Eventually(t, string(m.Name)+" answers", func() (err error) {
			c, err = m.Client(ctx, sigma.DefaultRealm)
			return err
		})
		t.Cleanup(c.Close)
		return c
	}
	c := client(home)
	d := sigma.Descriptor{Program: home.Install(ctx, t, c, testenv.BuildC(t, t.TempDir(),
		"../machine/testdata/probe.c")), Args: []string{"stay"}, Memory: 8 * sigma.MiB}
	everywhere(ctx, t, c, d, cluster.Size())
	kept := func(m *testenv.Machine) int {
		text, _, err := client(m).Get(ctx, "/sys/metrics")
		must(t, err)
		_, after, _ := strings.Cut(string(text), "\nsigma_kernel_procs_kept_total ")
		n, err := strconv.Atoi(strings.SplitN(after, "\n", 2)[0])
		must(t, err)
		return n
	}
	var former map[sigma.MachineID]int
	count := func() {
		former = map[sigma.MachineID]int{}
		for _, m := range cluster.Machines() {
			former[m.Name] = kept(m)
		}
	}
	count()
	before := spread(ctx, t, c, c, c, slices.Repeat([]sigma.Descriptor{d}, 30), func(on placed) bool {
		for _, m := range cluster.Machines() {
			testenv.Eventually(t, string(m.Name)+" has kept its procs", func() error {
				if n, want := kept(m)-former[m.Name], len(on[m.Name]); n != want {
					return sigma.Errorf("test", sigma.KindOther, "%d of %d", n, want)
				}
				return nil
			})
		}
		count()
		return len(on[runner.Name]) > 6
	})
	ids := slices.Concat(before["m1"], before["m2"], before["m3"])
	for _, m := range []*testenv.Machine{runner, home} {
		m.Kill9(t, "sigmad")
		testenv.Eventually(t, "all is known again", func() error {
			if now := runs(ctx, t, client(other), ids); len(slices.Concat(now["m1"], now["m2"],
				now["m3"])) != len(ids) {
				return sigma.Errorf("test", sigma.KindOther, "%d, %d and %d are listed", len(now["m1"]), len(now["m2"]),
					len(now["m3"]))
			}
			return nil
		})
		for _, from := range []*testenv.Machine{home, runner, other} { // one of the runner's, each
			id := before[runner.Name][0]
			before[runner.Name] = before[runner.Name][1:]
			must(t, client(from).Kill(ctx, id))
			if s := exit(ctx, t, client(home), id); s.Code != sigma.StatusEvicted {
				t.Errorf("a proc killed from %s after sigmad of %s died: %+v", from.Name, m.Name, s)
			}
			ids = slices.DeleteFunc(ids, func(x sigma.ProcID) bool { return x == id })
		}
	}
}

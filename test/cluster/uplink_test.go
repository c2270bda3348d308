//go:build system

package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: what a latency-critical proc sends to another machine goes before what best-effort ones
// send, whichever side has dialled, and sigmads' own connections are in neither's class (001 §4.3);
// doctor says so; a machine whose operator wants none has none. Method: two machines with a slow
// network; the classes' own counters of bytes.
func TestPaperNetworkPriority(t *testing.T) {
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 2, Unstarted: true})
	m1 := c.Machine(0)
	m1.Must(t, "up", "--detach", "--machines", "2", "--uplink", "80Mbit", "--data", c.Data())
	c.Started(t)
	if got := m1.Must(t, "doctor"); !strings.Contains(got,
		"on eth0 latency-critical procs go before best-effort ones") {
		t.Errorf("doctor says:\n%s", got)
	}
	client, err := m1.Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer client.Close()
	program := m1.Install(ctx, t, client, testenv.BuildGo(t, t.TempDir(), "testdata/uplink"))
	start := func(where sigma.MachineID, d sigma.Descriptor, args ...string) sigma.ProcID {
		t.Helper()
		other := map[sigma.MachineID]string{"m1": "m2", "m2": "m1"}[where]
		m1.Must(t, "machine", "cordon", other)
		defer m1.Must(t, "machine", "uncordon", other)
		d.Program, d.Args, d.Memory = program, args, 32*sigma.MiB
		if args[0] == "sink" || args[0] == "pour" {
			d.Start = sigma.StartedByCall
		}
		var id sigma.ProcID
		testenv.Eventually(t, "a proc is on "+string(where), func() error { // besched hears of cordons a little later
			ids, err := client.Spawn(ctx, d)
			must(t, err)
			id = ids[0]
			must(t, client.WaitStart(ctx, id))
			infos, err := client.List(ctx, true)
			must(t, err)
			for _, i := range infos {
				if i.ID == id && i.Machine == where {
					return nil
				}
			}
			must(t, client.Kill(ctx, id))
			_, err = client.WaitExit(ctx, id)
			must(t, err)
			return fmt.Errorf("%s is not", id)
		})
		return id
	}
	critical := sigma.Descriptor{Class: sigma.LatencyCritical, CPU: 200}
	classes := func() [3]uint64 { return uplinkBytes(t, m1) }
	const control, urgent, rest = 0, 1, 2
	grows := func(class int) {
		t.Helper()
		begin := classes()[class]
		testenv.Eventually(t, "its class carries it", func() error {
			if n := classes()[class] - begin; n < 1<<20 {
				return fmt.Errorf("%d bytes, %v in all; procs:\n%s", n, classes(), m1.Must(t, "ps", "-a"))
			}
			return nil
		})
	}
	start("m2", sigma.Descriptor{}, "sink", "/sink")
	dialler := start("m1", critical, "flood", "/sink")
	grows(urgent)
	must(t, client.Kill(ctx, dialler))
	start("m1", critical, "pour", "/urgent")
	start("m2", sigma.Descriptor{}, "drain", "/urgent")
	start("m1", sigma.Descriptor{}, "flood", "/sink")
	grows(rest)
	grows(urgent)
	before := classes()
	testenv.Eventually(t, "ten megabytes are sent", func() error {
		if n := classes()[urgent] - before[urgent]; n < 10<<20 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	after := classes()
	first, last, own := after[urgent]-before[urgent], after[rest]-before[rest], after[control]-before[control]
	t.Logf("beside %d bytes of the latency-critical proc went %d of the best-effort one, and %d of sigmads", first,
		last, own)
	if first < 2*last {
		t.Errorf("the latency-critical proc has sent %d bytes, the best-effort one %d", first, last)
	}
	if after[control] == 0 || own > first {
		t.Errorf("sigmads have sent %d bytes in all, %d meanwhile", after[control], own)
	}
	m1.Must(t, "down", "--data", c.Data())
	m1.Must(t, "up", "--detach", "--machines", "2", "--uplink", "none", "--data", c.Data())
	c.Started(t)
	if got := classes(); got != [3]uint64{} {
		t.Errorf("with --uplink none the classes have %v", got)
	}
}

// uplinkBytes is what each class of a machine's uplink has sent.
func uplinkBytes(t *testing.T, m *testenv.Machine) (bytes [3]uint64) {
	t.Helper()
	space, err := netns.GetFromPid(m.PID("keeper"))
	must(t, err)
	defer space.Close()
	h, err := netlink.NewHandleAt(space)
	must(t, err)
	defer h.Close()
	eth0, err := h.LinkByName("eth0")
	must(t, err)
	all, err := h.ClassList(eth0, netlink.HANDLE_NONE)
	must(t, err)
	for _, class := range all {
		if _, minor := netlink.MajorMinor(class.Attrs().Handle); minor >= 0x10 && minor < 0x13 &&
			class.Attrs().Statistics != nil {
			bytes[minor-0x10] = class.Attrs().Statistics.Basic.Bytes
		}
	}
	return bytes
}

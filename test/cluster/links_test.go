//go:build system

package cluster

import (
	"context"
	"io"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// probes is a realm as the machines of a cluster see it.
type probes struct {
	t       *testing.T
	ctx     context.Context
	clients map[sigma.MachineID]*sdk.Client
	program string
}

func newProbes(ctx context.Context, t *testing.T, cluster *testenv.Cluster, realm sigma.RealmID, local string) *probes {
	t.Helper()
	p := &probes{t: t, ctx: ctx, clients: map[sigma.MachineID]*sdk.Client{}}
	for _, m := range cluster.Machines() {
		c, err := m.Client(ctx, realm)
		must(t, err)
		t.Cleanup(c.Close)
		p.clients[m.Name] = c
	}
	p.program = cluster.Machine(0).Install(ctx, t, p.clients["m1"], local)
	return p
}

// serve starts a server and gives the machine that runs it.
func (p *probes) serve(args ...string) (sigma.ProcID, sigma.MachineID) {
	p.t.Helper()
	c := p.clients["m1"]
	ids, err := c.Spawn(p.ctx, sigma.Descriptor{Program: p.program, Args: args, Start: sigma.StartedByCall,
		Memory: 32 * sigma.MiB})
	must(p.t, err)
	must(p.t, c.WaitStart(p.ctx, ids[0]))
	return ids[0], p.machine(ids[0])
}

func (p *probes) machine(id sigma.ProcID) sigma.MachineID {
	p.t.Helper()
	infos, err := p.clients["m1"].List(p.ctx, true)
	must(p.t, err)
	for _, i := range infos {
		if i.ID == id {
			return i.Machine
		}
	}
	p.t.Fatalf("%s is not listed", id)
	return ""
}

// everywhere runs a program, some at a time, until others than the machine at have run it, and if
// there are some at a time that one too. It gives what was printed on each machine.
func (p *probes) everywhere(at sigma.MachineID, ok bool, atOnce int, args ...string) map[sigma.MachineID]string {
	p.t.Helper()
	out, others := map[sigma.MachineID]string{}, 0
	for range 100 {
		ds := make([]sigma.Descriptor, atOnce)
		for i := range ds {
			ds[i] = sigma.Descriptor{Program: p.program, Args: args, Memory: 16 * sigma.MiB}
		}
		c := p.clients["m1"]
		ids, err := c.Spawn(p.ctx, ds...)
		must(p.t, err)
		for _, id := range ids {
			s, err := c.WaitExit(p.ctx, id)
			must(p.t, err)
			m := p.machine(id)
			text, _, err := c.Get(p.ctx, "/proc/"+string(id)+"/stdout")
			must(p.t, err)
			complaint, _, err := c.Get(p.ctx, "/proc/"+string(id)+"/stderr")
			must(p.t, err)
			text = append(text, complaint...)
			if s.OK() != ok {
				p.t.Errorf("%v on %s: %+v, %q", args, m, s, text)
			}
			if before, ran := out[m]; ran && before != string(text) {
				p.t.Errorf("%v on %s: once %q, once %q", args, m, before, text)
			} else if !ran && m != at {
				others++
			}
			out[m] = string(text)
		}
		if others > 0 && (out[at] != "" || atOnce == 1) {
			return out
		}
	}
	p.t.Fatalf("%v ran on %v only", args, out)
	return nil
}

// Goal: a proc is reached by name from every machine of its realm as from its own, a tree that it
// serves is part of the realm's everywhere, and no proc of another realm reaches it from any
// machine. A connection ends when one of the two machines is lost.
func TestEndpointsAcross(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Realms: []sigma.RealmID{"other"}})
	local := testenv.BuildGo(t, t.TempDir(), "../machine/testdata/goprobe")
	own, other := newProbes(ctx, t, cluster, sigma.DefaultRealm, local), newProbes(ctx, t, cluster, "other", local)

	_, at := own.serve("echo", "/echo")
	for m, out := range own.everywhere(at, true, 12, "say", "/echo", "some words") {
		if out != "you are ME in default\nsome words" {
			t.Errorf("on %s, of a server on %s: %q", m, at, out)
		}
	}
	text, err := own.clients["m1"].ReadLink(ctx, "/echo")
	must(t, err)
	for m, out := range other.everywhere(at, false, 12, "dial", text) {
		if out != "permission denied: the endpoint belongs to another realm\n" {
			t.Errorf("of another realm, on %s, the server is on %s: %q", m, at, out)
		}
	}
	for m, out := range own.everywhere(at, true, 12, "dial", text) { // positive control
		if out != "connected\n" {
			t.Errorf("of its own realm, on %s, the server is on %s: %q", m, at, out)
		}
	}

	id, at := own.serve("tree", "/served")
	for m, out := range own.everywhere(at, true, 1, "walk", "/served") {
		if out != "big\nsmall\n" {
			t.Errorf("the tree from %s, served on %s: %q", m, at, out)
		}
	}
	for _, m := range cluster.Machines() {
		if b, _, err := own.clients[m.Name].Get(ctx, "/served/deep/small"); err != nil || string(b) != "words" {
			t.Errorf("the tree from outside at %s: %q, %v", m.Name, b, err)
		}
		if got := m.Must(t, "cat", "/served/deep/small"); got != "words" {
			t.Errorf("cat at %s: %q", m.Name, got)
		}
	}
	must(t, own.clients["m2"].Kill(ctx, id))

	// A store that dies is found again, and so are names.
	for _, daemon := range []string{"s3d", "named"} {
		must(t, cluster.Machine(0).KillDaemon(daemon))
		for _, m := range cluster.Machines() {
			testenv.Eventually(t, "programs are there after the end of "+daemon, func() error {
				_, err := own.clients[m.Name].Stat(ctx, own.program)
				return err
			})
		}
	}

	// The plug of a machine is pulled: who is connected with it hears of it.
	far := ""
	for far != "m3" { // not the one control machine
		_, at := own.serve("echo", "/far")
		far = string(at)
	}
	conn, err := own.clients["m2"].DialPath(ctx, "/far")
	must(t, err)
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Error(err)
	}
	must(t, cluster.Machine(2).PowerOff())
	if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection ended with %v", err)
	}
	must(t, cluster.Machine(2).Restart())
}

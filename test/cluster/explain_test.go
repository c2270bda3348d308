//go:build system

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// reasons stages waits and failures and notes what explain has to say of them for ever.
type reasons struct {
	t       *testing.T
	ctx     context.Context
	c       *testenv.Cluster
	program string
	of      map[sigma.RealmID]*sdk.Client
	want    []wanted
}

// wanted is a decision that there has to be.
type wanted struct {
	realm  sigma.RealmID
	proc   string // id or name
	reason decision.Reason
	says   string
}

// Goal: explain names the true reason of staged waits and failed starts, also at another machine,
// after the procs' end and after a restart of everything.
func TestExplainNamesTheTrueReason(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 2, Memory: 512 * sigma.MiB, CPU: 1,
		Realms: []sigma.RealmID{"a", "b"}})
	r := &reasons{t: t, ctx: ctx, c: c, of: map[sigma.RealmID]*sdk.Client{}}
	for _, realm := range []sigma.RealmID{"a", "b"} {
		client, err := c.Machine(0).Client(ctx, realm)
		must(t, err)
		defer client.Close()
		r.of[realm] = client
		r.program = c.Machine(0).Install(ctx, t, client, testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c"))
	}
	r.bestEffort()
	r.latencyCritical()
	r.paused()
	r.failures()
	r.check("after the end", c.Machine(1))
	c.Machine(0).Must(t, "--data", c.Data(), "down")
	c.Machine(0).Must(t, "--data", c.Data(), "up", "--detach")
	c.Started(t)
	r.check("after a restart", c.Machine(0), c.Machine(1))
}

// spawn makes a proc that stays, best-effort unless it reserves cores.
func (r *reasons) spawn(realm sigma.RealmID, memory sigma.Bytes, also ...func(*sigma.Descriptor)) sigma.ProcID {
	r.t.Helper()
	d := sigma.Descriptor{Program: r.program, Args: []string{"stay"}, Memory: memory}
	for _, f := range also {
		f(&d)
	}
	ids, err := r.of[realm].Spawn(r.ctx, d)
	must(r.t, err)
	return ids[0]
}

func (r *reasons) runs(realm sigma.RealmID, id sigma.ProcID) sigma.ProcID {
	r.t.Helper()
	must(r.t, r.of[realm].WaitStart(r.ctx, id))
	return id
}

func (r *reasons) kill(realm sigma.RealmID, ids ...sigma.ProcID) {
	r.t.Helper()
	for _, id := range ids {
		must(r.t, r.of[realm].Kill(r.ctx, id))
		exit(r.ctx, r.t, r.of[realm], id)
	}
}

// because waits until explain has the reason of a proc, at both machines.
func (r *reasons) because(realm sigma.RealmID, proc string, reason decision.Reason, says string) {
	r.t.Helper()
	r.want = append(r.want, wanted{realm, proc, reason, says})
	for _, m := range r.c.Machines() {
		testenv.Eventually(r.t, string(reason)+" is told at "+string(m.Name), func() error {
			return r.want[len(r.want)-1].told(r.t, m)
		})
	}
}

func (w *wanted) told(t *testing.T, m *testenv.Machine) error {
	out, errs, code := m.CLI(t, "explain", "--realm", string(w.realm), "--json", w.proc)
	if code != 0 {
		return fmt.Errorf("exit code %d: %s", code, errs)
	}
	var all []struct{ Decisions []decision.Record }
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return err
	}
	for _, d := range all[0].Decisions {
		if d.Reason == w.reason && strings.Contains(fmt.Sprint(d.Why, d.Machines), w.says) {
			return nil
		}
	}
	return fmt.Errorf("no decision %s that says %q:\n%s", w.reason, w.says, out)
}

func (r *reasons) check(when string, machines ...*testenv.Machine) {
	for _, m := range machines {
		for _, w := range r.want {
			testenv.Eventually(r.t, fmt.Sprint(w.reason, " is told at ", m.Name, " ", when), func() error {
				return w.told(r.t, m)
			})
		}
	}
}

// bestEffort stages what besched and the machines decide.
func (r *reasons) bestEffort() {
	const all, half, quarter = 384 * sigma.MiB, 192 * sigma.MiB, 96 * sigma.MiB
	one, two := r.runs("b", r.spawn("b", all)), r.runs("b", r.spawn("b", all))
	first, second := r.spawn("a", all), r.spawn("a", quarter)
	r.because("a", string(first), decision.Memory, "384MiB")
	r.because("a", string(second), decision.Behind, "its realm wait here")
	if out := r.c.Machine(1).Must(r.t, "ps", "--realm", "a"); !strings.Contains(out, "queued: memory") ||
		!strings.Contains(out, "queued: behind") {
		r.t.Errorf("ps does not say why procs wait:\n%s", out)
	}
	r.kill("a", second)
	third := r.spawn("b", all)
	r.because("b", string(third), decision.Memory, "384MiB") // so that it waits before there is room
	// one of both realms gets what this frees; the other hears that it was another's turn
	r.kill("b", one)
	r.turn(first, third, two)

	near := r.runs("b", r.spawn("b", all, nearTo("m2")))
	r.runs("a", r.spawn("a", quarter, nearTo("m2"), named("nearby")))
	r.because("a", "nearby", decision.Near, "m2")
	one = r.runs("b", r.spawn("b", half))
	large := r.spawn("a", half)
	r.because("a", string(large), decision.Memory, "96MiB of 384MiB free")
	small := r.runs("b", r.spawn("b", quarter))
	r.because("a", string(large), decision.Overtaken, "smaller procs")
	r.kill("a", large)
	r.kill("b", near, one, small)

	r.c.Machine(0).Must(r.t, "realm", "set", "--max-memory", "96M", "a")
	r.because("a", string(r.keptBack(quarter)), decision.Maximum, "may have 96MiB of memory there and has 96MiB")
	r.c.Machine(0).Must(r.t, "realm", "set", "--max-memory", "default", "a")
	r.killAll("a")
	for _, m := range r.c.Machines() {
		r.c.Machine(0).Must(r.t, "machine", "cordon", string(m.Name))
	}
	closed := r.spawn("a", quarter)
	r.because("a", string(closed), decision.Cordoned, "takes nothing new")
	for _, m := range r.c.Machines() {
		r.c.Machine(0).Must(r.t, "machine", "uncordon", string(m.Name))
	}
	r.runs("a", closed)
	r.because("a", string(closed), decision.Placed, "it was placed on machine")
	r.killAll("a")
}

// turn waits until one of two procs runs, and says that the other waits for its turn.
func (r *reasons) turn(a, b, left sigma.ProcID) {
	running := func(realm sigma.RealmID, id sigma.ProcID) bool {
		list, err := r.of[realm].List(r.ctx, false)
		must(r.t, err)
		for _, p := range list {
			if p.ID == id {
				return p.State == sigma.ProcRunning
			}
		}
		return false
	}
	testenv.Eventually(r.t, "one of them runs", func() error {
		if !running("a", a) && !running("b", b) {
			return fmt.Errorf("none does")
		}
		return nil
	})
	if running("a", a) {
		r.because("b", string(b), decision.Turn, "other realms were given room")
	} else {
		r.because("a", string(a), decision.Turn, "other realms were given room")
	}
	r.kill("b", left)
	r.runs("a", a)
	r.runs("b", b)
	r.kill("a", a)
	r.kill("b", b)
}

// keptBack fills what the realm may have of both machines, and gives the next proc.
func (r *reasons) keptBack(each sigma.Bytes) sigma.ProcID {
	for {
		id := r.spawn("a", each)
		started := make(chan error, 1)
		ctx, cancel := context.WithTimeout(r.ctx, 3e9)
		go func() { started <- r.of["a"].WaitStart(ctx, id) }()
		err := <-started
		cancel()
		if err != nil {
			return id
		}
	}
}

func (r *reasons) killAll(realm sigma.RealmID) {
	list, err := r.of[realm].List(r.ctx, false)
	must(r.t, err)
	for _, p := range list {
		r.kill(realm, p.ID)
	}
}

func nearTo(m sigma.MachineID) func(*sigma.Descriptor) {
	return func(d *sigma.Descriptor) { d.Near = m }
}

func named(name string) func(*sigma.Descriptor) {
	return func(d *sigma.Descriptor) { d.Name = name }
}

// reserving makes a descriptor latency-critical.
func reserving(cpu sigma.MilliCPU, where ...string) func(*sigma.Descriptor) {
	return func(d *sigma.Descriptor) { d.Class, d.CPU, d.Where = sigma.LatencyCritical, cpu, where }
}

// latencyCritical stages what lcsched decides.
func (r *reasons) latencyCritical() {
	const small = 64 * sigma.MiB
	set := func(realm string, args ...string) {
		r.c.Machine(0).Must(r.t, append(append([]string{"realm", "set"}, args...), realm)...)
	}
	one := r.runs("b", r.spawn("b", small, reserving(1000)))
	r.runs("b", r.spawn("b", small, reserving(1000)))
	waits := r.spawn("a", small, reserving(500))
	r.because("a", string(waits), decision.Reserved, "0 cores")
	r.kill("b", one)
	r.runs("a", waits)
	near := r.runs("a", r.spawn("a", small, reserving(400)))
	r.kill("a", waits, near)
	r.killAll("b")

	set("a", "--limit-reserve-cpu", "0.5")
	r.runs("a", r.spawn("a", small, reserving(500)))
	r.because("a", string(r.spawn("a", small, reserving(500))), decision.Maximum, "may reserve")
	set("a", "--limit-reserve-cpu", "default")
	r.killAll("a")

	for _, m := range r.c.Machines() {
		r.c.Machine(0).Must(r.t, "machine", "cordon", string(m.Name))
	}
	r.because("a", string(r.spawn("a", small, reserving(500))), decision.Cordoned, "takes nothing new")
	for _, m := range r.c.Machines() {
		r.c.Machine(0).Must(r.t, "machine", "uncordon", string(m.Name))
	}
	r.killAll("a")
	for name, f := range map[string]func(*sigma.Descriptor){"label": reserving(500, "zone=none"),
		"cores": reserving(64000)} {
		id := r.spawn("a", small, named(name), f)
		exit(r.ctx, r.t, r.of["a"], id)
		r.because("a", name, decision.Failed, map[string]string{"label": "zone=none", "cores": "64 cores"}[name])
	}
}

// paused stages a registered proc that ends again and again, and one that never starts.
func (r *reasons) paused() {
	for name, program := range map[string]string{"looping": r.program, "never": "/bad/none"} {
		must(r.t, r.of["a"].Register(r.ctx, sigma.Registration{Name: name,
			Descriptor: sigma.Descriptor{Program: program, Args: []string{"exit", "3"}}}))
		r.because("a", name, decision.Pause, "the next is started after")
	}
	for _, name := range []string{"looping", "never"} {
		r.c.Machine(0).Must(r.t, "init", "rm", "--realm", "a", name)
	}
}

// failures stages starts that fail.
func (r *reasons) failures() {
	must(r.t, r.of["a"].MkdirAll(r.ctx, "/bad", 0o755))
	_, err := r.of["a"].Put(r.ctx, "/bad/text", []byte("no program"), sigma.PutOptions{Perm: 0o755})
	must(r.t, err)
	for name, f := range map[string]struct {
		program, says string
	}{"missing": {"/bad/none", "no"}, "text": {"/bad/text", "exec"}, "directory": {"/bad", ""}} {
		id := r.spawn("a", 64*sigma.MiB, named(name), func(d *sigma.Descriptor) { d.Program = f.program })
		exit(r.ctx, r.t, r.of["a"], id)
		r.because("a", name, decision.Failed, f.says)
	}
}

//go:build system

package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// The chaos test does to the machines of a system under load, in random order, what happens to
// machines, and holds the system to what it promises then (docs/internals/testing.md).
// SIGMA_CHAOS_TIME says for how long (1 minute; 10m is for a person), SIGMA_CHAOS_SEED repeats the
// order of an earlier run, SIGMA_CHAOS_ONLY names the only fault to use, and SIGMA_CHAOS_CONTROL is
// how many control machines there are: a single one (the default) is spared.
const (
	chaosTime     = time.Minute
	chaosMachines = 5
	warmTime      = 2 * time.Second
	socketsMore   = 20
	lossMost      = 3 * time.Second  // from the fault until those who wait for procs of the machine are answered
	backMost      = 30 * time.Second // until a machine that returns is a member again
	answersMost   = 60 * time.Second // for the last waiter, at the end
	// the longest that is not to be taken for death: twice that is below the 1.25 s that may never
	// raise an alarm
	slowMost = 600 * time.Millisecond
)

// act is a kind of fault. do returns when it is over and the machine serves again.
type act struct {
	name    string
	ends    bool // it ends the life of the machine
	do      func(x *chaos, v *testenv.Machine) error
	control bool // it is for a control machine
}

var acts = []act{
	{name: "kill", ends: true, do: func(x *chaos, v *testenv.Machine) error {
		return x.end(v, v.Kill, v.Restart)
	}},
	{name: "kill of the keeper", ends: true, do: func(x *chaos, v *testenv.Machine) error {
		return x.end(v, func() error { return v.KillDaemon("keeper") }, v.Restart)
	}},
	{name: "power off", ends: true, do: func(x *chaos, v *testenv.Machine) error {
		return x.end(v, v.PowerOff, v.Restart)
	}},
	{name: "pause", ends: true, do: func(x *chaos, v *testenv.Machine) error {
		return x.end(v, v.Pause, v.Resume)
	}},
	{name: "cut", ends: true, do: func(x *chaos, v *testenv.Machine) error {
		return x.end(v, func() error { x.c.Partition(v); return nil }, x.heal)
	}},
	{name: "cut one way", ends: true, do: func(x *chaos, v *testenv.Machine) error {
		return x.end(v, func() error {
			for _, o := range x.c.Machines() {
				x.c.Cut(v, o)
			}
			return nil
		}, x.heal)
	}},
	{name: "short pause", ends: false, do: func(x *chaos, v *testenv.Machine) error {
		return x.hold(v.Pause, v.Resume, x.upTo(slowMost))
	}},
	{name: "short cut", ends: false, do: func(x *chaos, v *testenv.Machine) error {
		return x.hold(func() error { x.c.Partition(v); return nil }, x.heal, x.upTo(slowMost))
	}},
	{name: "delay", ends: false, do: func(x *chaos, v *testenv.Machine) error {
		d := x.upTo(slowMost)
		return x.hold(func() error {
			x.others(v, func(o *testenv.Machine) { x.c.Delay(v, o, d) })
			return nil
		}, x.heal, x.upTo(3*time.Second))
	}},
	{name: "loss", ends: false, do: func(x *chaos, v *testenv.Machine) error {
		share := 0.05 * x.random.Float64()
		return x.hold(func() error { x.c.Lose(v, x.watcher, share); return nil }, x.heal, x.upTo(3*time.Second))
	}},
	{name: "throttle", ends: false, do: func(x *chaos, v *testenv.Machine) error {
		return x.hold(func() error {
			x.others(v, func(o *testenv.Machine) { x.c.Throttle(v, o, 256<<10) })
			return nil
		}, x.heal, x.upTo(3*time.Second))
	}},
	{name: "cut of a pair", ends: false, do: func(x *chaos, _ *testenv.Machine) error {
		v, o := x.c.Machine(x.c.Size()-2), x.c.Machine(x.c.Size()-1) // no control machines: those still hear both
		return x.hold(func() error {
			if x.random.IntN(2) == 0 {
				x.c.Cut(v, o)
			} else {
				x.c.CutBoth(v, o)
			}
			return nil
		}, x.heal, x.upTo(4*time.Second))
	}},
	{name: "full load", ends: false, do: func(x *chaos, v *testenv.Machine) error { return x.burn() }},
}

// chaos is one run. Its own goroutine alone uses it; the load has others.
type chaos struct {
	t       *testing.T
	ctx     context.Context
	c       *testenv.Cluster
	o       testenv.ClusterOptions
	acts    []act
	random  *rand.Rand
	load    *load
	lives   map[sigma.MachineID]sigma.Incarnation
	done    map[string]int
	took    []time.Duration  // from a fault until a waiter was answered
	worst   []time.Duration  // the longest of each fault
	most    time.Duration    // that it may take
	watcher *testenv.Machine // a control machine that no fault is upon
	stalls  *testenv.Stalls
}

// stalledMost is how long the host may have stood still meanwhile without that counting: what looks
// like more is as likely the system's doing.
const stalledMost = 500 * time.Millisecond

// Goal: "Done when 2" of the issue. No waiter is left unanswered, no proc starts twice, no machine
// that was only slow is given up, nothing leaks, and a loss is known to those who wait within 3 s.
func TestChaos(t *testing.T) { chaosOf(t, acts) }

// chaosOf does these things to a system under load.
func chaosOf(t *testing.T, acts []act) {
	seed := setting(t, "SIGMA_CHAOS_SEED", rand.Uint64(), func(s string) (uint64, error) {
		return strconv.ParseUint(s, 10, 64)
	})
	most := setting(t, "SIGMA_CHAOS_TIME", chaosTime, time.ParseDuration)
	control := setting(t, "SIGMA_CHAOS_CONTROL", 1, strconv.Atoi)
	lossMost := setting(t, "SIGMA_CHAOS_LOSS", lossMost, time.ParseDuration)
	t.Logf("to repeat: SIGMA_CHAOS_TIME=%v SIGMA_CHAOS_CONTROL=%d SIGMA_CHAOS_SEED=%d", most, control, seed)
	ctx, cancel := context.WithTimeout(t.Context(), most+5*time.Minute*testenv.Slow())
	defer cancel()
	x := &chaos{t: t, ctx: ctx, acts: acts, random: rand.New(rand.NewPCG(seed, 0)), done: map[string]int{},
		lives: map[sigma.MachineID]sigma.Incarnation{}, most: lossMost * testenv.Slow(),
		o: testenv.ClusterOptions{Machines: chaosMachines, Control: control, Seed: seed, CPU: 1, Memory: 2 * sigma.GiB}}
	x.c = testenv.NewCluster(t, x.o)
	x.stalls = testenv.WatchStalls(t)
	x.watcher = x.c.Machine(0)
	first, err := x.watcher.Client(ctx, sigma.DefaultRealm)
	must(t, err)
	defer first.Close()
	for _, dir := range []string{"/started", "/written"} {
		must(t, first.MkdirAll(ctx, dir, 0o755))
	}
	x.load = newLoad(ctx, t, x.c, x.watcher.Install(ctx, t, first, testenv.BuildGo(t, t.TempDir(), "testdata/load")))
	must(t, x.learn())
	x.under(seed, func() error { pause(ctx, warmTime); return nil }) // so that all sessions that are kept are there
	before := make([]testenv.Census, x.c.Size())
	for i, m := range x.c.Machines() {
		before[i] = settled(m.Census())
	}
	err = x.under(seed+1, func() error { return x.run(most) })
	x.load.checkNames(x.watcher)
	x.load.checkStarts()
	x.report(err)
	cancel()
	for i, m := range x.c.Machines() {
		if control > 1 { // who leads has more sessions than it had
			for _, name := range []string{"sigmad", "named", "besched", "lcsched", "s3d"} {
				before[i]["sockets open in "+name] += socketsMore
			}
		}
		testenv.Eventually(t, "nothing is left over at "+string(m.Name), func() error {
			if more := settled(m.Census()).Beyond(before[i]); len(more) > 0 {
				return fmt.Errorf("%q", more)
			}
			return nil
		})
	}
}

var startNumber = regexp.MustCompile(`(system/[a-z0-9]+)/[0-9]+`)

// settled is a census in which a service that was started again, in another order, is the same.
func settled(c testenv.Census) testenv.Census {
	out := testenv.Census{}
	for what, n := range c {
		out[startNumber.ReplaceAllString(what, "$1/N")] += n
	}
	return out
}

// under does something under load.
func (x *chaos) under(seed uint64, do func() error) error {
	ctx, stop := context.WithCancel(x.ctx)
	defer stop()
	for _, m := range x.c.Machines() {
		x.load.workers.Go(func() { x.load.work(ctx, m, seed) })
	}
	err := do()
	stop()
	x.load.workers.Wait()
	x.load.finish(x.watcher, answersMost*testenv.Slow())
	x.load.close()
	return err
}

func setting[T any](t *testing.T, name string, or T, parse func(string) (T, error)) T {
	text := os.Getenv(name)
	if text == "" {
		return or
	}
	v, err := parse(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// run does one thing after another, each kind once before any comes again.
func (x *chaos) run(most time.Duration) error {
	var order []act
	for end := time.Now().Add(most); time.Now().Before(end); {
		if len(order) == 0 {
			order = slices.DeleteFunc(slices.Clone(x.acts), func(a act) bool {
				return os.Getenv("SIGMA_CHAOS_ONLY") != "" && os.Getenv("SIGMA_CHAOS_ONLY") != a.name
			})
			x.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		a := order[0]
		order = order[1:]
		from := 0
		if x.o.Control < 3 { // the others cannot do without
			from = x.o.Control
		}
		v := x.c.Machine(from + x.random.IntN(x.c.Size()-from))
		if a.control {
			v = x.c.Machine(0)
		}
		if os.Getenv("SIGMA_CHAOS_VICTIM") == "leader" {
			v = x.leader()
		}
		x.watcher = x.c.Machine(0)
		if x.watcher == v {
			x.watcher = x.c.Machine(1)
		}
		x.c.Note("-- %s: %s", a.name, v.Name)
		x.load.settle(x.ctx)
		err := a.do(x, v)
		if err == nil {
			err = x.alarms(a, v)
		}
		if err != nil {
			return fmt.Errorf("%s of %s: %w", a.name, v.Name, err)
		}
		x.done[a.name]++
		if x.load.failed() {
			return fmt.Errorf("after %s of %s", a.name, v.Name)
		}
	}
	return nil
}

// leader is the control machine whose named began to lead last, as the logs tell.
func (x *chaos) leader() *testenv.Machine {
	of, last := x.c.Machine(0), ""
	for _, m := range x.c.Machines() {
		for line := range strings.Lines(m.LogTail(1000)) {
			if at, _, _ := strings.Cut(line, " "); strings.Contains(line, "this machine's named leads") && at > last {
				of, last = m, at
			}
		}
	}
	return of
}

// upTo draws a time.
func (x *chaos) upTo(most time.Duration) time.Duration {
	return most/4 + time.Duration(x.random.Int64N(int64(most)*3/4))
}

func (x *chaos) others(v *testenv.Machine, f func(*testenv.Machine)) {
	for _, o := range x.c.Machines() {
		if o != v {
			f(o)
		}
	}
}

func (x *chaos) heal() error { x.c.Heal(); return nil }

// hold does something that must end no life, and undoes it after a while.
func (x *chaos) hold(do, undo func() error, d time.Duration) error {
	if err := do(); err != nil {
		return err
	}
	pause(x.ctx, d)
	return undo()
}

// burn has the procs of all machines use all processors.
func (x *chaos) burn() error {
	for _, m := range x.c.Machines() {
		client, err := m.Client(x.ctx, sigma.DefaultRealm)
		if err != nil {
			return err
		}
		defer client.Close()
		d := sigma.Descriptor{Program: x.load.program, Args: []string{"spin", "3000"}, Memory: procMemory}
		ids, err := client.Spawn(x.ctx, d, d)
		if err != nil {
			return err
		}
		for _, id := range ids {
			defer func() {
				if st, err := client.WaitExit(x.ctx, id); err != nil || !st.OK() {
					x.load.fault("a proc that computes ended as %+v, %v", st, err)
				}
			}()
		}
	}
	return nil
}

// end ends the life of a machine, waits until those who wait elsewhere for procs that ran there are
// answered, and has it return.
func (x *chaos) end(v *testenv.Machine, do, undo func() error) error {
	ws, err := x.load.waitersFor(x.ctx, x.watcher, v)
	if err != nil {
		return err
	}
	x.load.disturb(v)
	at := time.Now()
	if err := do(); err != nil {
		return err
	}
	worst := time.Duration(0)
	defer func() {
		if worst > 0 {
			x.worst = append(x.worst, worst)
		}
	}()
	for _, w := range ws {
		select {
		case <-w.done:
			d := w.when.Sub(at)
			worst = max(worst, d)
			x.took = append(x.took, d)
			stalled := x.stalls.Between(at, w.when)
			x.c.Note("waiter at %s for %s was answered after %v, of which the host stood still %v: %v %s %v", w.at.Name,
				w.id, d, stalled, w.status.Code, w.status.Msg, w.err)
			if d-min(stalled, stalledMost) > x.most {
				x.load.fault(
					"the waiter at %s for %s at %s was answered %v after the fault, of which the host stood still %v",
					w.at.Name, w.id, v.Name, d, stalled)
			}
		case <-time.After(answersMost * testenv.Slow()):
			return fmt.Errorf("the waiter at %s for %s, which was at %s, is not answered", w.at.Name, w.id, v.Name)
		}
	}
	if err := x.await("it is lost", func() error {
		now, err := x.watcher.Members(x.ctx)
		if m := now[v.Name]; err == nil && m.State != sigma.MachineLost {
			err = fmt.Errorf("it is %+v", m)
		}
		return err
	}); err != nil {
		return err
	}
	pause(x.ctx, x.upTo(time.Second))
	if err := undo(); err != nil {
		return err
	}
	if err := x.back(v); err != nil {
		return err
	}
	x.load.calm(v)
	return nil
}

// back waits until a machine is a member in a new life and does what it is asked.
func (x *chaos) back(v *testenv.Machine) error {
	at := time.Now()
	err := x.await("it is back", func() error {
		now, err := x.watcher.Members(x.ctx)
		if err != nil {
			return err
		}
		if m := now[v.Name]; m.State != sigma.MachineAlive || m.Incarnation <= x.lives[v.Name] {
			return fmt.Errorf("it is %+v, and was in life %d", m, x.lives[v.Name])
		}
		return x.runs(v)
	})
	x.c.Note("%s is back after %v", v.Name, time.Since(at))
	if err != nil {
		return err
	}
	now, err := x.watcher.Members(x.ctx)
	x.lives[v.Name] = now[v.Name].Incarnation
	return err
}

// runs has a proc run by way of a machine.
func (x *chaos) runs(v *testenv.Machine) error {
	client, err := v.Client(x.ctx, sigma.DefaultRealm)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(x.ctx, callMax)
	defer cancel()
	ids, err := client.Spawn(ctx, sigma.Descriptor{Program: x.load.program, Args: []string{"exit", "7"},
		Memory: procMemory})
	if err != nil {
		return err
	}
	if st, err := client.WaitExit(ctx, ids[0]); err != nil || st.ExitCode != 7 {
		return fmt.Errorf("a proc ended as %+v, %w", st, err)
	}
	return nil
}

func (x *chaos) await(what string, check func() error) error {
	for end := time.Now().Add(backMost * testenv.Slow()); ; pause(x.ctx, 20*time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(end) || x.ctx.Err() != nil {
			return fmt.Errorf("not so: %s: %w", what, err)
		}
	}
}

// learn notes in which life each machine is.
func (x *chaos) learn() error {
	now, err := x.watcher.Members(x.ctx)
	for name, m := range now {
		x.lives[name] = m.Incarnation
		if m.State != sigma.MachineAlive {
			err = fmt.Errorf("%+v", m)
		}
	}
	if len(now) != x.c.Size() && err == nil {
		err = fmt.Errorf("%d members", len(now))
	}
	return err
}

// alarms counts machines that have been given up though they were only slow.
func (x *chaos) alarms(a act, v *testenv.Machine) error {
	now, err := x.watcher.Members(x.ctx)
	for name, life := range x.lives {
		if m := now[name]; err == nil && (m.Incarnation != life || m.State == sigma.MachineLost) {
			x.load.fault("false alarm: %s of %s: %s was in life %d and is %+v", a.name, v.Name, name, life, m)
		}
	}
	return err
}

// report says what was done and what must not be.
func (x *chaos) report(err error) {
	x.t.Logf("did %v", x.done)
	x.t.Logf("the load: %v", x.load.count)
	if all := slices.Sorted(slices.Values(x.took)); len(all) > 0 {
		x.t.Logf("fault to answer, %d waiters: least %v, median %v, most %v", len(all), all[0], all[len(all)/2],
			all[len(all)-1])
		slices.Sort(x.worst)
		x.t.Logf("the last answer after each of %d faults: %v", len(x.worst), x.worst)
	}
	wrong := x.load.wrong
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	if len(wrong) > 0 {
		x.t.Errorf("%d things are wrong:\n%s", len(wrong), strings.Join(wrong[:min(len(wrong), 30)], "\n"))
	}
}

// waitersFor finds those who wait elsewhere for procs that run at a machine and stay. One that was
// not started yet outlives a launcher that dies: the next one starts it.
func (x *load) waitersFor(ctx context.Context, from, v *testenv.Machine) (out []*waiter, err error) {
	client, err := from.Client(ctx, sigma.DefaultRealm)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	list, err := client.List(ctx, false)
	if err != nil {
		return nil, err
	}
	at := map[sigma.ProcID]sigma.MachineID{}
	for _, p := range list {
		if p.State == sigma.ProcRunning {
			at[p.ID] = p.Machine
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for w := range maps.Keys(x.waiting) {
		if w.stays && w.at != v && at[w.id] == v.Name {
			out = append(out, w)
		}
	}
	return out, nil
}

//go:build system

package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// The run of faults upon files: while writers publish files in ux of all machines, in s3 and among
// the names, stores and machines are killed, links cut, disks filled, at random. SIGMA_FILES_TIME
// says for how long (15 s; 5m is what is promised), SIGMA_FILES_SEED repeats the order of an
// earlier run, SIGMA_FILES_ONLY names the only fault to use.
const (
	filesTime     = 15 * time.Second
	filesMachines = 3
	diskSize      = 448 * sigma.MiB
	faultMost     = 3 * time.Second
	filesQuiet    = 300 * time.Millisecond // between two faults
)

// fileFaults is one run. The test's goroutine alone uses it.
type fileFaults struct {
	t      *testing.T
	ctx    context.Context
	c      *testenv.Cluster
	random *rand.Rand
	done   map[string]int
}

// fileFault is a kind of fault; do returns when it is over.
type fileFault struct {
	name string
	// the machines that it may be upon: the first has named and the objects, and without it the
	// others have no membership
	at []int
	do func(x *fileFaults, v *testenv.Machine) error
}

var first, others, all = []int{0}, []int{1, 2}, []int{0, 1, 2}

func daemonFault(name string, at []int) fileFault {
	return fileFault{"kill " + name, at, func(x *fileFaults, v *testenv.Machine) error { return v.KillDaemon(name) }}
}

var fileFaultKinds = []fileFault{
	{"kill", others, func(x *fileFaults, v *testenv.Machine) error { return x.hold(v.Kill, v.Restart) }},
	{"power off", others, func(x *fileFaults, v *testenv.Machine) error { return x.hold(v.PowerOff, v.Restart) }},
	{"pause", others, func(x *fileFaults, v *testenv.Machine) error { return x.hold(v.Pause, v.Resume) }},
	{"cut", others, func(x *fileFaults, v *testenv.Machine) error {
		return x.hold(func() error { x.c.Partition(v); return nil }, x.heal)
	}},
	{"cut of a pair", all, func(x *fileFaults, v *testenv.Machine) error {
		return x.hold(func() error { x.c.CutBoth(v, x.other(v)); return nil }, x.heal)
	}},
	{"loss", all, func(x *fileFaults, v *testenv.Machine) error {
		return x.hold(func() error { x.c.Lose(v, x.other(v), 0.1*x.random.Float64()); return nil }, x.heal)
	}},
	{"disk full", all, func(x *fileFaults, v *testenv.Machine) error {
		return x.hold(func() error { return v.FillDisk(x.random.Uint64N(64 << 10)) }, v.FreeDisk)
	}},
	{"limit", others, func(x *fileFaults, v *testenv.Machine) error {
		set := func(n string) func() error {
			return func() error {
				_, stderr, code := x.c.Machine(0).CLI(x.t, "realm", "set", "--limit-scratch", n,
					string(sigma.DefaultRealm))
				if code != 0 {
					return fmt.Errorf("sigma realm set: %s", stderr)
				}
				return nil
			}
		}
		return x.hold(set("64K"), set("default"))
	}},
	daemonFault("named", first), daemonFault("s3d", first), daemonFault("sigmad", all), daemonFault("launcher", all),
}

func (x *fileFaults) other(v *testenv.Machine) *testenv.Machine {
	return x.c.Machine((v.Index() + 1 + x.random.IntN(x.c.Size()-1)) % x.c.Size())
}

func (x *fileFaults) heal() error { x.c.Heal(); return nil }

func (x *fileFaults) hold(do, undo func() error) error {
	if err := do(); err != nil {
		return err
	}
	pause(x.ctx, faultMost/10+time.Duration(x.random.Int64N(int64(faultMost*9/10))))
	return undo()
}

// whole waits until all machines serve files of each other again.
func (x *fileFaults) whole(paths []string) error {
	var err error
	for end := time.Now().Add(backMost * testenv.Slow()); time.Now().Before(end) && x.ctx.Err() == nil; pause(x.ctx,
		retryPace) {
		err = nil
		for _, m := range x.c.Machines() {
			if err = x.serves(m, paths); err != nil {
				err = fmt.Errorf("at %s: %w", m.Name, err)
				break
			}
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("the files are not served again: %w", err)
}

func (x *fileFaults) serves(m *testenv.Machine, paths []string) error {
	ctx, cancel := context.WithTimeout(x.ctx, callMax)
	defer cancel()
	client, err := m.Client(ctx, sigma.DefaultRealm)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, path := range paths {
		if _, err := client.Put(ctx, path+"/served", []byte("x"), sigma.PutOptions{}); err != nil {
			return err
		}
		if err := client.Remove(ctx, path+"/served"); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return nil
}

// Goal: "Done when 3" of Files. Whatever happens to stores, machines, links and disks, no file that
// was acknowledged is lost, none that was removed comes back, none is seen by half, not even for a
// moment, nothing is left of those that were not published, and each error says which file it is
// about and what is wrong. Method: each file's bytes tell which write they are; writers keep a
// ledger of what they were told, which is compared with what there is meanwhile and afterwards.
func TestFileFaults(t *testing.T) {
	t.Parallel()
	seed := setting(t, "SIGMA_FILES_SEED", rand.Uint64(), func(s string) (uint64, error) {
		return strconv.ParseUint(s, 10, 64)
	})
	most := setting(t, "SIGMA_FILES_TIME", filesTime, time.ParseDuration)
	t.Logf("to repeat: SIGMA_FILES_TIME=%v SIGMA_FILES_SEED=%d", most, seed)
	ctx, cancel := context.WithTimeout(t.Context(), most+3*time.Minute*testenv.Slow())
	defer cancel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: filesMachines, Seed: seed, Disk: diskSize, CPU: 1,
		Memory: 2 * sigma.GiB})
	x := &fileFaults{t: t, ctx: ctx, c: c, random: rand.New(rand.NewPCG(seed, 0)), done: map[string]int{}}
	l := &ledger{c: c, large: 700 << 10, files: map[string]*entry{}, count: map[string]int{},
		places: []string{"/s3/ledger", "/ledger"}}
	for _, m := range c.Machines() {
		l.places = append(l.places, "/ux/"+string(m.Name)+"/ledger")
	}
	client, err := c.Machine(0).Client(ctx, sigma.DefaultRealm)
	must(t, err)
	for _, dir := range l.places {
		must(t, client.MkdirAll(ctx, dir, 0o755))
	}
	client.Close()
	work, stop := context.WithCancel(ctx)
	defer stop()
	var workers sync.WaitGroup
	for i, m := range c.Machines() {
		workers.Go(func() { l.writer(work, m, 2*i, seed) })
		workers.Go(func() { l.writer(work, m, 2*i+1, seed) })
		workers.Go(func() { l.reader(work, m, seed) })
	}
	err = x.run(most, l)
	stop()
	workers.Wait()
	if err == nil {
		err = x.whole(l.places)
	}
	for _, m := range c.Machines() {
		if err == nil {
			err = l.audit(ctx, m)
		}
	}
	t.Logf("did %v", x.done)
	t.Logf("the ledger has %d files: %v", len(l.files), l.count)
	if err != nil {
		t.Error(err)
	}
	if err := l.verdict(); err != nil {
		t.Error(err)
	} else if !t.Failed() {
		x.control(l)
	}
}

// control shows that the audit would have found a file that is lost, one that is there by half, one
// that is old, and one that nobody wrote.
func (x *fileFaults) control(l *ledger) {
	client, err := x.c.Machine(1).Client(x.ctx, sigma.DefaultRealm)
	must(x.t, err)
	defer client.Close()
	var sure []string
	for file, e := range l.files {
		if e.acked > 0 && !e.removed && !e.over && len(l.bytesOf(file, e.acked)) > 100 {
			sure = append(sure, file)
		}
	}
	if len(sure) < 3 {
		x.t.Fatalf("only %d files are certain", len(sure))
	}
	put := func(file string, b []byte) {
		_, err := client.Put(x.ctx, file, b, sigma.PutOptions{})
		must(x.t, err)
	}
	must(x.t, client.Remove(x.ctx, sure[0]))
	put(sure[1], l.bytesOf(sure[1], l.files[sure[1]].acked)[:50])
	put(sure[2], l.bytesOf(sure[2], 1<<30))
	put(l.places[0]+"/stray", []byte("stray"))
	must(x.t, l.audit(x.ctx, x.c.Machine(2)))
	if len(l.wrong) != 4 {
		x.t.Errorf("of four things that are wrong the audit found %d: %q", len(l.wrong), l.wrong)
	}
}

// run does one fault after another, each kind once before any comes again.
func (x *fileFaults) run(most time.Duration, l *ledger) error {
	var order []fileFault
	for end := time.Now().Add(most); time.Now().Before(end) && x.ctx.Err() == nil; pause(x.ctx, filesQuiet) {
		if len(order) == 0 {
			for _, i := range x.random.Perm(len(fileFaultKinds)) {
				if f := fileFaultKinds[i]; os.Getenv("SIGMA_FILES_ONLY") == "" ||
					os.Getenv("SIGMA_FILES_ONLY") == f.name {
					order = append(order, f)
				}
			}
		}
		f := order[0]
		order = order[1:]
		v := x.c.Machine(f.at[x.random.IntN(len(f.at))])
		x.c.Note("-- %s: %s", f.name, v.Name)
		if err := f.do(x, v); err != nil {
			return fmt.Errorf("%s of %s: %w", f.name, v.Name, err)
		}
		if err := x.whole(l.places); err != nil {
			return fmt.Errorf("after %s of %s: %w", f.name, v.Name, err)
		}
		x.done[f.name]++
		if err := l.verdict(); err != nil {
			return fmt.Errorf("after %s of %s", f.name, v.Name)
		}
	}
	return nil
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
)

// recoverBench: how long does it take until those who wait hear of a failure? Three machines, one
// of them a control machine. A machine that runs procs for others is killed (kill -9 of all its
// processes), cut off or paused, or its keeper is, and returns; the time is from that moment until
// each waiter elsewhere is answered. Then each daemon of the control machine is killed, while some
// clients that connected before ask for what needs it, one request after the other; the time is the
// longest that each of them is without a good answer. No peer: what others do in such a case
// depends on how they are set up. Expected: below 0.1 s where the kernel tells of the end of
// connections and the system believes it, 1.5 to 1.75 s (machines.DefaultTiming) where only silence
// tells.
func recoverBench() Bench {
	metrics := []string{}
	for _, f := range machineFaults {
		metrics = append(metrics, f.metric)
	}
	for _, d := range daemons() {
		metrics = append(metrics, d+"_killed_ms")
	}
	return Bench{Name: "recover", Question: "how long until those who wait hear of a failure?", Metrics: metrics,
		run: runRecover}
}

const recoverMemory = 32 * sigma.MiB

var machineFaults = [...]struct {
	metric   string
	do, undo func(c *testenv.Cluster, v *testenv.Machine) error
}{
	{"machine_killed_ms", func(_ *testenv.Cluster, v *testenv.Machine) error {
		return v.Kill()
	}, func(_ *testenv.Cluster, v *testenv.Machine) error { return v.Restart() }},
	{"machine_cut_ms", func(c *testenv.Cluster, v *testenv.Machine) error {
		c.Partition(v)
		return nil
	}, func(c *testenv.Cluster, _ *testenv.Machine) error { c.Heal(); return nil }},
	{"machine_paused_ms", func(_ *testenv.Cluster, v *testenv.Machine) error {
		return v.Pause()
	}, func(_ *testenv.Cluster, v *testenv.Machine) error { return v.Resume() }},
	{"keeper_killed_ms", func(_ *testenv.Cluster, v *testenv.Machine) error {
		return v.KillDaemon("keeper")
	}, func(_ *testenv.Cluster, v *testenv.Machine) error { return v.Restart() }},
}

// daemons are what is killed of a machine, one at a time.
func daemons() []string { return append(hostsetup.BootSet(), "launcher") }

// recovery is one run of the bench.
type recovery struct {
	r       *Run
	c       *testenv.Cluster
	program string // that sleeps
	serial  atomic.Int64
}

func runRecover(ctx context.Context, r *Run) (err error) {
	rounds := 10
	if r.Quick {
		rounds = 2
	}
	a := &recovery{r: r}
	r.note("starting 3 machines")
	if a.c, err = testenv.StartCluster(testenv.ClusterOptions{Machines: 3, Bin: r.Bin}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.c.Close()) }()
	if err := a.install(ctx); err != nil {
		return err
	}
	for _, f := range machineFaults {
		for range rounds {
			if err := a.lose(ctx, f.metric, f.do, f.undo); err != nil {
				return fmt.Errorf("%s: %w", f.metric, err)
			}
		}
		if err := a.print(f.metric); err != nil {
			return err
		}
	}
	for _, d := range daemons() {
		metric := d + "_killed_ms"
		for range rounds {
			if err := a.crash(ctx, metric, d); err != nil {
				return fmt.Errorf("%s: %w", metric, err)
			}
		}
		if err := a.print(metric); err != nil {
			return err
		}
	}
	return nil
}

func (a *recovery) print(metric string) error {
	all := a.r.samples["ours "+metric]
	return a.r.print(Line{Metric: metric, Unit: "ms", Ours: median(all), N: len(all)})
}

// install stores the program of the procs.
func (a *recovery) install(ctx context.Context) error {
	local, err := a.r.buildStart(ctx)
	if err != nil {
		return err
	}
	c, err := a.c.Machine(0).Client(ctx, sigma.DefaultRealm)
	if err != nil {
		return err
	}
	defer c.Close()
	s := &system{r: a.r, Client: c}
	if a.program, err = s.install(ctx, local, "start"); err != nil {
		return err
	}
	if err := c.MkdirAll(ctx, "/s3/recovered", 0o755); err != nil { // a bucket
		return err
	}
	return c.Mkdir(ctx, "/db/recovered", 0o755) // a database
}

// retry repeats what fails while the system recovers.
func retry(ctx context.Context, do func(context.Context) error) error {
	for {
		call, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := do(call)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// lose ends the life of the last machine and measures when those who wait at the first for procs
// there are answered; then it has the machine return.
func (a *recovery) lose(ctx context.Context, metric string, do,
	undo func(*testenv.Cluster, *testenv.Machine) error) error {
	v := a.c.Machine(a.c.Size() - 1)
	client, err := a.c.Machine(0).Client(ctx, sigma.DefaultRealm)
	if err != nil {
		return err
	}
	defer client.Close()
	before, err := a.c.Machine(0).Members(ctx)
	if err != nil {
		return err
	}
	all, there, err := a.spread(ctx, client, v)
	defer func() {
		for _, id := range all {
			client.Kill(ctx, id)
		}
	}()
	if err != nil {
		return err
	}
	answers := make(chan error, len(there))
	at := time.Now()
	for _, id := range there {
		go func() {
			_, err := client.WaitExit(ctx, id)
			a.c.Note("%s answered after %v", id, time.Since(at))
			answers <- err
		}()
	}
	at = time.Now()
	if err := do(a.c, v); err != nil {
		return err
	}
	for range there {
		if err := <-answers; err != nil {
			return err
		}
		a.r.sample("ours", metric, time.Since(at).Seconds()*1e3)
	}
	if err := undo(a.c, v); err != nil {
		return err
	}
	return retry(ctx, func(ctx context.Context) error {
		now, err := a.c.Machine(0).Members(ctx)
		if m := now[v.Name]; err == nil && (m.State != sigma.MachineAlive ||
			m.Incarnation == before[v.Name].Incarnation) {
			err = fmt.Errorf("it is %+v", m)
		}
		return err
	})
}

// spread spawns procs that sleep, by way of client, until some run at v. They say that they should
// be near it: else machines that have their program already are preferred.
func (a *recovery) spread(ctx context.Context, client *sdk.Client, v *testenv.Machine) (all, there []sigma.ProcID,
	err error) {
	for range 30 {
		ds := make([]sigma.Descriptor, 6)
		for i := range ds {
			ds[i] = sigma.Descriptor{Program: a.program, Args: []string{"sleep"}, Memory: recoverMemory, Near: v.Name}
		}
		ids, err := client.Spawn(ctx, ds...)
		all = append(all, ids...)
		for _, id := range ids {
			if err == nil {
				err = client.WaitStart(ctx, id)
			}
		}
		if err != nil {
			return all, nil, err
		}
		list, err := client.List(ctx, false)
		if err != nil {
			return all, nil, err
		}
		for _, p := range list {
			if p.Machine == v.Name && p.State == sigma.ProcRunning {
				there = append(there, p.ID)
			}
		}
		if len(there) > 0 {
			return all, there, nil
		}
		for _, id := range ids { // it may have returned just now
			client.Kill(ctx, id)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return all, nil, fmt.Errorf("no proc went to %s", v.Name)
}

// waiters ask at the same time what needs the daemon that is killed, for at least so long
// afterwards.
const (
	waiters   = 4
	crashTime = 1500 * time.Millisecond
)

// crash kills a daemon of the control machine while clients ask for what needs it, and measures for
// how long each has no good answer at most.
func (a *recovery) crash(ctx context.Context, metric, daemon string) error {
	m := a.c.Machine(0)
	all, ctx := newGroup(ctx)
	gaps := make([]time.Duration, waiters)
	var killed atomic.Int64 // ns from begin, or 0
	begin := time.Now()
	var ready sync.WaitGroup
	for i := range gaps {
		client, err := m.Client(ctx, sigma.DefaultRealm)
		if err != nil {
			return err
		}
		defer client.Close()
		ask := a.asks(m, client, daemon)
		if err := retry(ctx, ask); err != nil {
			return err
		}
		ready.Add(1)
		all.Go(func() error {
			last := time.Now()
			for n := 0; ; n++ {
				if err := retry(ctx, ask); err != nil {
					return err
				}
				if n == 0 {
					ready.Done()
				}
				now, at := time.Now(), time.Duration(killed.Load())
				if at > 0 {
					gaps[i] = max(gaps[i], now.Sub(last))
				}
				if last = now; at > 0 && now.Sub(begin) > at+crashTime {
					return nil
				}
			}
		})
	}
	ready.Wait()
	killed.Store(int64(time.Since(begin)))
	if daemon == "dbd" {
		daemon += "/" + string(sigma.DefaultRealm)
	}
	if err := m.KillDaemon(daemon); err != nil {
		return err
	}
	if err := all.wait(ctx); err != nil {
		return err
	}
	for _, d := range gaps {
		a.r.sample("ours", metric, d.Seconds()*1e3)
	}
	return nil
}

// asks gives a request that a daemon must be there for.
func (a *recovery) asks(m *testenv.Machine, client *sdk.Client, daemon string) func(ctx context.Context) error {
	name := fmt.Sprint("recovered-", a.serial.Add(1))
	put := func(ctx context.Context, path string) error {
		_, err := client.Put(ctx, path, nil, sigma.PutOptions{})
		return err
	}
	switch daemon {
	case "named":
		return func(ctx context.Context) error { return put(ctx, "/"+name) }
	case "s3d":
		return func(ctx context.Context) error { return put(ctx, "/s3/recovered/"+name) }
	case "machined":
		return func(ctx context.Context) error { _, err := m.Members(ctx); return err }
	case "dbd":
		db := database.Open(client, "/db/recovered")
		return func(ctx context.Context) error {
			_, err := db.ExecContext(ctx, "create table if not exists t (x)")
			return err
		}
	}
	d := sigma.Descriptor{Program: a.program, Memory: recoverMemory}
	if daemon == "lcsched" {
		d.Class, d.CPU = sigma.LatencyCritical, 100
	}
	return func(ctx context.Context) error {
		ids, err := client.Spawn(ctx, d)
		if err != nil {
			return err
		}
		st, err := client.WaitExit(ctx, ids[0])
		if err == nil && !st.OK() {
			err = fmt.Errorf("a proc ended as %+v", st)
		}
		return err
	}
}

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/members"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sigma"
)

// several tells whether up is about several machines, and which; nil if not.
func (a *app) several(dir string, o upOptions) (*datadir.Cluster, error) {
	have, err := datadir.ReadCluster(dir)
	switch {
	case err != nil:
		return nil, err
	case have != nil:
		if o.machines > 0 && o.machines != have.Machines || o.control > 0 && o.control != have.Control {
			return nil, datadir.Error(dir, sigma.KindExists,
				fmt.Sprintf("is that of %s, %d of them with a part of the control plane",
					cli.Count(have.Machines, "machine"), have.Control),
				"leave --machines and --control out, or choose another with --data DIR")
		}
	case o.machines == 0 && o.control != 0 && o.etcd.given():
		return nil, cli.UsageError(nil, "leave it out",
			"--control does not go with --etcd: it counts the members of sigmaOS's own etcd")
	case o.machines == 0 && o.control != 0:
		return nil, cli.UsageError(nil,
			"sigma up --machines 3 --control 3; a machine that joins says just: sigma join --control",
			"--control says how many of --machines hold the control plane")
	case o.machines == 0:
		return nil, nil
	}
	if o.etcd.given() {
		return nil, cli.UsageError(nil,
			"leave one of the two out; machines of their own share an etcd: sigma up --etcd on the first, then sigma join --control",
			"--etcd does not go with --machines: their networks lead to each other alone")
	}
	if o.machine != "" || o.address != "" {
		return nil, cli.UsageError(nil, "leave them out",
			"--machine and --address are for one machine: of several, names and addresses are given")
	}
	if have != nil {
		return have, nil
	}
	c := &datadir.Cluster{Machines: o.machines, Control: max(o.control, 1)}
	if bear, why := hostBears(runtime.NumCPU(), hostMemory()); o.machines < 1 || o.machines > bear {
		return nil, cli.UsageError(nil, "sigma up --machines "+strconv.Itoa(min(3, bear)),
			"--machines %d is not between 1 and %d, which is what this host can bear (%s)", o.machines, bear, why)
	}
	if o.control != 0 && (o.control > o.machines || o.control != 1 && o.control != 3 && o.control != 5) {
		return nil, cli.UsageError(nil, "an even number bears no more losses than the odd one below",
			"--control %d is not 1, 3 or 5, or more than there are machines", o.control)
	}
	if _, err := os.Lstat(filepath.Join(dir, datadir.InstanceName)); err == nil {
		return nil, datadir.Error(dir, sigma.KindExists, "is that of one machine", "choose another with --data DIR")
	}
	return c, nil
}

// hostBears says how many machines a host can be.
func hostBears(cores int, memory sigma.Bytes) (n int, why string) {
	n = max(datadir.MachinesPerCore*cores, datadir.MachinesOnOneCore)
	byMemory := int(min(memory/datadir.MachineMemory, datadir.MachinesMost))
	return max(1, min(n, byMemory, datadir.MachinesMost)),
		fmt.Sprintf("%d cores, %v of memory; at most %d machines for each core, and %v for each machine", cores, memory,
			datadir.MachinesPerCore, sigma.Bytes(datadir.MachineMemory))
}

// member is one machine that is started.
type member struct {
	name string
	dir  string
	plan bootPlan
	*booting
}

// upSeveral starts those machines of DATA that do not run.
func (a *app) upSeveral(ctx context.Context, dir string, c *datadir.Cluster, o upOptions,
	signals <-chan os.Signal) error {
	lock, err := c.Claim(ctx, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	began := time.Now()
	ms, err := planMembers(ctx, c, dir, o)
	if err != nil {
		return err
	}
	if len(ms) == 0 {
		return &sigma.Error{Op: "sigma.up", Kind: sigma.KindExists, Msg: fmt.Sprintf("all machines of %s are running",
			dir), Hint: "stop them with: " + datadir.CommandOn("down", dir)}
	}
	s := &starting{a: a, dir: dir}
	if term.Width(a.Err) > 0 && !a.JSON {
		s.bar = a.Progress("starting machines", int64(len(ms)))
	}
	defer s.close()
	stop := make(chan struct{})
	go s.fanOut(signals, stop)
	err = s.all(ctx, c, ms)
	close(stop)
	if s.bar != nil {
		s.bar.Done()
	}
	if err != nil {
		a.stopAll(ms)
		return err
	}
	lock.Close()
	is := fmt.Sprintf("sigmaOS is running as %s, m1 to m%d, on %s", cli.Count(c.Machines, "machine"), c.Machines, dir)
	if o.detach {
		fmt.Fprintf(a.Out, "%s (%.1f s)\n", is, time.Since(began).Seconds())
		fmt.Fprintln(a.Err, a.next(dir))
		return nil
	}
	fmt.Fprintf(a.Out, "%s; ^C stops them\n", is)
	return a.stayAll(ms, signals)
}

// planMembers says what is to be started.
func planMembers(ctx context.Context, c *datadir.Cluster, dir string, o upOptions) (ms []*member, err error) {
	first, err := c.FirstInstance(dir)
	if err != nil {
		return nil, err
	}
	for i := range c.Machines {
		home := datadir.MachineDir(dir, i+1)
		if _, held, err := datadir.Running(home); err != nil || held {
			if err != nil {
				return nil, err
			}
			continue
		}
		if err := datadir.Prepare(home); err != nil {
			return nil, err
		}
		path := filepath.Join(home, datadir.InstanceName)
		if _, err := os.Lstat(path); errors.Is(err,
			fs.ErrNotExist) { // their uids must differ, which the number modulo 1024 decides
			err = datadir.Write(path, fmt.Sprintf("%08x\n", first+uint32(i)), -1)
			if err != nil {
				return nil, err
			}
		}
		r, err := datadir.ReadRecord(home)
		if err != nil {
			return nil, err
		}
		if r == nil || r.Role != datadir.RoleFounder && !datadir.IsMember(home) {
			r = &datadir.Record{Role: datadir.RoleOrdinary, Local: true,
				CPU:    sigma.MilliCPU(runtime.NumCPU() * 1000 / c.Machines),
				Memory: hostMemory() / sigma.Bytes(c.Machines)}
			switch {
			case i == 0:
				r.Role = datadir.RoleFounder
			case i < c.Control:
				r.Role = datadir.RoleControl
			}
		}
		r.Machine, r.Address = sigma.MachineID(fmt.Sprint("m", i+1)), hostsetup.LocalAddress(i+1).String()
		if err := o.apply(ctx, r); err != nil {
			return nil, err
		}
		ms = append(ms, &member{name: string(r.Machine), dir: home, plan: bootPlan{record: *r, weaken: o.weaken}})
	}
	return ms, nil
}

// starting is several machines on their way.
type starting struct {
	a   *app
	dir string
	bar term.Progress // nil = a line for each machine
	hub *os.File

	mu          sync.Mutex
	interrupted []chan os.Signal // mu
	signal      os.Signal        // mu; that came
}

func (s *starting) close() {
	if s.hub != nil {
		s.hub.Close()
	}
}

// fanOut passes a signal on to all that wait.
func (s *starting) fanOut(signals <-chan os.Signal, stop <-chan struct{}) {
	select {
	case <-stop:
	case sig := <-signals:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.signal = sig
		for _, c := range s.interrupted {
			c <- sig
		}
	}
}

// signals gives a channel on which a signal comes, also one that came before.
func (s *starting) signals() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.signal != nil {
		c <- s.signal
	}
	s.interrupted = append(s.interrupted, c)
	return c
}

// all starts the machines: first the members of a system and, if there is none, its founder; then
// by a token those that have to join.
func (s *starting) all(ctx context.Context, c *datadir.Cluster, ms []*member) (err error) {
	if s.hub, err = hubOf(filepath.Join(s.dir, datadir.MachinesName)); err != nil {
		return err
	}
	var have, joiners []*member
	for _, m := range ms {
		if m.plan.record.Role == datadir.RoleFounder || datadir.IsMember(m.dir) {
			have = append(have, m)
		} else {
			joiners = append(joiners, m)
		}
	}
	if err := s.each(ctx, have); err != nil || len(joiners) == 0 {
		return err
	}
	admits, err := members.Open(ctx, s.a.App)
	if err != nil {
		return err
	}
	defer s.a.Drop(sigma.SystemRealm)
	token, err := admits.Token(ctx, len(joiners), 0)
	if err != nil {
		return err
	}
	r, err := datadir.ReadRecord(datadir.HomeOf(s.dir))
	if err != nil {
		return err
	}
	for _, m := range joiners {
		m.plan.join = &kernel.Join{Address: r.Address, Token: token, Control: m.plan.record.Role == datadir.RoleControl}
	}
	return s.each(ctx, joiners)
}

// each starts machines at the same time. After a failure no more are begun.
func (s *starting) each(ctx context.Context, ms []*member) error {
	var all sync.WaitGroup
	var failed atomic.Bool
	errs := make([]error, len(ms))
	for i, m := range ms {
		all.Go(func() {
			began := time.Now()
			if errs[i] = s.one(ctx, m); errs[i] != nil {
				failed.Store(true)
				return
			}
			if s.bar != nil {
				s.bar.Add(1)
			} else if !s.a.JSON {
				s.a.Remark("machine %s is up (%.1f s)", m.name, time.Since(began).Seconds())
			}
		})
	}
	all.Wait()
	for i, err := range errs { // one is enough to say; an interruption comes to all
		if err != nil {
			var code cli.ExitCode
			if errors.As(err, &code) {
				return err
			}
			var e *sigma.Error
			if errors.As(err, &e) {
				said := *e
				said.Msg = "machine " + ms[i].name + ": " + e.Msg
				return &said
			}
			return err
		}
	}
	return nil
}

// one starts a machine and waits until it is ready.
func (s *starting) one(ctx context.Context, m *member) error {
	at, err := netip.ParseAddrPort(m.plan.record.Address)
	if err != nil {
		return err
	}
	hub, err := syscall.Dup(int(s.hub.Fd()))
	if err != nil {
		return err
	}
	syscall.CloseOnExec(hub)
	if m.plan.network, err = hostsetup.NewNetwork(os.NewFile(uintptr(hub), "hub"), at.Addr()); err != nil {
		return err
	}
	defer m.plan.network.Close()
	b, err := s.a.boot(ctx, m.dir, m.plan)
	if err != nil {
		return err
	}
	if err := s.a.awaitReady(b, &m.plan.record, s.tell, s.signals()); err != nil {
		b.close()
		abandonJoin(m.dir)
		return err
	}
	m.booting = b
	return nil
}

// tell is remark beside the bar.
func (s *starting) tell(format string, args ...any) {
	if s.bar == nil {
		s.a.Remark(format, args...)
		return
	}
	s.bar.Beside(func() { s.a.Remark(format, args...) })
}

// stopAll takes down what was started.
func (a *app) stopAll(ms []*member) {
	var all sync.WaitGroup
	for _, m := range ms {
		if m.booting != nil {
			all.Go(func() { m.stop(stopTimeout); m.booting.close() })
		}
	}
	all.Wait()
}

// stayAll waits for a signal to stop the machines, or for the end of all.
func (a *app) stayAll(ms []*member, signals <-chan os.Signal) error {
	ended := make(chan struct{})
	go func() {
		var all sync.WaitGroup
		for _, m := range ms {
			all.Go(func() {
				<-m.exited
				m.unlocked()
			}) // else down would wait for us, who wait for those that it stops after this one
		}
		all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		for _, m := range ms {
			if !m.cmd.ProcessState.Success() {
				return &sigma.Error{Op: "sigma.up", Kind: sigma.KindLost,
					Msg:  fmt.Sprintf("machine %s ended unexpectedly (%v)", m.name, m.cmd.ProcessState),
					Hint: "see " + filepath.Join(m.dir, datadir.LogName) + "; start it again with: sigma up"}
			}
		}
		a.Remark("sigmaOS was stopped")
		return nil
	case <-signals:
	}
	a.Remark("stopping")
	a.stopAll(ms)
	return nil
}

// downSeveral stops all machines of DATA, those with a part of the control plane last, when the
// procs of all have gone.
func (a *app) downSeveral(ctx context.Context, dir string, c *datadir.Cluster, now bool) error {
	var control, others []*stopping
	for i, m := range c.Dirs(dir) {
		pid, held, err := datadir.Running(m)
		if err != nil {
			return err
		}
		switch {
		case !held:
			freeCgroups(ctx, m)
		case i < c.Control:
			control = append(control, &stopping{dir: m, pid: pid})
		default:
			others = append(others, &stopping{dir: m, pid: pid})
		}
	}
	all := append(slices.Clone(others), control...)
	if len(all) == 0 {
		return datadir.NotRunning(dir)
	}
	if err := a.seeOff(ctx, all, now); err != nil {
		return err
	}
	for _, ms := range [][]*stopping{others, control} {
		errs := make([]error, len(ms))
		onEach(ms, func(i int, m *stopping) { errs[i] = a.downOne(ctx, m, now) })
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 { // one is enough to say
			return errs[i]
		}
	}
	fmt.Fprintf(a.Out, "sigmaOS on %s is stopped (%s)\n", dir, cli.Count(len(all), "machine"))
	return nil
}

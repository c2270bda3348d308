package machines

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// Goal: of three control machines one is the judge; when its machine dies the others go on within
// three seconds, with one judge and all that was saved; the old one, back, is no judge.
func TestDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority, err := identity.NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		ns, names := space(t), []sigma.MachineID{"m1", "m2", "m3"}
		daemons, clients, stops := map[sigma.MachineID]*Daemon{}, map[sigma.MachineID]*Client{},
			map[sigma.MachineID]func(){}
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		start := func(name sigma.MachineID) {
			d, err := NewDaemon(DaemonConfig{Self: name, Namespace: ns, Path: "/machines",
				Authority: func(bool) (*identity.Authority, error) { return authority, nil }})
			if err != nil {
				t.Fatal(err)
			}
			root, err := d.Attach(ctx, sigma.Principal{System: true, Machine: name}, "")
			if err != nil {
				t.Fatal(err)
			}
			own, stop := context.WithCancel(ctx)
			daemons[name], clients[name], stops[name] = d, NewClient(root.(sigma.Caller)), stop
			all.Go(func() { d.Run(own) })
			synctest.Wait()
		}
		start("m1")
		judge := clients["m1"]
		lives := map[sigma.MachineID]sigma.Incarnation{}
		if _, err := clients["m1"].Found(ctx, identity.Enrolment{Machine: "m2", Address: "10.0.0.1:7700"},
			identity.NewKey()); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("another machine founds the system: %v", err)
		}
		first := identity.Enrolment{Machine: "m1", Address: "10.0.0.1:7700"}
		if _, err := judge.Found(ctx, first, identity.NewKey()); err != nil {
			t.Fatal(err)
		}
		if _, err := judge.Found(ctx, first, identity.NewKey()); sigma.KindOf(err) != sigma.KindExists {
			t.Errorf("it is founded again: %v", err)
		}
		for _, name := range names[1:] {
			enrolWith(t, judge, authority, name)
			if err := judge.Control(ctx, name, true); err != nil {
				t.Fatal(err)
			}
			start(name)
		}
		ms, err := judge.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			lives[m.ID] = m.Incarnation
		}
		// report has the machines that live report to all machineds that do.
		report := func(d time.Duration, alive ...sigma.MachineID) {
			for stop := time.Now().Add(d); time.Now().Before(stop); <-time.After(DefaultTiming().Interval) {
				for _, by := range alive {
					var es []Evidence
					for _, m := range alive {
						es = append(es, Evidence{m, lives[m], 0})
					}
					for _, to := range alive {
						root, _ := daemons[to].Attach(ctx, sigma.Principal{System: true, Machine: by}, "")
						NewClient(root.(sigma.Caller)).Report(ctx, es) // which fails while nobody is the judge
					}
				}
			}
		}
		report(5*time.Second, names...)
		if _, err := clients["m2"].Cordon(ctx, "m3", true); sigma.KindOf(err) != sigma.KindUnavailable ||
			!strings.Contains(err.Error(), "m1") {
			t.Errorf("an heir answers %v", err)
		}
		stops["m1"]()
		report(3*time.Second, "m2", "m3")
		judges := 0
		for _, name := range names[1:] {
			ms, err := clients[name].List(ctx)
			if err != nil {
				continue
			}
			judges++
			if len(ms) != 3 || ms[0].State != sigma.MachineLost || ms[1].State != sigma.MachineAlive ||
				ms[2].State != sigma.MachineAlive {
				t.Errorf("%s says %+v", name, ms)
			}
		}
		if judges != 1 {
			t.Errorf("there are %d judges", judges)
		}
		start("m1")
		report(time.Second, "m2", "m3")
		if _, err := clients["m1"].List(ctx); sigma.KindOf(err) != sigma.KindUnavailable {
			t.Errorf("the old judge answers %v", err)
		}
		end()
		all.Wait()
	})
}

// fenced is a store of names that remembers who was let in and kept out.
type fenced struct {
	mu   sync.Mutex
	said []string // mu
	fail error    // mu
}

func (f *fenced) note(what string, m sigma.MachineID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, what+" "+string(m))
	return f.fail
}

func (f *fenced) Expel(_ context.Context, m sigma.MachineID) error { return f.note("expel", m) }
func (f *fenced) Admit(_ context.Context, m sigma.MachineID) error { return f.note("admit", m) }
func (f *fenced) RemoveMember(_ context.Context, m sigma.MachineID) error {
	return f.note("remove", m)
}

// take gives what was said since the last time.
func (f *fenced) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := strings.Join(f.said, ", ")
	f.said = nil
	return out
}

// Goal: the store of names hears of a life's end before anybody else does, and of a new life before
// the machine does; a judge that cannot tell it does not decide; the next one tells it all again.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority, err := identity.NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		ns, names := space(t), &fenced{}
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		d, err := NewDaemon(DaemonConfig{Self: "m1", Namespace: ns, Path: "/machines", Names: names,
			Authority: func(bool) (*identity.Authority, error) {
				return authority, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		root, err := d.Attach(ctx, sigma.Principal{Realm: sigma.SystemRealm, System: true, Machine: "m1"}, "")
		if err != nil {
			t.Fatal(err)
		}
		c := NewClient(root.(sigma.Caller))
		all.Go(func() { d.Run(ctx) })
		synctest.Wait()
		if _, err := c.Found(ctx, identity.Enrolment{Machine: "m1", Address: "10.0.0.1:7700"},
			identity.NewKey()); err != nil {
			t.Fatal(err)
		}
		enrolWith(t, c, authority, "m2")
		if got := names.take(); got != "admit m2" {
			t.Errorf("after two joins: %s", got)
		}
		if err := c.Control(ctx, "m2", true); err != nil {
			t.Fatal(err)
		}
		if err := c.Control(ctx, "m1", false); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("the judge gives up: %v", err)
		}
		if err := c.Control(ctx, "m2", false); err != nil {
			t.Fatal(err)
		}
		if got := names.take(); got != "remove m2" {
			t.Errorf("after a control machine less: %s", got)
		}
		names.fail = sigma.Errorf("test", sigma.KindUnavailable, "no leader")
		epoch, _, err := c.Roster(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Remove(ctx, "m2", true); err == nil {
			t.Error("a machine was removed that the store of names still lets in")
		}
		if got := names.take(); got != "expel m2" {
			t.Errorf("after a removal: %s", got)
		}
		<-time.After(time.Second)
		if _, err := c.List(ctx); sigma.KindOf(err) != sigma.KindUnavailable {
			t.Errorf("who cannot reach the store of names says %v", err)
		}
		names.mu.Lock()
		names.fail = nil
		names.mu.Unlock()
		<-time.After(time.Second)
		now, ms, err := c.Roster(ctx, epoch)
		if got := names.take(); err != nil || now <= epoch || len(ms) != 2 || !ms[1].Lost ||
			!strings.HasSuffix(got, "expel m2") {
			t.Errorf("the next judge's roster: %d %+v %v, and it said %s", now, ms, err, got)
		}
		if err := c.Remove(ctx, "m2", false); err != nil {
			t.Error(err)
		}
		end()
		all.Wait()
	})
}

// Goal: an heir gets the authority from the judge, a machine that is no control machine does not,
// and one without it does not take over.
func TestHandOver(t *testing.T) {
	open(t, func(o *office) {
		ctx, c := o.t.Context(), o.client("m1")
		o.join("m2")
		if _, err := o.client("m2").Authority(ctx); sigma.KindOf(err) != sigma.KindPermission {
			o.t.Errorf("an ordinary machine gets the authority: %v", err)
		}
		if err := c.Control(ctx, "m2", true); err != nil {
			o.t.Fatal(err)
		}
		got, err := o.client("m2").Authority(ctx)
		if err != nil || got.System() != o.known.System() || got.Fingerprint() != o.known.Fingerprint() {
			o.t.Errorf("got %v, %v", got, err)
		}
		for _, p := range []sigma.Principal{{Realm: sigma.SystemRealm, System: true, Machine: "m2", Proc: "p"},
			{Realm: "team", System: true, Machine: "m2"}, {Realm: sigma.SystemRealm, System: true, Machine: "m9"}} {
			root, err := o.service.Attach(ctx, p, "")
			if err != nil {
				o.t.Fatal(err)
			}
			if _, err := NewClient(root.(sigma.Caller)).Authority(ctx); sigma.KindOf(err) != sigma.KindPermission {
				o.t.Errorf("%+v gets the authority: %v", p, err)
			}
		}
		if err := c.Control(ctx, "m2", false); err != nil {
			o.t.Fatal(err)
		}
		if _, err := o.client("m2").Authority(ctx); sigma.KindOf(err) != sigma.KindPermission {
			o.t.Errorf("a machine that was one gets the authority: %v", err)
		}
	})
}

// Goal: a judge that dies after it saved that a machine is an observer, and before it told anybody,
// does not leave the heirs without the observers that they need: an heir tells what was saved.
func TestUntold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority, err := identity.NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		ns := space(t)
		store, _, err := TakeOver(t.Context(), ns, "/machines", "m1", "")
		if err != nil {
			t.Fatal(err)
		}
		effects := []Effect{SaveEpoch{9}}
		for i, id := range []sigma.MachineID{"m1", "m2", "m3"} {
			effects = append(effects, SaveMember{Member{ID: id, Incarnation: sigma.Incarnation(i + 2), Control: true,
				Address: "a:1"}})
		}
		if err := store.Save(t.Context(), effects); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		d, err := NewDaemon(DaemonConfig{Self: "m2", Namespace: ns, Path: "/machines",
			Authority: func(bool) (*identity.Authority, error) {
				return authority, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		client := func(m sigma.MachineID) *Client {
			root, err := d.Attach(ctx, sigma.Principal{Realm: sigma.SystemRealm, System: true, Machine: m}, "")
			if err != nil {
				t.Fatal(err)
			}
			return NewClient(root.(sigma.Caller))
		}
		all.Go(func() { d.Run(ctx) })
		told := make(chan struct{})
		all.Go(func() {
			epoch, ms, err := client("m3").Roster(ctx, 8)
			if err != nil || epoch != 9 || len(ms) != 3 || !ms[2].Control {
				t.Errorf("the heir tells %d %+v %v", epoch, ms, err)
			}
			close(told)
		})
		heard := []Evidence{{"m2", 3, 0}, {"m3", 4, 0}}
		for range 20 {
			client("m2").Report(ctx, heard)
			select {
			case <-told:
				client("m3").Report(ctx, heard)
			default: // m3 does not know yet that it is an observer
			}
			<-time.After(DefaultTiming().Interval)
		}
		if ms, err := client("m2").List(ctx); err != nil || ms[0].State != sigma.MachineLost {
			t.Errorf("the heir says %+v %v", ms, err)
		}
		end()
		all.Wait()
	})
}

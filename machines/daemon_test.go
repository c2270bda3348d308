package machines

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
)

// Goal: of three control machines one is the judge; when its machine dies the others go on within three seconds, with one judge and all that was saved; the old one, back, is no judge.
func TestDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority, err := identity.NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		ns, names := space(t), []sigma.MachineID{"m1", "m2", "m3"}
		daemons, clients, stops := map[sigma.MachineID]*Daemon{}, map[sigma.MachineID]*Client{}, map[sigma.MachineID]func(){}
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		start := func(name sigma.MachineID) {
			d, err := NewDaemon(DaemonConfig{Self: name, Namespace: ns, Path: "/machines", Authority: func(bool) (*identity.Authority, error) { return authority, nil }})
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
		if _, err := clients["m1"].Found(ctx, identity.Enrolment{Machine: "m2", Address: "10.0.0.1:7700"}, identity.NewKey()); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("another machine founds the system: %v", err)
		}
		if _, err := judge.Found(ctx, identity.Enrolment{Machine: "m1", Address: "10.0.0.1:7700"}, identity.NewKey()); err != nil {
			t.Fatal(err)
		}
		if _, err := judge.Found(ctx, identity.Enrolment{Machine: "m1", Address: "10.0.0.1:7700"}, identity.NewKey()); sigma.KindOf(err) != sigma.KindExists {
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
		if err := clients["m2"].Cordon(ctx, "m3", true); sigma.KindOf(err) != sigma.KindUnavailable || !strings.Contains(err.Error(), "m1") {
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
			if len(ms) != 3 || ms[0].State != sigma.MachineLost || ms[1].State != sigma.MachineAlive || ms[2].State != sigma.MachineAlive {
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

package procs

import (
	"context"
	"testing"

	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// table is that of a machine on which procs that are spawned are started at once.
func table(t *testing.T) *Table {
	x := NewTable(Config{Machine: "m1", Memory: sigma.GiB, LogsDir: t.TempDir(),
		Carry:    func(*schedd.Core, schedd.Effect) {},
		MaySpawn: func(sigma.RealmID) error { return nil }})
	x.Begin(t.Context())
	x.Step(schedd.ShardFound{Shard: "m1/1"})
	x.Step(schedd.Leased{On: true})
	return x
}

func spawned(id sigma.ProcID) schedd.Spawned {
	return schedd.Spawned{By: sigma.Principal{Realm: "a"}, IDs: []sigma.ProcID{id},
		Ds: []sigma.Descriptor{{Program: "/bin/x"}}}
}

// Goal: what the table has of a proc comes with its spawn, its pending parts go with its end, and
// all of it goes when schedd forgets the proc.
func TestProcComesAndGoes(t *testing.T) {
	x := table(t)
	starts, err := x.Spawn("a", spawned("p"))
	if err != nil || len(starts) != 1 || starts[0].Proc.ID != "p" || starts[0].Logs.Out == nil {
		t.Fatalf("got %v, %v", starts, err)
	}
	if again, err := x.Spawn("a", spawned("p")); err != nil || len(again) != 0 {
		t.Errorf("a proc that is known was spawned again: %v, %v", again, err)
	}
	x.Step(schedd.LaunchAsked{ID: "p", Launch: 1})
	x.Step(schedd.Launched{ID: "p"})
	x.Answered("p")
	if starts[0].Ctx.Err() == nil {
		t.Error("the context of a start that is over goes on")
	}
	waits, told := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := x.Wait(t.Context(), "a", "p", Ended)
		waits <- err
	}()
	go func() { told <- x.WaitEvict(t.Context(), "a", "p") }()
	for n, w := 0, 0; n == 0 || w == 0; {
		_, n, w = x.Pending()
	}
	x.Step(schedd.Evicted{ID: "p"})
	if err := <-told; err != nil {
		t.Error(err)
	}
	called := false
	x.End("a", "p", schedd.LauncherDied{ID: "p"}, func(p *schedd.Proc) { called = p.Ended() })
	if err := <-waits; err != nil || !called {
		t.Errorf("got %v, called %v", err, called)
	}
	if timers, notices, wakes := x.Pending(); timers+notices+wakes != 0 || x.Known() != 1 {
		t.Errorf("%d, %d, %d are pending of %d", timers, notices, wakes, x.Known())
	}
	if err := x.WaitEvict(t.Context(), "a", "p"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a proc that has ended waits: %v", err)
	}
	x.ForgetRealm("a")
	if x.Known() != 0 || x.HasLogs("p") {
		t.Error("a proc that is forgotten has logs")
	}
}

// Goal: while a realm is closed nothing is spawned in it, and only one may close it.
func TestClosedRealm(t *testing.T) {
	x := table(t)
	open, ok := x.Close("a")
	if !ok {
		t.Fatal("it is closed")
	}
	if _, again := x.Close("a"); again {
		t.Error("it is closed twice")
	}
	if _, err := x.Spawn("a", spawned("p")); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("spawned in a closed realm: %v", err)
	}
	if x.Closed("a") == nil || x.Closed("b") != nil {
		t.Error("the wrong realm is closed")
	}
	open()
	if _, err := x.Spawn("a", spawned("p")); err != nil {
		t.Error(err)
	}
}

// Goal: a wait ends with its context, and nobody waits for a proc that there is not.
func TestWaitEnds(t *testing.T) {
	x := table(t)
	if _, err := x.Wait(t.Context(), "a", "p", Ended); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v", err)
	}
	if _, err := x.Spawn("a", spawned("p")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Wait(ctx, "a", "p", Ended); sigma.KindOf(err) != sigma.KindCanceled {
		t.Errorf("got %v", err)
	}
}

package kernel

import (
	"strings"
	"testing"
	"time"

	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
)

// Goal: when a launcher dies, everything that it ran ends as crashed and no waiter hangs; names and
// objects stay, and the next launcher serves.
func TestLauncherDies(t *testing.T) {
	m := boot(t)
	c := m.connect("default")
	for round := range 3 {
		running := m.spawn(c, sigma.Descriptor{})
		if err := (<-m.procs).open(t.Context()); err != nil {
			t.Fatal(err)
		}
		said := m.spawn(c, sigma.Descriptor{Memory: 64 * sigma.MiB})
		<-m.procs
		if err := c.WaitStart(t.Context(), said); err != nil {
			t.Fatal(err)
		}
		m.die()
		for _, id := range []sigma.ProcID{running, said} {
			if s := m.status(c, id); s.Code != sigma.StatusCrashed || !strings.Contains(s.Msg, "launcher") {
				t.Errorf("round %d: %s ended as %+v", round, id, s)
			}
		}
		m.launcher()
		eventually(t, "the services run", func() bool {
			for _, s := range m.k.services.Status(t.Context()) {
				if s.State != "running" {
					return false
				}
			}
			return true
		})
		after := m.spawn(c, sigma.Descriptor{})
		(<-m.procs).exit(3 << 8)
		if s := m.status(c, after); s.ExitCode != 3 {
			t.Errorf("round %d: a proc of the next launcher ended as %+v", round, s)
		}
	}
	eventually(t, "memory is free", func() bool {
		capacity, free := m.k.procs.Memory()
		launches, _ := m.k.launcher.Registered()
		return free == capacity && launches == 3
	})
}

// Goal: while a machine has no launcher it offers nothing, so that procs go to others instead of
// waiting for the next launcher; then it offers again.
func TestNoLauncherNoOffers(t *testing.T) {
	cores := func(m *machine) {
		m.k.cfg.CPU = 2000
	} // of which m1 has none left after four procs, on whatever host this runs
	w := newWorld(t, part{name: "m1", control: true, services: []string{services.Named, services.Besched, services.S3},
		before: cores}, part{name: "m2", before: cores})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	offers := func(n int) {
		t.Helper()
		eventually(t, "credits are parked, or none", func() bool {
			credits, shards := m2.k.placing.Parked()
			return credits == n && shards == 1
		})
	}
	runs := func(m *machine) *fakeProc {
		t.Helper()
		select {
		case p := <-m.procs:
			return p
		case <-time.After(time.Minute):
			t.Fatalf("machine %s is given no proc", m.k.cfg.Machine)
			return nil
		}
	}
	c := m1.connect("default")
	offers(1)
	m2.die()
	offers(0)
	for range 4 { // of which the other machine, which runs less, would get some
		m1.spawn(c, sigma.Descriptor{})
		if err := runs(m1).open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	m2.launcher()
	offers(1)
	_, free := m1.k.procs.Memory()
	// more than m1 has: a home that knows that nobody waits places what it has room for
	m1.spawn(c, sigma.Descriptor{Memory: free + 1})
	runs(m2).exit(0)
}

// Goal: a start that the launcher never answers ends after startMax: a proc's with an error, and a
// service is started again, so that it is there once the launcher answers.
func TestStartIsNeverAnswered(t *testing.T) {
	m := bootAs(t, Config{Machine: "m1"}, func(m *machine) {
		m.k.launcher.GiveUpAfter(300 * time.Millisecond)
	}, services.Named, services.Besched, services.S3)
	c := m.connect("default")
	m.hangs.Store(true)
	id := m.spawn(c, sigma.Descriptor{Memory: 64 * sigma.MiB})
	if err := c.WaitStart(t.Context(), id); sigma.KindOf(err) != sigma.KindTimeout {
		t.Errorf("got %v, want a timeout", err)
	}
	if s := m.status(c, id); s.Code != sigma.StatusError || s.Kind != sigma.KindTimeout {
		t.Errorf("the proc ended as %+v", s)
	}
	m.die()
	m.launcher()
	restarts := func() (n, running int) {
		for _, s := range m.k.services.Status(t.Context()) {
			if n += int(s.Restarts); s.State == "running" && s.Proc != "" {
				running++
			}
		}
		return n, running
	}
	eventually(t, "the services are given up and started again", func() bool { n, _ := restarts(); return n >= 6 })
	m.hangs.Store(false)
	eventually(t, "the services run", func() bool { _, running := restarts(); return running == 3 })
	id = m.spawn(m.connect("default"), sigma.Descriptor{})
	(<-m.procs).exit(3 << 8)
	if s := m.status(m.connect("default"), id); s.ExitCode != 3 {
		t.Errorf("a proc ended as %+v", s)
	}
	eventually(t, "nothing is waited for", func() bool {
		capacity, free := m.k.procs.Memory()
		_, awaited := m.k.launcher.Registered()
		return awaited == 0 && free == capacity
	})
}

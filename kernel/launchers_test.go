package kernel

import (
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: when a launcher dies, everything that it ran ends as crashed and no waiter hangs; names and objects stay, and the next launcher serves.
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
			for _, s := range m.k.status() {
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
		m.k.mu.Lock()
		defer m.k.mu.Unlock()
		return m.k.core.Free() == m.k.core.Capacity() && len(m.k.children) == 3
	})
}

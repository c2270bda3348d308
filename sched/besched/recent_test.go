package besched

import (
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: a machine that ran a program recently is given the next proc of it, although another has
// less to do, as long as a core of it is free; and memory decides before that.
func TestRecentMachineIsPreferred(t *testing.T) {
	c := NewCore()
	for _, m := range []sigma.MachineID{"home", "a", "b"} {
		c.Attend(life(m), 2000, 8)
	}
	n := 0
	place := func(program uint64, memory sigma.Bytes, offers map[sigma.MachineID]Offer) (to sigma.MachineID) {
		t.Helper()
		of := map[Ticket]sigma.MachineID{}
		for i, m := range []sigma.MachineID{"a", "b"} {
			n++
			of[Ticket(n)] = m
			if gs := c.Park(Ticket(n), m, offers[m]); gs != nil {
				t.Fatalf("granted %v, the %d-th", gs, i)
			}
		}
		gs, _ := c.Enqueue([]Job{{ID: sigma.ProcID(fmt.Sprint("p", n)), Realm: "r", Program: program, Memory: memory,
			Home: life("home")}})
		if len(gs) != 1 || len(gs[0].Jobs) != 1 {
			t.Fatalf("granted %v", gs)
		}
		to = of[gs[0].Ticket]
		for tk := range of {
			c.Leave(tk)
		}
		return to
	}
	idle, busy, full := Offer{Memory: 8}, Offer{Memory: 8, Load: 1}, Offer{Memory: 8, Load: 2}
	for _, x := range []struct {
		program uint64
		memory  sigma.Bytes
		a, b    Offer
		want    sigma.MachineID
	}{
		{7, 1, idle, busy, "a"},
		{7, 1, busy, idle, "a"}, // it ran there
		{8, 1, busy, idle, "b"}, // that one did not
		{0, 1, busy, idle, "b"}, // nobody knows
		{7, 1, full, idle, "b"}, // no core is free
		{7, 1, busy, busy, "b"}, // the last one first
		{7, 8, busy, Offer{Memory: 4}, "a"},
	} {
		if got := place(x.program, x.memory, map[sigma.MachineID]Offer{"a": x.a, "b": x.b}); got != x.want {
			t.Errorf("%+v: %s", x, got)
		}
	}
	for i := range uint64(3 * recentMax) {
		c.recent.ran(100+i, "a")
	}
	if len(c.recent.newer) > recentMax || len(c.recent.old) > recentMax || c.recent.on(7) != nil {
		t.Errorf("%d and %d programs are remembered", len(c.recent.newer), len(c.recent.old))
	}
}

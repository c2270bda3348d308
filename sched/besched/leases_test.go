package besched

import (
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: while machines get their leases one after the other there is always a credit for a job that
// comes meanwhile, so that none waits and no lease is recalled; in the end all have one. Else, with
// many machines and jobs that come faster than credits, all leases would be given and recalled
// again and again.
func TestLeasesLeaveCreditsForJobs(t *testing.T) {
	for _, machines := range []int{2, 3, 10, 101} {
		c := NewCore()
		ticket, jobs, leased := Ticket(0), 0, map[sigma.MachineID]bool{}
		of := map[Ticket]sigma.MachineID{}
		var again []sigma.MachineID // whose credit was used up, in order
		see := func(gs []Grant, recalled []Ticket) {
			if len(recalled) > 0 {
				t.Fatalf("%d machines: %d leases are recalled", machines, len(recalled))
			}
			for _, g := range gs {
				if g.Lease != NoLease {
					leased[of[g.Ticket]] = true
				}
				again = append(again, of[g.Ticket])
			}
		}
		park := func(m sigma.MachineID) {
			ticket++
			of[ticket] = m
			see(c.Park(ticket, m, Offer{Memory: sigma.GiB, Ask: !leased[m]}), nil)
		}
		name := func(i int) sigma.MachineID { return sigma.MachineID(fmt.Sprint("m", i)) }
		for i := range machines {
			c.Attend(sigma.Life{Machine: name(i), Incarnation: 1}, 1000, sigma.GiB)
		}
		for i := range machines {
			park(name(i))
		}
		for len(again) > 0 {
			if jobs++; jobs <= 3*machines {
				see(c.Enqueue([]Job{{ID: sigma.ProcID(fmt.Sprint("j", jobs)), Realm: "r", Memory: 1,
					Home: sigma.Life{Machine: "m0", Incarnation: 1}}}))
				if c.Waiting() > 0 {
					t.Fatalf("%d machines: job %d waits", machines, jobs)
				}
			}
			m := again[0]
			again = again[1:]
			park(m)
		}
		if len(leased) != machines {
			t.Errorf("of %d machines %d have a lease", machines, len(leased))
		}
	}
}

// Goal: machines that have a lease and are full keep nobody else from one: of four, three fill up,
// by procs of their own or by what they are granted; the fourth, which alone has room, is given a
// lease as soon as it asks.
func TestFullMachinesKeepNobodyFromALease(t *testing.T) {
	c := NewCore()
	ticket, leased := Ticket(0), map[sigma.MachineID]bool{}
	of, parked := map[Ticket]sigma.MachineID{}, map[sigma.MachineID]Ticket{}
	park := func(m sigma.MachineID) {
		ticket++
		of[ticket], parked[m] = m, ticket
		for _, g := range c.Park(ticket, m, Offer{Memory: sigma.GiB, Ask: !leased[m]}) {
			delete(parked, of[g.Ticket])
			leased[of[g.Ticket]] = g.Lease != NoLease
		}
	}
	for i := range 4 {
		c.Attend(sigma.Life{Machine: sigma.MachineID(fmt.Sprint("m", i)), Incarnation: 1}, 1000, sigma.GiB)
	}
	full := []sigma.MachineID{"m0", "m1", "m2"}
	for range 3 {
		for _, m := range full {
			if _, is := parked[m]; !is {
				park(m)
			}
		}
	}
	for _, m := range full {
		if !leased[m] || c.lent != 3 {
			t.Fatalf("leases have %v, %d are counted", leased, c.lent)
		}
	}
	c.Leave(parked["m0"])
	c.Leave(parked["m1"])
	gs, _ := c.Enqueue([]Job{{ID: "all", Realm: "r", Memory: sigma.GiB, Home: sigma.Life{Machine: "m0",
		Incarnation: 1}}})
	if len(gs) != 1 || of[gs[0].Ticket] != "m2" || c.lent != 0 {
		t.Fatalf("granted are %v, %d are counted", gs, c.lent)
	}
	if park("m3"); !leased["m3"] {
		t.Error("the machine that has room has no lease")
	}
	if _, recalled := c.Enqueue([]Job{{ID: "j", Realm: "r", Memory: 1, Home: sigma.Life{Machine: "m0",
		Incarnation: 1}}}); len(recalled) != 4 || c.lent != 0 { // of all four
		t.Errorf("%d leases were recalled, %d machines are lent to", len(recalled), c.lent)
	}
}

package besched

import (
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: while machines get their leases one after the other there is always a credit for a job that comes meanwhile, so that none waits and no lease is recalled; in the end all have one. Else, with many machines and jobs that come faster than
// credits, all leases would be given and recalled again and again.
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
				see(c.Enqueue([]Job{{ID: sigma.ProcID(fmt.Sprint("j", jobs)), Realm: "r", Memory: 1, Home: sigma.Life{Machine: "m0", Incarnation: 1}}}))
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

//go:build system

package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sigma"
)

// topo is what sigma topo --json prints of a realm.
type topo struct {
	Distances []struct {
		Machine sigma.MachineID `json:"machine"`
		To      sigma.MachineID `json:"to"`
		RTT     *float64        `json:"rtt_seconds"`
	} `json:"distances"`
	Talks []struct {
		From     sigma.ProcID    `json:"from"`
		FromName string          `json:"from_name"`
		FromOn   sigma.MachineID `json:"from_on"`
		On       sigma.MachineID `json:"on"`
		Sent     float64         `json:"sent_per_second"`
	} `json:"talks"`
}

func (x *trial) topo(realm sigma.RealmID) (all topo) {
	x.t.Helper()
	if err := json.Unmarshal([]byte(x.s.Must(x.t, "topo", "--json", "--realm", string(realm))), &all); err != nil {
		x.t.Fatal(err)
	}
	return all
}

// spawnOn starts a proc on a machine.
func (x *trial) spawnOn(m sigma.MachineID, d sigma.Descriptor) (id sigma.ProcID) {
	x.t.Helper()
	d.Near = m
	testenv.Eventually(x.t, "a proc is on "+string(m), func() error {
		id = x.spawn(d)
		if at := x.machineOf(id); at != m {
			x.c.Kill(x.ctx, id)
			return fmt.Errorf("it is on %s", at)
		}
		return nil
	})
	return id
}

func (x *trial) machineOf(id sigma.ProcID) sigma.MachineID {
	x.t.Helper()
	all, err := x.c.List(x.ctx, true)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, p := range all {
		if p.ID == id {
			return p.Machine
		}
	}
	x.t.Fatalf("%s is not listed", id)
	return ""
}

// Goal: a fleet that talks much with one proc gets its new members beside that proc; topo says who
// talks with whom and how far machines are, explain why the member is there; another realm is told
// nothing of it, whatever it claims. Method: three machines; a proc on the one pours into the only
// member on another, and the fleet is told to have two. A machine that was late to offer its room
// is left alone for a while, so the fleet may have to be told so again.
func TestMembersStartNearTheirTraffic(t *testing.T) {
	t.Parallel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 3, CPU: 2,
		Memory: 512 * sigma.MiB, Realms: []sigma.RealmID{"other"}})
	x := newTrialOn(t, c.Machine(0).System, "sink")
	talker := x.program("talker")
	x.apply(fleet.Spec{Program: talker, Args: []string{"serve"}, Least: 1, Most: 1, Memory: "16MiB",
		Grace: fleet.Duration(1e9)})
	first := x.await("at first", steady(1)).Members[0]
	beside := sigma.MachineID("m3")
	if first.Machine == beside {
		beside = "m2"
	}
	pours := x.spawnOn(beside, sigma.Descriptor{Program: talker, Name: "pourer", Start: sigma.StartedByCall,
		Args: []string{"pour", fleet.Members(x.name), "64", "3"}, Memory: 16 * sigma.MiB})
	defer x.c.Kill(x.ctx, pours)
	testenv.Eventually(t, "topo tells who talks with whom", func() error {
		all := x.topo(sigma.DefaultRealm)
		for _, d := range all.Distances {
			if d.RTT == nil || *d.RTT <= 0 || *d.RTT > 1 {
				return fmt.Errorf("%s is not told how far %s is", d.Machine, d.To)
			}
		}
		for _, r := range all.Talks {
			if r.From == pours && r.FromName == "pourer" && r.FromOn == beside && r.On == first.Machine &&
				r.Sent > 2e6 {
				if len(all.Distances) != 6 {
					return fmt.Errorf("distances: %+v", all.Distances)
				}
				return nil
			}
		}
		return fmt.Errorf("talks: %+v", all.Talks)
	})
	if all := x.topo("other"); len(all.Talks) != 0 {
		t.Errorf("another realm is told %+v", all.Talks)
	}
	one, two := 1, 2
	testenv.Eventually(t, "a new member is beside what the fleet talks with", func() error {
		if _, err := x.fleets.Scale(x.ctx, fleet.ScaleArg{Name: x.name, Least: &two, Most: &two}); err != nil {
			return err
		}
		s := x.await("it grew", steady(2))
		m := s.Members[1]
		out := x.s.Must(t, "fleet", "explain", x.name)
		why := x.s.Must(t, "explain", string(m.Proc))
		if m.Machine == beside && strings.Contains(out, "with pourer there") &&
			strings.Contains(why, "it should be near machine "+string(beside)) &&
			strings.Contains(why, "with pourer there") {
			return nil
		}
		if _, err := x.fleets.Scale(x.ctx, fleet.ScaleArg{Name: x.name, Least: &one, Most: &one}); err != nil {
			return err
		}
		x.await("it shrank", steady(1))
		return fmt.Errorf("the new member is on %s, the proc on %s:\n%s\n%s", m.Machine, beside, out, why)
	})
	t.Log(x.s.Must(t, "topo"))
	t.Log(x.s.Must(t, "fleet", "explain", "--last", "3", x.name))
}

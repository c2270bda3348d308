//go:build system

package fleet

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/examples/counter"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sigma"
)

// counted is what examples/counterload prints.
type counted struct {
	Calls, Redirected, Forwarded uint64
	Lost, Anew                   int
	Wrong                        []string
}

// count has clients count at the fleet while something happens to it.
func (x *trial) count(what string, during func()) (c counted) {
	x.t.Helper()
	until := "/stop-" + x.name + "-" + what
	load := x.spawn(sigma.Descriptor{Program: x.example("counterload"), Args: []string{fleet.Members(x.name), until}})
	during()
	if _, err := x.c.Put(x.ctx, until, nil, sigma.PutOptions{}); err != nil {
		x.t.Fatal(err)
	}
	defer x.c.Remove(x.ctx, until)
	if err := json.Unmarshal([]byte(x.output(load)), &c); err != nil {
		x.t.Fatal(err)
	}
	x.t.Logf("%s: %+v", what, c)
	if len(c.Wrong) > 0 || c.Calls == 0 {
		x.t.Errorf("%s: of %d calls went wrong:\n%s", what, c.Calls, strings.Join(c.Wrong, "\n"))
	}
	return c
}

// resize has the fleet have n members.
func (x *trial) resize(n int) {
	x.t.Helper()
	if _, err := x.fleets.Scale(x.ctx, fleet.ScaleArg{Name: x.name, Least: &n, Most: &n}); err != nil {
		x.t.Fatal(err)
	}
	x.await("another size", steady(n))
}

// Goal: while a service whose members own ranges of keys grows, shrinks and is rolled, each call
// counts once at one owner: no hand-off is lost. Members that are killed, also in the middle of a
// roll, lose what they had in memory and nothing else. When members rest, clients know the owners.
func TestRangesMove(t *testing.T) {
	f := newTrial(t, "ranges")
	f.apply(fleet.Spec{Program: f.example("counterserver"), Least: 2, Most: 2, Health: fleet.Health{Kind: "call"}})
	f.await("at first", steady(2))
	c := f.count("moves", func() {
		for _, n := range []int{4, 3, 5, 2} {
			f.resize(n)
		}
		for range rounds(t, 2) {
			if _, err := f.fleets.Roll(f.ctx, f.name); err != nil {
				t.Fatal(err)
			}
			f.await("a roll", steady(2))
		}
	})
	if c.Lost+c.Anew > 0 || c.Redirected == 0 {
		t.Errorf("%d calls were lost, %d ranges began anew, %d calls were redirected", c.Lost, c.Anew, c.Redirected)
	}
	f.resize(4)
	kills := rounds(t, 3)
	c = f.count("kills", func() {
		for range kills {
			s := f.await("the next kill", steady(4))
			dead := s.Members[0].Proc
			if err := f.c.Kill(f.ctx, dead); err != nil {
				t.Fatal(err)
			}
			f.await("its end", func(s fleet.Status) bool {
				return !slices.ContainsFunc(s.Members, func(m fleet.Member) bool { return m.Proc == dead })
			})
			f.await("another in its place", steady(4))
			<-time.After(time.Second) // requests meanwhile
		}
	})
	if most := kills * (counter.Ranges/4 + 1); c.Anew == 0 || c.Anew > most {
		t.Errorf("%d ranges began anew; the members that were killed had up to %d", c.Anew, most)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	c = f.count("kills-in-rolls", func() {
		for i := range kills {
			if _, err := f.fleets.Roll(f.ctx, f.name); err != nil && sigma.KindOf(err) != sigma.KindLost {
				t.Fatal(err)
			}
			<-time.After(time.Duration(r.IntN(1500)) * time.Millisecond) // at a random moment of the roll
			f.killOne(r, func(p sigma.ProcInfo) bool {
				return strings.HasPrefix(p.Name, f.name+"@") || i%3 == 2 && p.Name == "fleetd"
			})
			f.await("the end of the roll", steady(4))
		}
	})
	if most := kills * counter.Ranges / 2; c.Anew > most {
		t.Errorf("%d ranges began anew; the members that were killed had no more than %d", c.Anew, most)
	}
	c = f.count("rest", func() { <-time.After(2 * time.Second) })
	if c.Lost+c.Anew > 0 || 20*(c.Redirected+c.Forwarded) > c.Calls {
		t.Errorf("of %d calls at rest %d were redirected and %d forwarded, %d were lost", c.Calls, c.Redirected,
			c.Forwarded, c.Lost)
	}
}

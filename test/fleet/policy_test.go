//go:build system

package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const (
	followMax    = 20 * time.Millisecond // for a client to go by a policy that was acknowledged
	followWorst  = 2 * time.Second       // for one, once, on a busy host
	clientsThere = 2                     // on each machine
)

// turn is a line of testdata/chooser.
type turn struct {
	From, To    string
	Last, First int64
	Failed      int
}

// Goal: every client of a fleet follows its policy, wherever it is, within 20 ms of its being
// acknowledged. Method: clients on three machines choose a member each millisecond, while the
// policy names one of two members, and then the other, by turns. What counts is the last time at
// which a client chose the member that it should not any more, so that one which had no processor
// for a while did nothing wrong. The bound is for the slowest client of all in the median change:
// what a busy host does to one client in some changes is no fault of the policy's.
func TestPolicyEverywhere(t *testing.T) {
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 3})
	x := newTrialOn(t, c.Machine(0).System, "chosen")
	x.apply(fleet.Spec{Program: x.program("talker"), Args: []string{"serve"}, Least: 2, Most: 2, Memory: "16MiB"})
	members := x.await("at first", steady(2)).Members
	set := func(i int) (to string, at time.Time) {
		t.Helper()
		to = string(members[i%2].Proc)
		err := x.c.SetPolicy(x.ctx, fleet.Members(x.name), sdk.Policy{Choice: sdk.ChoiceWeights,
			Weights: map[string]uint32{to: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return to, time.Now()
	}
	set(0)
	chooser := x.program("chooser")
	var clients []sigma.ProcID
	for _, m := range c.Machines() {
		for range clientsThere {
			clients = append(clients, x.spawnOn(m.Name, sigma.Descriptor{Program: chooser, Memory: 32 * sigma.MiB,
				Args: []string{fleet.Members(x.name)}, Start: sigma.StartedByCall}))
		}
	}
	type change struct {
		to string
		at time.Time
	}
	var changes []change
	<-time.After(time.Second) // they follow the directory
	for i := range rounds(t, 20) {
		to, at := set(i + 1)
		changes = append(changes, change{to, at})
		testenv.Eventually(t, "all clients follow", func() error {
			for _, id := range clients {
				text, _, err := x.c.Get(x.ctx, "/proc/"+string(id)+"/stdout")
				if n := bytes.Count(text, []byte("\n")); err != nil || n < i+2 {
					return fmt.Errorf("%s chose %d times another member, of %d: %v", id, n, i+2, err)
				}
			}
			return nil
		})
	}
	slowest := make([]time.Duration, len(changes))
	for _, id := range clients {
		if err := x.c.Evict(x.ctx, id, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		var turns []turn
		for line := range strings.Lines(x.output(id)) {
			var one turn
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatal(err)
			}
			turns = append(turns, one)
		}
		if n := turns[len(turns)-1].Failed; n > 0 {
			t.Errorf("%d connections of a client failed", n)
		}
		turns = turns[1 : len(turns)-1] // but for its first choice
		if len(turns) != len(changes) {
			t.Fatalf("%s followed %d times, of %d: %+v", id, len(turns), len(changes), turns)
		}
		for i, one := range turns {
			if one.To != changes[i].to {
				t.Fatalf("change %d: a client follows to %s, not %s", i, one.To, changes[i].to)
			}
			slowest[i] = max(slowest[i], time.Unix(0, one.Last).Sub(changes[i].at))
		}
	}
	slices.Sort(slowest)
	middle, worst := slowest[len(slowest)/2], slowest[len(slowest)-1]
	t.Logf("the slowest of %d clients: %v in the median of %d changes, %v at the most", len(clients), middle,
		len(changes), worst)
	if middle > followMax*testenv.Slow() || worst > followWorst*testenv.Slow() {
		t.Errorf("clients follow too late: %v", slowest)
	}
}

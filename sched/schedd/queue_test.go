package schedd

import (
	"fmt"
	"testing"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sigma"
)

// Goal: as many procs of a realm wait at each besched, whatever each has to give, so that none
// takes the realm for one that wants nothing; what is lost with one goes to the others.
func TestRealmWaitsAtAllShards(t *testing.T) {
	c := NewCore("m", 256*sigma.MiB)
	now := time.Unix(0, 0)
	step := func(e Event) (out []Effect) {
		now = now.Add(time.Millisecond)
		return c.Step(now, e)
	}
	step(ShardFound{Shard: "x"})
	step(ShardFound{Shard: "y"})
	where := map[sigma.ProcID]besched.Shard{}
	count := func() map[besched.Shard]int {
		of := map[besched.Shard]int{}
		for _, s := range where {
			of[s]++
		}
		return of
	}
	n := 0
	spawn := func(realm sigma.RealmID) {
		n++
		id := sigma.ProcID(fmt.Sprintf("m-%d", n))
		step(Spawned{By: sigma.Principal{Realm: realm}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/p", Memory: sigma.MiB}}})
		if realm == "a" {
			where[id] = c.Proc(realm, id).Shard
		}
	}
	for range 20 {
		spawn("a")
		spawn("b")
	}
	for id, s := range where { // one of them has all the room
		if s == "x" {
			step(Killed{ID: id})
			delete(where, id)
		}
	}
	if got := count(); got["x"] != 0 || got["y"] != 10 {
		t.Fatalf("%v wait", got)
	}
	for range 10 {
		spawn("a")
	}
	if got := count(); got["x"] != 10 || got["y"] != 10 {
		t.Errorf("%v wait", got)
	}
	step(ShardLost{Shard: "y"})
	for id := range where {
		if where[id] = c.Proc("a", id).Shard; where[id] != "x" {
			t.Errorf("%s waits at %q", id, where[id])
		}
		step(Killed{ID: id})
	}
	if r := c.realms["a"]; r.waits["x"] != 0 || r.waits["y"] != 0 {
		t.Errorf("%v are counted", r.waits)
	}
}

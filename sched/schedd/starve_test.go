package schedd

import (
	"fmt"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// crowd is a machine for eight procs of 1 MiB.
type crowd struct {
	t   *testing.T
	c   *Core
	now time.Time
}

func newCrowd(t *testing.T) *crowd {
	return &crowd{t, NewCore("m", 8*sigma.MiB), time.Unix(1000, 0)}
}

// spawn enters procs that wait; run places some.
func (x *crowd) spawn(realm sigma.RealmID, n int, memory sigma.Bytes) (ids []sigma.ProcID) {
	for range n {
		x.now = x.now.Add(time.Millisecond)
		id := sigma.ProcID(fmt.Sprint(realm, x.c.seq+1))
		x.c.Step(x.now, Spawned{By: sigma.Principal{Realm: realm}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/bin/x", Memory: memory}}})
		ids = append(ids, id)
	}
	return ids
}

func (x *crowd) run(ids ...sigma.ProcID) {
	x.t.Helper()
	for _, id := range ids {
		x.now = x.now.Add(time.Millisecond)
		x.c.Step(x.now, Assigned{id})
		x.c.Step(x.now, Launched{ID: id})
		if x.c.procs[id].State != sigma.ProcRunning {
			x.t.Fatalf("%s does not run", id)
		}
	}
}

// asked are the procs that are asked to go after a time.
func (x *crowd) asked(after time.Duration, shares map[sigma.RealmID]uint32) (ids []sigma.ProcID) {
	x.now = x.now.Add(after)
	for _, f := range x.c.Step(x.now, Starved{shares}) {
		if n, is := f.(Notice); is {
			ids = append(ids, n.Proc.ID)
		}
	}
	return ids
}

// Goal: memory that is full of one realm's procs, which do not end, is not another's loss: after
// StarvedAfter the youngest of them are asked to go, as many as the other's first proc needs, and
// no more once they are.
func TestStarvedRealm(t *testing.T) {
	x := newCrowd(t)
	old := x.spawn("a", 8, sigma.MiB)
	x.run(old...)
	x.spawn("a", 3, sigma.MiB)
	other := x.spawn("b", 1, 2*sigma.MiB)[0]
	if got := x.asked(StarvedAfter-time.Second, nil); got != nil {
		t.Errorf("%v are asked too early", got)
	}
	if got := fmt.Sprint(x.asked(time.Second, nil)); got != fmt.Sprint([]sigma.ProcID{old[7], old[6]}) {
		t.Errorf("%s are asked, want the youngest two", got)
	}
	if got := x.asked(time.Second, nil); got != nil {
		t.Errorf("%v are asked too, though there will be room", got)
	}
	for _, id := range old[6:] {
		x.c.Step(x.now, Gone{ID: id})
	}
	x.run(other)
	if got := x.asked(time.Hour, nil); got != nil {
		t.Errorf("%v are asked for the realm that has most", got)
	}
}

// Goal: who has its part, by shares, is asked for nothing, and who has it already gets nothing that
// way; nor does who makes progress, or wants more than its part.
func TestStarvedParts(t *testing.T) {
	shares := map[sigma.RealmID]uint32{"a": 3}
	x := newCrowd(t)
	a, b := x.spawn("a", 6, sigma.MiB), x.spawn("b", 2, sigma.MiB)
	x.run(append(a, b...)...)
	x.spawn("b", 1, sigma.MiB)
	if got := x.asked(time.Hour, shares); got != nil {
		t.Errorf("%v are asked, though both have their parts", got)
	}
	if got := x.asked(0, nil); fmt.Sprint(got) != fmt.Sprint(a[5:]) {
		t.Errorf("%v are asked, want the youngest of who has more than half", got)
	}

	x = newCrowd(t)
	a = x.spawn("a", 7, sigma.MiB)
	x.run(a...)
	b = x.spawn("b", 2, sigma.MiB)
	x.now = x.now.Add(StarvedAfter)
	x.run(b[0])
	if got := x.asked(StarvedAfter/2, nil); got != nil {
		t.Errorf("%v are asked for a realm that makes progress", got)
	}

	x = newCrowd(t)
	x.run(x.spawn("a", 8, sigma.MiB)...)
	x.spawn("b", 1, 5*sigma.MiB)
	if got := x.asked(time.Hour, nil); got != nil {
		t.Errorf("%v are asked for a proc that wants more than its realm's part", got)
	}
}

// Goal: nobody is asked to go for a realm that is at its own maximum, as nothing of it could start;
// with a higher one it is.
func TestStarvedMaximum(t *testing.T) {
	x := newCrowd(t)
	a, b := x.spawn("a", 7, sigma.MiB), x.spawn("b", 1, sigma.MiB)
	x.run(append(a, b...)...)
	x.c.Step(x.now, Maxima{map[sigma.RealmID]sigma.Bytes{"b": sigma.MiB}})
	x.spawn("b", 1, sigma.MiB)
	if got := x.asked(time.Hour, nil); got != nil {
		t.Errorf("%v are asked for a realm that may have no more", got)
	}
	x.c.Step(x.now, Maxima{})
	if got := x.asked(0, nil); fmt.Sprint(got) != fmt.Sprint(a[6:]) {
		t.Errorf("%v are asked, want the youngest of who has most", got)
	}
}

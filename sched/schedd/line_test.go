package schedd

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// TestDescriptorIsCharged: a proc that waits is charged with every string of its descriptor, those
// of fields that are added later too.
func TestDescriptorIsCharged(t *testing.T) {
	const long = 1000
	text := reflect.ValueOf(strings.Repeat("x", long))
	none := sizeOf(sigma.Descriptor{})
	var fill func(v reflect.Value) bool
	fill = func(v reflect.Value) (has bool) {
		switch v.Kind() {
		case reflect.String:
			v.Set(text.Convert(v.Type()))
			return true
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			return fill(v.Index(0))
		case reflect.Struct:
			for i := range v.NumField() {
				has = fill(v.Field(i)) || has
			}
		}
		return has
	}
	for i, of := 0, reflect.TypeFor[sigma.Descriptor](); i < of.NumField(); i++ {
		var d sigma.Descriptor
		if fill(reflect.ValueOf(&d).Elem().Field(i)) && sizeOf(d) < none+long {
			t.Errorf("%s of %d bytes is charged with %d", of.Field(i).Name, long, sizeOf(d)-none)
		}
	}
}

// lcs spawns n latency-critical procs of a realm and returns how many were sent to lcsched by it.
func lcs(c *Core, now time.Time, realm sigma.RealmID, n int) (sent int) {
	for i := range n {
		id := sigma.ProcID(fmt.Sprint(realm, i))
		sent += len(names(c.Step(now, Spawned{By: sigma.Principal{Realm: realm}, IDs: []sigma.ProcID{id},
			Ds: []sigma.Descriptor{{Program: "/bin/x", Class: sigma.LatencyCritical, CPU: 1000}}})))
	}
	return sent
}

// TestLineOfRealm: however many latency-critical procs of a realm wait, lcsched has the first of
// them only, and as many are sent again when it was lost; each that leaves has the next take its
// place; another realm's do not wait for them.
func TestLineOfRealm(t *testing.T) {
	now, c := time.Unix(100, 0), lcCore()
	const many = 20 * sentMax
	if n := lcs(c, now, "a", many); n != sentMax {
		t.Errorf("%d of %d procs were sent", n, many)
	}
	if n := lcs(c, now, "b", 1); n != 1 {
		t.Error("another realm's proc waits for them")
	}
	for _, e := range []Event{LCSchedulerLost{}, Requeue{Before: now}} {
		if n := len(names(c.Step(now, e))); n != sentMax+1 {
			t.Errorf("%T: %d are sent again", e, n)
		}
	}
	if fs := c.Step(now, Killed{"a4000"}); len(names(fs)) != 0 || hasDequeue(fs) {
		t.Errorf("what was not sent is taken back, or has another sent: %v", fs)
	}
	fs := c.Step(now, Killed{"a7"})
	wantEffects(t, "one that was sent is killed", fs, fmt.Sprint("enqueue a", sentMax))
	if !hasDequeue(fs) {
		t.Error("what was sent is not taken back")
	}
	wantEffects(t, "one is placed here", c.Step(now, Assigned{"a0"}), "start a0", fmt.Sprint("enqueue a", sentMax+1))
	if _, _, err := c.Give(now, "a1", sigma.Life{Machine: "m2", Incarnation: 1}, 1); err != nil {
		t.Fatal(err)
	}
	wantEffects(t, "one was given to another machine", c.Step(now, Requeue{}), fmt.Sprint("enqueue a", sentMax+2))
	for i := range many {
		c.Step(now, Killed{sigma.ProcID(fmt.Sprint("a", i))})
	}
	c.Step(now, Killed{"b0"})
	if l := c.realms["a"].line; l.sent != 0 || l.back != 0 || len(c.reserved.sent) != 0 || c.QueuedLC() != 0 {
		t.Errorf("%+v wait, %d at lcsched, %d of all", l, len(c.reserved.sent), c.QueuedLC())
	}
}

func hasDequeue(fs []Effect) bool {
	for _, f := range fs {
		if _, ok := f.(Dequeue); ok {
			return true
		}
	}
	return false
}

// TestWaitingSum: what the procs of all realms that wait occupy is bounded, and no realm is kept
// from a part by the others.
func TestWaitingSum(t *testing.T) {
	now, c := time.Unix(100, 0), lcCore()
	d := sigma.Descriptor{Program: "/bin/x", Class: sigma.LatencyCritical, CPU: 1000}
	for range sigma.WhereMax {
		d.Where = append(d.Where, "zone="+strings.Repeat("x", sigma.LabelMax-5))
	}
	burst := make([]sigma.Descriptor, 64)
	ids := make([]sigma.ProcID, len(burst))
	for i := range burst {
		burst[i] = d
	}
	const realms = 20
	n := 0
	for i := range realms {
		realm := sigma.RealmID(fmt.Sprint("r", i))
		before := n
		for c.CanSpawn(realm, burst) == nil {
			for i := range ids {
				n++
				ids[i] = sigma.ProcID(fmt.Sprint(n))
			}
			c.Step(now, Spawned{By: sigma.Principal{Realm: realm}, IDs: ids, Ds: burst})
		}
		if n == before {
			t.Errorf("realm %s may have none", realm)
		}
	}
	if most := waitingSum + realms*waitingPart; c.waiting > most || c.waiting < waitingSum {
		t.Errorf("%v wait; %v are allowed", c.waiting, most)
	}
	for i := range n {
		c.Step(now, Killed{sigma.ProcID(fmt.Sprint(i + 1))})
	}
	if c.waiting != 0 {
		t.Errorf("%v are still counted", c.waiting)
	}
}

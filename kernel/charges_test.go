package kernel

import (
	"testing"
	"time"

	"sigmaos.dev/besched"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// Goal: each second that a proc used while others waited is charged once, whether it was looked at before its end or not, and what was prepaid for it is given back once; nothing is noted for what
// is used under a lease.
func TestChargesOnce(t *testing.T) {
	c, now := newCharges(), time.Unix(1000, 0)
	c.attend("one")
	c.contended.Store(&now)
	ended := func(id sigma.ProcID, placed time.Time, cpu time.Duration) {
		p := &schedd.Proc{ProcInfo: sigma.ProcInfo{ID: id, Realm: "r", Times: sigma.Times{Placed: placed, Ended: placed.Add(10 * time.Second)}, Usage: sigma.Usage{UserTime: cpu}}}
		c.ended(p, 1000, sigma.GiB)
	}
	check := func(what string, want besched.Charge) {
		t.Helper()
		want.Realm = "r"
		if got := c.take("one"); len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %+v, want %+v", what, got, want)
		}
	}
	c.given(now, "one", []besched.Job{{ID: "long", Realm: "r", Prepaid: time.Second}, {ID: "never", Realm: "r", Prepaid: time.Minute}})
	if old := c.old(now.Add(chargeEvery)); len(old) != 2 || old["long"] != "r" {
		t.Errorf("%v are looked at", old)
	}
	c.so("long", 3*time.Second, false)
	check("a look", besched.Charge{Used: 3 * time.Second, Prepaid: time.Second})
	c.so("long", 5*time.Second, false)
	check("a second look", besched.Charge{Used: 2 * time.Second})
	ended("long", now, 8*time.Second)
	check("the end", besched.Charge{Used: 3 * time.Second, Ended: 1, Whole: 8 * time.Second})
	c.so("never", 0, true)
	check("a job that never came", besched.Charge{Prepaid: time.Minute})
	c.given(now, "one", []besched.Job{{ID: "twice", Realm: "r", Prepaid: 7}})
	c.given(now, "one", []besched.Job{{ID: "twice", Realm: "r", Prepaid: 9}})
	check("a job that was given twice", besched.Charge{Prepaid: 7})
	ended("twice", now, 4)
	check("its end", besched.Charge{Used: 4, Prepaid: 9, Ended: 1, Whole: 4})
	ended("before", now.Add(-5*time.Second), 8*time.Second)
	check("one that ran half of its time under a lease", besched.Charge{Used: 4 * time.Second, Ended: 1, Whole: 8 * time.Second})
	c.begin("r", "earlier", now, 5*time.Second)
	c.so("earlier", 6*time.Second, false)
	check("a look at one that ran under a lease, and has been looked at since", besched.Charge{Used: time.Second})
	ended("earlier", now.Add(-5*time.Second), 8*time.Second)
	check("its end", besched.Charge{Used: 2 * time.Second, Ended: 1, Whole: 8 * time.Second})
	c.given(now, "one", []besched.Job{{ID: "leased", Realm: "r", Prepaid: 7}})
	c.lease(true)
	if c.idle() {
		t.Error("a job that was given is forgotten")
	}
	ended("leased", now, time.Second)
	if got := c.take("one"); len(got) != 0 || !c.idle() {
		t.Errorf("under a lease %v is owed", got)
	}
}

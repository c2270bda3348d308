package meter

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: what a service used is divided once, by what the realms' requests cost; the system's part
// is nobody's; another incarnation begins at nothing.
func TestDivide(t *testing.T) {
	out := Divide(4*time.Second, []sigma.Work{{Realm: "a", Requests: 3, In: 1, Out: 2, CPU: 300 * time.Millisecond},
		{Realm: "b", Requests: 100, CPU: 100 * time.Millisecond}, {Realm: sigma.SystemRealm, Requests: 9,
			CPU: 400 * time.Millisecond}, {Realm: "bad", Requests: 1, CPU: -5}})
	want := []sigma.Work{{Realm: "a", Requests: 3, In: 1, Out: 2, CPU: 1500 * time.Millisecond},
		{Realm: "b", Requests: 100, CPU: 500 * time.Millisecond}, {Realm: "bad", Requests: 1}}
	if len(out) != len(want) {
		t.Fatalf("divided are %+v", out)
	}
	for i := range out {
		if out[i] != want[i] {
			t.Errorf("got %+v, want %+v", out[i], want[i])
		}
	}
	if out := Divide(time.Second, []sigma.Work{{Realm: "a", Requests: 1}}); len(out) != 1 || out[0].CPU != 0 {
		t.Errorf("of what costs nothing: %+v", out)
	}
	if out := Divide(time.Hour, []sigma.Work{{Realm: "a", Requests: 1,
		CPU: time.Millisecond}}); out[0].CPU != divideMost*time.Millisecond {
		t.Errorf("one request is charged %v", out[0].CPU)
	}
	w := NewWorks()
	for _, c := range []struct {
		now  Spent
		want time.Duration
	}{{Spent{1, 5}, 5}, {Spent{1, 7}, 2}, {Spent{1, 6}, 0}, {Spent{2, 3}, 3}, {Spent{2, 3}, 0}} {
		if got := w.Fresh("named", c.now); got != c.want {
			t.Errorf("%+v: %v, not %v", c.now, got, c.want)
		}
	}
}

// Goal: a report that is told again, because its answer was lost, is counted once; one of another
// service, or of the service's next life, is another.
func TestReportsCountOnce(t *testing.T) {
	w := NewWorks()
	for i, c := range []struct {
		service string
		r       Report
		want    bool
	}{{"named", Report{1, 1}, true}, {"named", Report{1, 1}, false}, {"named", Report{1, 2}, true},
		{"s3d", Report{2, 1}, true}, {"named", Report{1, 1}, false}, {"named", Report{3, 1}, true},
		{"named", Report{3, 1}, false}} {
		if got := w.News(c.service, c.r); got != c.want {
			t.Errorf("%d: %+v of %s: %v, want %v", i, c.r, c.service, got, c.want)
		}
	}
}

package kernel

import (
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// Goal: what a service used is divided once, by what the realms' requests cost; the system's part is nobody's; another incarnation begins at nothing.
func TestDivide(t *testing.T) {
	out := divide(4*time.Second, []sigma.Work{{Realm: "a", Requests: 3, In: 1, Out: 2, CPU: 300 * time.Millisecond}, {Realm: "b", Requests: 100, CPU: 100 * time.Millisecond}, {Realm: sigma.SystemRealm, Requests: 9, CPU: 400 * time.Millisecond}, {Realm: "bad", Requests: 1, CPU: -5}})
	want := []sigma.Work{{Realm: "a", Requests: 3, In: 1, Out: 2, CPU: 1500 * time.Millisecond}, {Realm: "b", Requests: 100, CPU: 500 * time.Millisecond}, {Realm: "bad", Requests: 1}}
	if len(out) != len(want) {
		t.Fatalf("divided are %+v", out)
	}
	for i := range out {
		if out[i] != want[i] {
			t.Errorf("got %+v, want %+v", out[i], want[i])
		}
	}
	if out := divide(time.Second, []sigma.Work{{Realm: "a", Requests: 1}}); len(out) != 1 || out[0].CPU != 0 {
		t.Errorf("of what costs nothing: %+v", out)
	}
	if out := divide(time.Hour, []sigma.Work{{Realm: "a", Requests: 1, CPU: time.Millisecond}}); out[0].CPU != divideMost*time.Millisecond {
		t.Errorf("one request is charged %v", out[0].CPU)
	}
	w := newWorked()
	for _, c := range []struct {
		now  spent
		want time.Duration
	}{{spent{1, 5}, 5}, {spent{1, 7}, 2}, {spent{1, 6}, 0}, {spent{2, 3}, 3}, {spent{2, 3}, 0}} {
		if got := w.fresh("named", c.now); got != c.want {
			t.Errorf("%+v: %v, not %v", c.now, got, c.want)
		}
	}
}

// Goal: a report that is told again, because its answer was lost, is counted once; one of another service, or of the service's next life, is another.
func TestReportsCountOnce(t *testing.T) {
	w := newWorked()
	for i, c := range []struct {
		service string
		r       report
		want    bool
	}{{"named", report{1, 1}, true}, {"named", report{1, 1}, false}, {"named", report{1, 2}, true}, {"s3d", report{2, 1}, true}, {"named", report{1, 1}, false}, {"named", report{3, 1}, true}, {"named", report{3, 1}, false}} {
		if got := w.news(c.service, c.r); got != c.want {
			t.Errorf("%d: %+v of %s: %v, want %v", i, c.r, c.service, got, c.want)
		}
	}
}

// Goal: what sigmad answers procs of a realm is in the realm's usage, and so is what a service tells, in both lines and metrics; a proc may not tell.
func TestServedIsTold(t *testing.T) {
	m := boot(t)
	worker := m.worker(m.connect(sigma.DefaultRealm))
	for range 50 {
		if _, err := worker.Stat(t.Context(), "/bin"); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	m.k.countServed(now)
	m.k.countWork(now, serviceS3, 3*time.Second, []sigma.Work{{Realm: sigma.DefaultRealm, Requests: 7, In: 70, Out: 700, CPU: time.Second}, {Realm: sigma.SystemRealm, CPU: 2 * time.Second}})
	us := objects[state.RealmUsage](t, worker, "/sys/usage")
	if len(us) != 1 || us[0].Requests < 50 || us[0].Served <= 0 || us[0].ServedIn == 0 || us[0].ServedOut == 0 {
		t.Fatalf("the usage is %+v", us)
	}
	if want := (state.ServicesUse{S3d: state.ServiceUse{Requests: 7, CPU: 1, In: 70, Out: 700}}); us[0].Services != want {
		t.Errorf("of services %+v", us[0].Services)
	}
	text, err := m.k.metricsText(t.Context())
	if want := `sigma_service_requests_total{service="s3d",realm="default"} 7`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the metrics lack %s: %v", want, err)
	}
	number, works := uint64(1), []sigma.Work{{Realm: sigma.DefaultRealm, Requests: 1}}
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.U64(&number); c.Works(&works) })
	if err != nil {
		t.Fatal(err)
	}
	r := &root{tree: &tree{k: m.k, principal: sigma.Principal{Realm: sigma.DefaultRealm, Proc: sigma.NewProcID()}}, realm: sigma.DefaultRealm}
	if _, _, err := r.workedCall(t.Context(), payload); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a proc told of work: %v", err)
	}
}

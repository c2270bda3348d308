//go:build system

package machine

import (
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: with two bescheds, what waits at one that is killed waits at the other, is started once,
// and is answered; both take part again when it is back. One realm's hundreds of procs that wait do
// not keep another's from its turn.
func TestTwoBescheds(t *testing.T) {
	ctx := testContext(t)
	s := testenv.Boot(t, testenv.Options{Bescheds: 2})
	s.Must(t, "realm", "create", "other")
	rs := map[sigma.RealmID]*realm{}
	for _, id := range []sigma.RealmID{defaultRealm, "other"} {
		rs[id] = &realm{s.Connect(ctx, t, id), t, ctx, s, map[string]string{}}
	}
	r := rs[defaultRealm]
	large := r.descriptor("probe.c", "leave")
	large.Memory = sigma.Bytes(r.metric("sigma_schedd_memory_capacity_bytes")) &^ 0xffff
	waiting := func(want int) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprintf("%d procs wait", want), func() error {
			text, _, err := r.Get(ctx, "/sys/queues")
			if err != nil {
				return err
			}
			if !strings.Contains(string(text), fmt.Sprintf(`"waiting":%d,`, want)) {
				return fmt.Errorf("the queues are %s", text)
			}
			return nil
		})
	}
	const many = 300
	for _, killed := range []string{"besched-2", "besched", ""} {
		filler := r.spawn(large)[0]
		r.wrote(filler, "ready")
		d := r.descriptor("probe.c", "exit", "5")
		var ds []sigma.Descriptor
		for range many {
			ds = append(ds, d)
		}
		queued := r.spawn(ds...)
		other := rs["other"].spawn(rs["other"].descriptor("probe.c", "exit", "6"))
		waiting(many)
		if killed != "" {
			s.Kill9(t, killed)
			waiting(many)
		}
		if err := r.Evict(ctx, filler, 0); err != nil {
			t.Fatal(err)
		}
		if st := rs["other"].wait(other[0]); st.ExitCode != 6 {
			t.Errorf("the other realm's proc: %+v", st)
		}
		for _, id := range queued {
			if st := r.wait(id); st.ExitCode != 5 {
				t.Fatalf("%s: %+v", id, st)
			}
		}
		if killed != "" {
			testenv.Eventually(t, killed+" is back", func() error {
				if text := s.Must(t, "status"); strings.Count(text, "besched") != 2 ||
					strings.Contains(text, "starting") || strings.Contains(text, "restarting") {
					return fmt.Errorf("status is %s", text)
				}
				return nil
			})
		}
	}
	for _, id := range []string{"besched", "besched-2"} {
		r.restarted(id)
	}
}

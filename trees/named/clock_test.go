package named

import (
	"strings"
	"testing"
	"time"
)

// Goal: what ends leases is measured by the monotonic clock, which nobody sets: when a lease is
// granted, when it is renewed, and when its realm is loaded anew. That nothing on the way loses
// that reading is a rule of internal/tidy.
func TestClock(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	root := attach(t, s)
	id, err := root.Lease(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, root *file) {
		t.Helper()
		var deadline time.Time
		if err := root.readLed(t.Context(), func(_ *leader, tr *tree) error {
			deadline = tr.leases[id].deadline
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(deadline.String(), " m=") { // as documented, only where there is a monotonic reading
			t.Errorf("a lease that was %s ends by the wall clock, at %v", what, deadline)
		}
	}
	check("granted", root)
	if err := root.Renew(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	check("renewed", root)
	stop()
	s, _ = serve(t, Config{Store: store})
	check("loaded", attach(t, s))
}

//go:build system

package machine

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: procs that ask for watches without end are refused beyond their sessions' limits, and told
// so; sigmad and named stay small, another realm is served meanwhile, and nothing is left of it.
func TestWatchesWithoutEnd(t *testing.T) {
	const procs, mostKiB = 4, 400 << 10 // of each daemon beyond what it had: 16,384 requests that wait, at about 15 KiB
	r := connect(t, defaultRealm)
	s := r.s
	s.Must(t, "realm", "create", "watch-other")
	defer s.Must(t, "realm", "rm", "--force", "watch-other")
	put(r.ctx, t, r, "/watched-much", "x", sigma.PutOptions{})
	defer s.Must(t, "rm", "/watched-much")
	daemons := []string{"sigmad", "named"}
	before := map[string]int{}
	for _, d := range daemons {
		before[d] = residentKiB(t, s.PID(d))
	}
	var ids []sigma.ProcID
	for range procs {
		d := r.descriptor("goprobe", "watches", "/watched-much")
		d.Memory = 512 * sigma.MiB
		ids = append(ids, r.spawn(d)...)
	}
	other := s.Connect(r.ctx, t, "watch-other")
	for i := range 50 {
		if _, err := other.Put(r.ctx, "/mine", fmt.Append(nil, i), sigma.PutOptions{}); err != nil {
			t.Errorf("another realm, meanwhile: %v", err)
		}
	}
	for _, id := range ids {
		testenv.Eventually(t, "all that may wait do", func() error {
			out, _, err := r.Get(r.ctx, "/proc/"+string(id)+"/stdout")
			var refused, others int
			if _, serr := fmt.Sscanf(string(out), "%d refused, %d others", &refused, &others); serr != nil {
				return errors.Join(err, serr)
			}
			if refused == 0 || others > 0 {
				t.Fatalf("it says %q", out)
			}
			return nil
		})
	}
	for _, d := range daemons {
		is := residentKiB(t, s.PID(d))
		t.Logf("%s has %d KiB more", d, is-before[d])
		if is > before[d]+mostKiB {
			t.Errorf("%s had %d KiB and has %d", d, before[d], is)
		}
	}
	if b, _, err := other.Get(sigma.WithSync(r.ctx), "/mine"); string(b) != "49" || err != nil {
		t.Errorf("another realm, meanwhile: %q, %v", b, err)
	}
	for _, id := range ids {
		if err := r.Kill(r.ctx, id); err != nil {
			t.Error(err)
		}
		r.wait(id)
	}
	put(r.ctx, t, r, "/watched-much", "y", sigma.PutOptions{})
}

// residentKiB is how much memory a process has.
func residentKiB(t *testing.T, pid int) (kib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(b), "\nVmRSS:")
	if _, serr := fmt.Sscan(after, &kib); err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	return kib
}

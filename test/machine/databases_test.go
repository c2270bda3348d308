//go:build system

package machine

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
)

// Goal: statements that nothing inside the engine can end harm no other realm: another realm's
// statements are answered by a process of its own, and the process of the first is killed soon
// after the clients gave up, and started anew. Method: one step of SQLite that takes minutes (instr
// of two long strings), eight at once, of a realm whose clients leave at once.
func TestStatementThatNothingEnds(t *testing.T) {
	s := shared.Get(t)
	for _, realm := range []string{"endless", "quick"} {
		s.Must(t, "realm", "create", realm)
		defer s.Must(t, "realm", "rm", "--force", realm)
	}
	endless, quick := s.Connect(t.Context(), t, "endless"), s.Connect(t.Context(), t, "quick")
	for _, c := range []interface {
		Mkdir(context.Context, string, uint32) error
	}{endless, quick} {
		if err := c.Mkdir(t.Context(), "/db/d", 0o777); err != nil {
			t.Fatal(err)
		}
	}
	pool := database.Open(quick, "/db/d")
	defer pool.Close()
	one := func() error {
		var n int
		return pool.QueryRowContext(t.Context(), "select 1").Scan(&n)
	}
	if err := one(); err != nil {
		t.Fatal(err)
	}
	first, other := s.PID("dbd/endless"), s.PID("dbd/quick")
	if first == 0 || other == 0 || first == other {
		t.Fatalf("the realms' databases are served by processes %d and %d, want one for each", first, other)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	over := make(chan error)
	for range 8 {
		go func() {
			p := database.Open(endless, "/db/d")
			defer p.Close()
			var n int
			over <- p.QueryRowContext(ctx,
				"select instr(printf('%.8000000c', 'a'), printf('%.4000000c', 'a') || 'b')").Scan(&n)
		}()
	}
	for range 8 {
		if err := <-over; err == nil {
			t.Error("the statement ended by itself: the test needs a longer one")
		}
	}
	if s.PID("dbd/endless") != first {
		t.Fatal("the statements do not run")
	}
	testenv.Eventually(t, "the statements' process is killed", func() error {
		if err := one(); err != nil {
			t.Errorf("another realm's statement: %v", err)
		}
		if err := syscall.Kill(first, 0); err == nil {
			return fmt.Errorf("process %d lives", first)
		}
		return nil
	})
	if pid := s.PID("dbd/quick"); pid != other {
		t.Errorf("another realm's dbd is process %d, was %d", pid, other)
	}
	var n int
	again := database.Open(endless, "/db/d")
	defer again.Close()
	testenv.Eventually(t, "the realm's databases are served again", func() error {
		return again.QueryRowContext(t.Context(), "select 1").Scan(&n)
	})
	if u := s.Must(t, "usage", "--json", string(sigma.RealmID("endless"))); u == "" {
		t.Error("nothing was charged")
	}
}

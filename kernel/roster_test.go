package kernel

import (
	"context"
	"testing"
	"time"

	"sigmaos.dev/kernel/roles"
)

// Goal: while no machined answers, /sys/roster tells what this machine knows, and machined is not
// asked anew for each who looks; nor does one who gives up spoil what the others are told.
func TestRosterText(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"})
	k := w.machines["m2"].k
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{gone, t.Context()} {
		text, err := k.roster.Text(ctx)
		if want := "m1 alive\nm2 alive\n"; err != nil || string(text) != want {
			t.Errorf("got %q, %v, want %q", text, err, want)
		}
		// the next who asks comes in time, however slow this host is
		if !k.memo.Prolong(roles.Roster, time.Hour) {
			t.Error("the next who asks waits for machined again")
		}
	}
}

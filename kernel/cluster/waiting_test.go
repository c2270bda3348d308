package cluster

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
)

// Goal: who boots is told which control machines are missing, as soon as they are known not to
// answer, and not who is missing without need.
func TestWaitsFor(t *testing.T) {
	three := []identity.Member{{Machine: "m1", Address: "a:1"}, {Machine: "m2", Address: "b:1"},
		{Machine: "m3", Address: "c:1"}}
	for _, c := range []struct {
		control, silent []identity.Member
		late            bool
		want            string
	}{
		{three, nil, false, ""},
		{three, three[2:], false, ""}, // two of three decide
		{three, three[2:], true, "one of the 2 control machines that answer to lead"},
		{three, []identity.Member{three[2], three[1]}, false,
			"1 more of the 3 control machines, without which nothing can be decided: m2 at b:1, m3 at c:1 do not " +
				"answer"},
		{three, three, true,
			"2 more of the 3 control machines, without which nothing can be decided: m1 at a:1, m2 at b:1, m3 at c:1 " +
				"do not answer"},
		{three[:1], three[:1], false,
			"1 more of the 1 control machines, without which nothing can be decided: m1 at a:1 does not answer"},
		{three[:1], nil, true, ""}, // it is the machine itself
		{nil, nil, true, ""},
	} {
		need := 0
		if len(c.control) > 0 {
			need = (&Cluster{}).majority(len(c.control))
		}
		got, missing := waitsFor(c.control, c.silent, need, c.late)
		if got != c.want || missing != strings.HasSuffix(c.want, "not answer") {
			t.Errorf("%v without %v, late %v: %q, missing %v, want %q", c.control, c.silent, c.late, got, missing,
				c.want)
		}
	}
}

// Goal: all are asked at once, and this machine is not asked by itself.
func TestUnheard(t *testing.T) {
	asked := make(chan string, 9)
	x := &Cluster{cfg: Config{Self: identity.Enrolment{Machine: "m1"},
		Links: link.Config{Connect: func(ctx context.Context, address string) (net.Conn, error) {
			asked <- address
			switch address {
			case "there":
				c, _ := net.Pipe()
				return c, nil
			case "refuses":
				return nil, errors.New("refused")
			default:
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}}}}
	var names []sigma.MachineID
	for _, m := range x.unheard(t.Context(), []identity.Member{{Machine: "m1", Address: "own"},
		{Machine: "m2", Address: "drops"}, {Machine: "m3", Address: "there"}, {Machine: "m4", Address: "refuses"}}) {
		names = append(names, m.Machine)
	}
	if len(names) != 2 || names[0] != "m2" || names[1] != "m4" || len(asked) != 3 {
		t.Errorf("%v do not answer, of %d asked", names, len(asked))
	}
}

// Goal: what is no longer so is taken back, and a machine that is refused is told that, and not
// that it waits for others, until it is registered.
func TestTellWaits(t *testing.T) {
	type told struct {
		what    string
		missing bool
	}
	synctest.Test(t, func(t *testing.T) {
		var there atomic.Bool
		said := make(chan told, 9)
		x := &Cluster{own: &membership{}, cfg: Config{Self: identity.Enrolment{Machine: "m1"},
			Waits: func(what string, missing bool) { said <- told{what, missing} },
			Links: link.Config{Connect: func(context.Context, string) (net.Conn, error) {
				if !there.Load() {
					return nil, errors.New("refused")
				}
				c, _ := net.Pipe()
				return c, nil
			}}}}
		x.own.keeper.now.Control = []identity.Member{{Machine: "m1", Address: "a:1"}, {Machine: "m2", Address: "b:1"}}
		x.own.between.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		var over sync.WaitGroup
		over.Go(func() { x.tellWaits(ctx) })
		next := func(want told) {
			t.Helper()
			if got := <-said; got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		next(told{"1 more of the 2 control machines, without which nothing can be decided: m2 at b:1 does not answer",
			true})
		there.Store(true)
		next(told{"", false})
		next(told{"one of the 2 control machines that answer to lead", false})
		x.noteRefusal(&sigma.Error{Op: "x", Kind: sigma.KindPermission, Msg: "m1 was removed", Hint: "make a token"})
		x.noteRefusal(sigma.Errorf("x", sigma.KindUnavailable, "away")) // does not take it back
		next(told{"a registration, which is refused: m1 was removed; make a token", false})
		x.noteRefusal(nil)
		next(told{"one of the 2 control machines that answer to lead", false})
		x.own.between.Store(false) // it is not that which the boot waits for now
		next(told{"", false})
		cancel()
		over.Wait()
	})
}

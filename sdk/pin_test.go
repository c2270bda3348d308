package sdk

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: of 1,000 transactions of several connections each, at members that refuse what they did not
// see begin, none is refused while members come and go all the time; what was lost is told as lost,
// and only of members that went.
func TestPinned(t *testing.T) {
	s := &system{listed: func() {}}
	var dead sync.Map
	last := s.dialled(&dead)
	c := s.connect(t)
	for i := range 3 {
		s.join(t, i)
	}
	d := c.Dialer("/d")
	lost := 0
	for i := range 1000 {
		p, err := d.Pin(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		gone, next := i%10 == 5, i/10+3
		for step := range 4 {
			if gone && step == 2 { // it dies in the middle, and another joins
				dead.Store(p.m.endpoint.ID, true)
				s.join(t, next)
				if err := s.writer.Remove(t.Context(), "/d/"+p.Member()); err != nil {
					t.Fatal(err)
				}
			}
			conn, err := p.DialContext(t.Context(), "tcp", "server:1")
			switch {
			case err == nil:
				conn.Close()
				if last() != p.m.endpoint || gone && step >= 2 {
					t.Fatalf("step %d of a transaction at %s went to %v", step, p.Member(), last())
				}
			case gone && step >= 2 && sigma.KindOf(err) == sigma.KindLost:
				lost++
			default:
				t.Fatalf("step %d of transaction %d at %s: %v", step, i, p.Member(), err)
			}
		}
		if gone {
			p := p.Member()
			until(t, "the end of "+p, func() bool {
				s := d.now.Load()
				for _, m := range s.members {
					if m.name == p {
						return false
					}
				}
				return true
			})
		}
	}
	if lost != 200 {
		t.Errorf("%d dials were lost, want 200", lost)
	}
}

// Goal: one that left and still accepts is connected to; one that is there and cannot be reached is
// not lost; of nobody there is no pin, and with a policy that wants members it is waited for.
func TestPinnedEnds(t *testing.T) {
	s := &system{listed: func() {}}
	var dead sync.Map
	s.dialled(&dead)
	c := s.connect(t)
	d := c.Dialer("/d")
	if _, err := d.Pin(t.Context(), ""); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("nobody: %v", err)
	}
	if err := c.SetPolicy(t.Context(), "/d", Policy{Choice: ChoiceHash, Wanted: true}); err != nil {
		t.Fatal(err)
	}
	go func() {
		until(t, "who waits", func() bool { return d.awaits.Load() == 1 })
		s.join(t, 0)
	}()
	p, err := d.Pin(t.Context(), "key")
	if err != nil || p.Member() != "0" {
		t.Fatalf("%+v, %v", p, err)
	}
	dead.Store(endpoint(0).ID, true)
	if _, err := p.Dial(t.Context(), ""); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("a member that cannot be reached now: %v", err)
	}
	dead.Delete(endpoint(0).ID)
	s.leave(t, 0)
	conn, err := p.Dial(t.Context(), "")
	if err != nil {
		t.Fatalf("one that left and accepts: %v", err)
	}
	conn.Close()
	dead.Store(endpoint(0).ID, true)
	if err := s.writer.RemoveAll(t.Context(), "/d"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Dial(t.Context(), ""); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("with its directory: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	<-ctx.Done()
	if _, err := p.Dial(ctx, ""); sigma.KindOf(err) != sigma.KindTimeout {
		t.Errorf("late: %v", err)
	}
}

// Goal: a member is found by its name while it is one, at once when it has come, and a choice by a
// key when no name is given.
func TestFind(t *testing.T) {
	s := &system{listed: func() {}}
	var dead sync.Map
	last := s.dialled(&dead)
	c := s.connect(t)
	s.join(t, 0)
	d := c.Dialer("/d")
	any, _, err := d.Find(t.Context(), "", "k")
	if err != nil {
		t.Fatal(err)
	}
	d.Find(t.Context(), "", "k") // it is followed from now on
	s.join(t, 1)
	p, err := d.Pin(t.Context(), "k")
	if err != nil || any == "" {
		t.Fatal(err)
	}
	members, err := d.Members(t.Context())
	if err != nil || len(members) != 2 {
		t.Fatal(members, err)
	}
	for name := range members {
		found, dial, err := d.Find(t.Context(), name, "")
		if err != nil || found != name {
			t.Fatalf("%s is %q, %v", name, found, err)
		}
		conn, err := dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if p.Member() == name && last() != p.m.endpoint {
			t.Errorf("dialled %v for %s", last(), name)
		}
	}
	if _, _, err := d.Find(t.Context(), "nobody", ""); sigma.KindOf(err) != sigma.KindNotFound {
		t.Error(err)
	}
}

package sdk

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// dialled has s take note of whom is dialled; those that are in dead cannot be reached.
func (s *system) dialled(dead *sync.Map) (last func() sigma.Endpoint) {
	var at atomic.Pointer[sigma.Endpoint]
	s.dial = func(_ context.Context, e sigma.Endpoint) error {
		at.Store(&e)
		if _, is := dead.Load(e.ID); is {
			return sigma.Errorf("test", sigma.KindUnavailable, "nobody listens there")
		}
		return nil
	}
	return func() sigma.Endpoint { return *at.Load() }
}

func dial(t *testing.T, d *Dialer, key string) net.Conn {
	t.Helper()
	c, err := d.DialKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// until waits for a condition that will come true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// Goal: a Dialer that is used again lists no more at a dial, and sees who comes and goes, what
// replaces an endpoint that has died, and each policy; what begins with a dot is no member. The
// client's end ends the watch.
func TestDialerWatches(t *testing.T) {
	var listings atomic.Int32
	s := &system{listed: func() { listings.Add(1) }}
	var dead sync.Map
	last := s.dialled(&dead)
	c := s.connect(t)
	for i := range 3 {
		s.join(t, i)
	}
	if _, err := s.writer.Put(t.Context(), "/d/.hidden", []byte(endpoint(9).String()),
		sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		t.Fatal(err)
	}
	d := c.Dialer("/d")
	dial(t, d, "").Close()
	if d.now.Load() != nil {
		t.Error("the directory is watched after one dial")
	}
	dial(t, d, "").Close()
	first := d.now.Load()
	until(t, "the first listing of the watch", func() bool { return d.now.Load() != first })
	before, began, seen := listings.Load(), time.Now(), map[sigma.Endpoint]int{}
	for range 300 {
		dial(t, d, "").Close()
		seen[last()]++
	}
	if n := listings.Load() - before; int(n) > 1+int(time.Since(began)/watchTick) {
		t.Errorf("300 dials made %d listings", n)
	}
	for i := range 3 {
		if seen[endpoint(i)] != 100 {
			t.Errorf("member %d was dialled %d times of 300", i, seen[endpoint(i)])
		}
	}
	s.join(t, 3)
	until(t, "a new member", func() bool { dial(t, d, "").Close(); return last() == endpoint(3) })
	for i := range 3 {
		s.leave(t, i)
	}
	until(t, "the end of the others", func() bool { return len(d.now.Load().members) == 1 })

	// another endpoint under the same name, without a change of the directory
	dead.Store(endpoint(3).ID, true)
	if _, err := s.writer.Put(t.Context(), "/d/3", []byte(endpoint(33).String()),
		sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		t.Fatal(err)
	}
	if dial(t, d, "").Close(); last() != endpoint(33) {
		t.Errorf("%v was dialled", last())
	}
	for _, p := range []string{`{"choice":"random"}`, `{"choice":"hash"}`, `{"choice":"of another version"}`,
		`{"choice":"least"}`} {
		want, _ := ParsePolicy([]byte(p))
		if _, err := s.writer.Put(t.Context(), "/d/.policy", []byte(p), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, p, func() bool { return d.now.Load().policy.Choice == want.Choice })
	}
	if err := s.writer.Remove(t.Context(), "/d/.policy"); err != nil {
		t.Fatal(err)
	}
	until(t, "no policy", func() bool { return d.now.Load().policy.Choice == "" })
	c.Close()
	if d.now.Load() != nil {
		t.Error("the watch outlives the client")
	}
}

// Goal: with two-choices and least a connection counts until it is closed, and whoever has it can
// do with it what can be done with any other.
func TestDialerCounts(t *testing.T) {
	s := &system{listed: func() {}}
	last := s.dialled(&sync.Map{})
	c := s.connect(t)
	for i := range 3 {
		s.join(t, i)
	}
	if err := c.SetPolicy(t.Context(), "/d", Policy{Choice: ChoiceLeast}); err != nil {
		t.Fatal(err)
	}
	d := c.Dialer("/d")
	of := map[sigma.Endpoint][]net.Conn{}
	for range 30 {
		c := dial(t, d, "")
		if _, ok := c.(*Conn); !ok {
			t.Fatalf("a connection is a %T", c)
		}
		of[last()] = append(of[last()], c)
	}
	for e, cs := range of {
		if len(cs) != 10 {
			t.Errorf("%s has %d connections of 30", e.ID, len(cs))
		}
	}
	for _, c := range of[endpoint(1)] {
		c.Close()
		c.Close() // again, which is not counted again
	}
	for range 10 {
		if c := dial(t, d, ""); last() != endpoint(1) {
			t.Errorf("%v was dialled, and has 10 connections", last())
		} else {
			defer c.Close()
		}
	}
	for _, e := range []sigma.Endpoint{endpoint(0), endpoint(2)} {
		for _, c := range of[e] {
			c.Close()
		}
	}
}

// Goal: a dial to an empty directory whose policy says so asks for a member and gets it as soon as
// it is there, also when somebody takes the file away; else it ends with its context.
func TestDialerWanted(t *testing.T) {
	s := &system{listed: func() {}}
	s.dialled(&sync.Map{})
	c := s.connect(t)
	if err := c.SetPolicy(t.Context(), "/d", Policy{Wanted: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Dialer("/d").Dial(ctx, ""); sigma.KindOf(err) != sigma.KindTimeout ||
		!strings.Contains(sigma.HintOf(err), "coordinator") || !strings.Contains(err.Error(), ".wanted") {
		t.Errorf("nobody comes: %v, hint %q", err, sigma.HintOf(err))
	}
	wanted := func() bool { _, err := s.writer.Stat(t.Context(), "/d/.wanted"); return err == nil }
	if !wanted() {
		t.Error("nobody was asked for")
	}
	d := c.Dialer("/d")
	for round := range 2 { // the watch is there after the first
		var dials sync.WaitGroup
		for range 10 {
			dials.Go(func() {
				conn, err := d.Dial(t.Context(), "")
				if err != nil {
					t.Error(err)
					return
				}
				conn.Close()
			})
		}
		until(t, "who waits", func() bool { return d.awaits.Load() == 10 })
		until(t, "the file", wanted)
		if err := s.writer.Remove(t.Context(), "/d/.wanted"); err != nil {
			t.Error(err)
		}
		if round == 0 {
			until(t, "the file", wanted)
		}
		s.join(t, round)
		dials.Wait()
		s.leave(t, round)
		until(t, "the end of the member", func() bool { return len(d.now.Load().members) == 0 })
	}
	go func() { // a policy that does not want any more
		until(t, "who waits", func() bool { return d.awaits.Load() == 1 })
		if err := c.SetPolicy(t.Context(), "/d", Policy{}); err != nil {
			t.Error(err)
		}
	}()
	if _, err := d.Dial(t.Context(), ""); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("a policy that wants nobody: %v", err)
	}
}

// Goal: while the names do not answer the Dialer goes on with what it saw last, and when they do it
// sees what has changed meanwhile.
func TestDialerAway(t *testing.T) {
	s := &system{listed: func() {}}
	s.dialled(&sync.Map{})
	var away atomic.Bool
	s.refuse = func() error {
		if away.Load() {
			return sigma.Errorf("test", sigma.KindUnavailable, "the names are away")
		}
		return nil
	}
	c := s.connect(t)
	s.join(t, 0)
	d := c.Dialer("/d")
	dial(t, d, "").Close()
	dial(t, d, "").Close()
	first := d.now.Load()
	until(t, "the first listing of the watch", func() bool { return d.now.Load() != first })
	away.Store(true)
	s.join(t, 1) // which the watch notices, and cannot list
	for range 100 {
		dial(t, d, "").Close()
		<-time.After(time.Millisecond)
	}
	if n := len(d.now.Load().members); n != 1 {
		t.Errorf("%d members are known", n)
	}
	away.Store(false)
	until(t, "the other member", func() bool { dial(t, d, "").Close(); return len(d.now.Load().members) == 2 })
}

// Goal: members and policies that change all the time are seen by dials that run meanwhile, none of
// which fails as long as somebody is there.
func TestDialerChurn(t *testing.T) {
	s := &system{listed: func() {}}
	var dead sync.Map
	s.dialled(&dead)
	c := s.connect(t)
	s.join(t, 0)
	d := c.Dialer("/d")
	over := make(chan struct{})
	var dials sync.WaitGroup
	for worker := range 4 {
		dials.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-over:
					return
				default:
				}
				conn, err := d.DialKey(t.Context(), fmt.Sprint(worker, i))
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				if i%3 > 0 {
					conn.Close()
				}
			}
		})
	}
	for i := 1; i < 100; i++ {
		s.join(t, i)
		s.leave(t, i-1)
		dead.Store(endpoint(i-1).ID, true)
		p := Policy{Choice: choices[i%len(choices)], Weights: map[string]uint32{fmt.Sprint(i): 1}}
		if err := c.SetPolicy(t.Context(), "/d", p); err != nil {
			t.Error(err)
		}
	}
	close(over)
	dials.Wait()
}

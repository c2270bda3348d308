package replica

import (
	"testing"
	"time"

	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// slowElections is a group whose members wait for a silent leader for ten seconds at least.
func slowElections(c *Config) { c.Tick, c.ElectionTicks, c.Lease = 10*time.Millisecond, 1000, true }

// Members that are told that the leader has ended elect another at once, also while the leader's
// lease lasts. Who asks a member meanwhile waits and is sent to the new leader.
func TestEnded(t *testing.T) {
	n := newNetwork(t, 1)
	all := n.group(t, 3, "", slowElections)
	wait(t, "all know their first leader", func() bool {
		all[2].mu.Lock()
		if st := all[2].node.BasicStatus(); st.Lead == 0 {
			all[2].node.Campaign()
		}
		all[2].mu.Unlock()
		all[2].signal()
		return all[1].Status().Leader == 2 && all[3].Status().Leader == 2 && all[2].Leads()
	})
	propose(t, all, Session{}, "a=1")
	term := all[1].Status().Term
	all[2].stop()
	delete(all, 2)
	if _, err := all[1].Propose(t.Context(), Session{}, nil); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("got %v, want a redirection to the former leader", err)
	}
	asked := make(chan error, 1)
	began := time.Now()
	for _, s := range all {
		s.Ended(2, term-1) // of another term
		s.Ended(9, term)   // of another member
	}
	all[3].Ended(2, term)
	go func() {
		_, err := all[3].Propose(t.Context(), Session{}, []byte("a=2"))
		asked <- err
	}()
	all[1].Ended(2, term)
	err := <-asked
	if name, redirected := call.Owner(err); err != nil && (!redirected || name != "m1") {
		t.Errorf("got %v, want a redirection to m1", err)
	}
	l := leader(t, all)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the election took %v", took)
	}
	if l.machine.get("a") == "" {
		t.Error("a write was lost")
	}
	l.Ended(2, term) // too late
	if !l.Leads() {
		t.Error("it leads no more")
	}
}

// A member whose predecessor in the order of IDs does not stand for election takes its turn.
func TestEndedTurn(t *testing.T) {
	n := newNetwork(t, 1)
	all := n.group(t, 5, "", func(c *Config) { c.Tick, c.ElectionTicks = 10*time.Millisecond, 100 })
	l := leader(t, all)
	wait(t, "all know the leader", func() bool {
		for _, s := range all {
			if s.Status().Leader != l.cfg.ID {
				return false
			}
		}
		return true
	})
	term := l.Status().Term
	l.stop()
	delete(all, l.cfg.ID)
	last := uint64(0)
	for id := range all {
		last = max(last, id)
	}
	began := time.Now()
	all[last].Ended(l.cfg.ID, term)
	wait(t, "the last one leads", func() bool { return all[last].Leads() })
	t.Log("after", time.Since(began))
}

package member

import (
	"context"
	"sync"

	"sigmaos.dev/lib/replica"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// leader carries the latest status of the group to watchLeader.
type leader struct{ news chan replica.Status }

func newLeader() leader { return leader{make(chan replica.Status, 1)} }

// changed is replica.Config.Changed. It never blocks.
func (l leader) changed(st replica.Status) {
	select {
	case <-l.news:
	default:
	}
	l.news <- st // one goroutine sends
}

// watchLeader waits for the end of the proc that leads, until ctx ends. The system tells of it
// earlier than the leader's silence would, and for certain.
func (m *Member) watchLeader(ctx context.Context) {
	var waits sync.WaitGroup
	defer waits.Wait()
	stop := context.CancelFunc(func() {})
	defer func() { stop() }()
	for {
		var st replica.Status
		select {
		case st = <-m.leader.news:
		case <-ctx.Done():
			return
		}
		stop()
		waiting, cancel := context.WithCancel(ctx)
		stop = cancel
		if st.LeaderName != "" && st.Leader != m.id {
			waits.Go(func() { m.awaitEnd(waiting, st) })
		}
	}
}

// awaitEnd tells the replica when the proc of a leader has ended. A proc that is lost with its
// machine may run on, as far as is known here.
func (m *Member) awaitEnd(ctx context.Context, st replica.Status) {
	for {
		s, err := m.c.WaitExit(ctx, sigma.ProcID(st.LeaderName))
		switch {
		case err == nil && s.Code != sigma.StatusLost && s.Code != sigma.StatusNone:
			m.replica.Ended(st.Leader, st.Term)
			return
		case err == nil, !sigma.KindOf(err).Retryable(), !retry.Pause(ctx, againPause):
			return
		}
	}
}

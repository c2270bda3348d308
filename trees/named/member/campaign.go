package member

import (
	"context"
	"errors"
	"time"

	"sigmaos.dev/sigma/retry"
)

// pollPause is between looks of a member that does not lead at who does.
const pollPause = 50 * time.Millisecond

// campaign waits until this member leads. ok is false if ctx ended before.
func (m *Member) campaign(ctx context.Context, s *etcdStore) (t term, ok bool) {
	// etcd's own word that it is ready may come late: a member that got its first state as a
	// snapshot waits for an answer that was in it. A leader of the members and this transaction's
	// majority are enough.
	w := watcher{timing: m.cfg.Timing, self: m.cfg.Machine}
	for {
		seen, err := s.look(ctx, m.cfg.Machine)
		if errors.Is(err, errRemoved) {
			m.retire(ctx)
			return t, false
		}
		if err != nil &&
			s.etcd == nil { // whoever leads had no chance to beat either, and gets one before he is replaced
			m.know("")
			w.due(outlook{now: time.Now(), term: seen})
		}
		if err == nil {
			v := m.outlook(s, seen)
			due := w.due(v)
			if leader := w.leader(v); leader == "" || !v.alone {
				m.know(leader)
			}
			if due && seen.beatless() && seen.machine != m.cfg.Machine {
				tctx, cancel := context.WithTimeout(ctx, commitTry)
				if err := s.restoreBeat(tctx, seen); err != nil { // who leads, or led, has said why
					m.log.Debug("the store of names is full, or does not answer", "err", err)
				}
				cancel()
				w.beatSeen, due = time.Now(), false // and not again for a while
			}
			if due {
				began := time.Now()
				tctx, cancel := context.WithTimeout(ctx, commitTry)
				t, ok, err = s.take(tctx, seen, m.cfg.Machine)
				cancel()
				if ok {
					t.began = began
					if v.alone &&
						!s.alone() {
						// the log told of others only now; one that led among them may still answer
						// from memory
						t.began = time.Now().Add(m.cfg.Timing.Patience)
						return t, retry.Pause(ctx, m.cfg.Timing.Patience)
					}
					return t, true
				}
			}
		}
		if ctx.Err() == nil {
			m.troubled(err)
		}
		if !retry.Pause(ctx, pollPause) {
			return t, false
		}
	}
}

// outlook is what m sees now.
func (m *Member) outlook(s *etcdStore, seen term) outlook {
	now := time.Now()
	v := outlook{now: now, term: seen, alone: s.alone(), abstains: m.abstains(now),
		heard: m.net.lastHeard(seen.machine)}
	if s.etcd == nil {
		// that it answers means that its members have a leader; which of this system's machines
		// reaches it first leads
		v.raftLeader, v.first = 1, true
		return v
	}
	v.raftLeader, v.learner = uint64(s.etcd.Server.Leader()), learning(s)
	v.first = s.etcd.Server.Leader() == s.etcd.Server.MemberID()
	return v
}

// alone looks whether this member is the only one, and notes it. Of an external etcd that is never
// known.
func (s *etcdStore) alone() bool {
	if s.etcd == nil {
		s.several.Store(true)
		return false
	}
	ms := s.etcd.Server.Cluster().Members()
	alone := len(ms) == 1 && ms[0].ID == s.etcd.Server.MemberID()
	s.several.Store(!alone)
	return alone
}

// learning tells whether this member has no vote yet. One that was stopped right after it joined
// does not find itself among the members at first, and etcd panics when it is asked then.
func learning(s *etcdStore) bool {
	me := s.etcd.Server.Cluster().Member(s.etcd.Server.MemberID())
	return me == nil || me.IsLearner
}

func (m *Member) abstains(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Before(m.abstain)
}

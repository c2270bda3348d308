package replica

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// votes is what a member heeds beside raft's rules when it votes.
type votes struct {
	mute   int   // ticks during which it gives none
	former ended // the latest leader of which Ended was told
}

// ended is a leader whose process has ended. Its zero value is none.
type ended struct {
	id, term uint64
	ticks    int // until this member stands for election
}

// Ended says that the process of the member that led in a term has ended. The caller must know it
// for certain, as from the system that ran the process: a leader that cannot be reached may live,
// and answer reads by its lease. If the group has no leader since, the members elect one at once
// and do not wait until the lease is over. They take turns by their IDs, so that votes are not
// split.
func (r *Replica) Ended(id, term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.node == nil || r.err != nil || r.soft.Lead != id || r.lastTerm != term {
		return
	}
	voters := slices.Sorted(slices.Values(r.core.conf.Voters))
	voters = slices.DeleteFunc(voters, func(v uint64) bool { return v == id })
	turn := slices.Index(voters, r.cfg.ID)
	if turn < 0 {
		return
	}
	r.votes.former = ended{id, term, turn * max(2, r.cfg.ElectionTicks/4)}
	r.tellLocked()
	if turn == 0 {
		r.guard(r.succeedLocked)
		r.signal()
	}
}

// succeedLocked stands for election after the end of the leader, unless another member leads.
//
// Raft's message of a leader that hands over makes other members vote although they have heard of
// the leader lately. That is safe in the term of the leader that has ended: nobody else has a lease
// of that term. In a later term another leader may have one, so that the usual rules hold.
func (r *Replica) succeedLocked() error {
	e, st := r.votes.former, r.node.BasicStatus()
	switch {
	case st.RaftState == raft.StateLeader:
	case st.Lead == e.id && st.GetTerm() == e.term && st.RaftState == raft.StateFollower:
		r.cfg.Logger.Info("the leader has ended", "member", r.cfg.ID, "leader", e.id, "term", e.term)
		return r.node.Step(&pb.Message{Type: pb.MsgTimeoutNow.Enum(), From: new(e.id), To: new(r.cfg.ID),
			Term: new(e.term)})
	case st.Lead == raft.None:
		return r.node.Campaign()
	}
	return nil
}

// tickEndedLocked counts down to this member's turn.
func (r *Replica) tickEndedLocked() error {
	e := &r.votes.former
	if e.id == 0 || e.ticks == 0 {
		return nil
	}
	if e.ticks--; e.ticks > 0 {
		return nil
	}
	return r.succeedLocked()
}

// leaderlessLocked reports whether this member knows that nobody leads.
func (r *Replica) leaderlessLocked() bool {
	lead := r.soft.Lead
	return r.err == nil && r.node != nil && !r.leads.Load() &&
		(r.core.names[lead] == "" || lead == r.cfg.ID || lead == r.votes.former.id && r.lastTerm == r.votes.former.term)
}

// awaitLeaderLocked waits until a leader is known, at most for the time of an election: a caller
// that is sent away meanwhile would only ask again.
func (r *Replica) awaitLeaderLocked(ctx context.Context) {
	if !r.leaderlessLocked() {
		return
	}
	timer := time.NewTimer(2 * r.cfg.election())
	defer timer.Stop()
	for over := false; !over && r.leaderlessLocked(); {
		news := r.newsLocked()
		r.mu.Unlock()
		select {
		case <-news:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			over = true
		}
		r.mu.Lock()
	}
}

package replica

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"sigmaos.dev/sigma"
)

// lagMax is how many entries a new member may be behind when it gets its vote.
const lagMax = 1000

// Change makes members, their names by ID, those of the group. Only the leader can. New ones are
// added without a vote first, and vote when they have caught up; so they must run, and Change
// waits for them until ctx ends. A Change that failed can be made again, or another one. The
// leader may be left out, and stops leading then. KindBusy: another change is under way. Other
// errors are those of Propose.
func (r *Replica) Change(ctx context.Context, members map[uint64]string) error {
	const op = "replica.Change"
	if err := checkMembers(op, members); err != nil {
		return err
	}
	if r.cfg.Transport == nil && (len(members) > 1 || members[r.cfg.ID] == "") {
		return sigma.Errorf(op, sigma.KindInvalid, "a member without a transport is alone in its group")
	}
	members = maps.Clone(members)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changing {
		return sigma.Errorf(op, sigma.KindBusy, "another change of members is under way")
	}
	r.changing = true
	defer func() {
		r.changing = false
		r.signal()
	}()
	if r.settledLocked(members) {
		return nil
	}
	if err := r.leaveSoloLocked(); err != nil {
		return err
	}
	var asked time.Time // when the last step was proposed
	for {
		if r.settledLocked(members) {
			return nil
		}
		if !r.leads.Load() {
			return r.notLeaderLocked()
		}
		next := r.nextLocked(members)
		// A step that raft refused, because another one was not over, is proposed again.
		if next != nil && time.Since(asked) > r.cfg.election() && r.soft.RaftState == raft.StateLeader {
			asked = time.Now()
			err := r.guard(func() error { return r.node.ProposeConfChange(next) })
			if err != nil && !errors.Is(err, raft.ErrProposalDropped) {
				return sigma.Wrap(op, "", err)
			}
			r.signal()
		}
		conf, news := r.core.conf, r.newsLocked()
		r.mu.Unlock()
		err := r.until(ctx, news)
		r.mu.Lock()
		if err != nil {
			return sigma.Wrap(op, "", err)
		}
		if conf != r.core.conf {
			asked = time.Time{}
		}
	}
}

// settledLocked tells whether the wanted members are those of the group.
func (r *Replica) settledLocked(wanted map[uint64]string) bool {
	conf := r.core.conf
	return maps.Equal(r.core.names, wanted) && len(conf.VotersOutgoing)+len(conf.LearnersNext)+len(conf.Learners) == 0
}

// nextLocked gives the next step from the members that there are to those that are wanted; nil = a
// step is under way, or new members are catching up.
func (r *Replica) nextLocked(wanted map[uint64]string) *pb.ConfChangeV2 {
	conf := r.core.conf
	if len(conf.VotersOutgoing)+len(conf.LearnersNext) > 0 {
		return nil
	}
	names := maps.Clone(r.core.names)
	maps.Copy(names, wanted)
	next := &pb.ConfChangeV2{}
	add := func(t pb.ConfChangeType, id uint64) {
		next.Changes = append(next.Changes, &pb.ConfChangeSingle{Type: t.Enum(), NodeId: new(id)})
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if r.core.names[id] == "" {
			add(pb.ConfChangeAddLearnerNode, id)
		}
	}
	if len(next.Changes) == 0 {
		if !r.caughtUpLocked(wanted) {
			return nil
		}
		for _, id := range slices.Sorted(maps.Keys(names)) {
			switch {
			case wanted[id] == "":
				add(pb.ConfChangeRemoveNode, id)
			case !slices.Contains(conf.Voters, id):
				add(pb.ConfChangeAddNode, id)
			case wanted[id] != r.core.names[id]:
				add(pb.ConfChangeUpdateNode, id)
			}
		}
	}
	var err error
	x := change{rand.Uint64(), names}
	if next.Context, err = encode(x.code, 64*len(names)); err != nil {
		return nil // names were checked
	}
	return next
}

// caughtUpLocked tells whether those of the wanted members that learn have almost all of the log.
func (r *Replica) caughtUpLocked(wanted map[uint64]string) bool {
	all, commit := true, r.node.BasicStatus().GetCommit()
	r.node.WithProgress(func(id uint64, t raft.ProgressType, p tracker.Progress) {
		if t == raft.ProgressTypeLearner && wanted[id] != "" {
			all = all && p.State == tracker.StateReplicate && p.Match+lagMax >= commit
		}
	})
	return all
}

// Transfer makes another member the leader, and returns when it leads. Only the leader can. Errors
// are those of Propose; KindTimeout: the other one did not take it within an election's time, and
// this one leads on.
func (r *Replica) Transfer(ctx context.Context, to uint64) error {
	const op = "replica.Transfer"
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.leads.Load():
		return r.notLeaderLocked()
	case to == r.cfg.ID:
		return nil
	case r.node == nil || !slices.Contains(r.core.conf.Voters, to):
		return sigma.Errorf(op, sigma.KindNotFound, "member %d does not vote in this group", to)
	}
	// The other one may stand for election at any time from now on, whatever this one has promised.
	r.noLease = r.lastTerm
	r.leased.Store(0)
	if err := r.guard(func() error { r.node.TransferLeader(to); return nil }); err != nil {
		return err
	}
	r.signal()
	for begun := time.Now(); r.soft.Lead != to; {
		if r.err != nil {
			return r.notLeaderLocked()
		}
		other := r.soft.Lead != 0 && r.soft.Lead != r.cfg.ID
		if wait := time.Since(begun); other || wait > 10*r.cfg.election() ||
			r.leads.Load() && wait > 2*r.cfg.election() {
			return sigma.Errorf(op, sigma.KindTimeout, "member %d did not take over", to)
		}
		news := r.newsLocked()
		r.mu.Unlock()
		err := r.until(ctx, news)
		r.mu.Lock()
		if err != nil {
			return sigma.Wrap(op, "", err)
		}
	}
	return nil
}

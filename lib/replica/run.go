package replica

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"sigmaos.dev/sigma"
)

// A turn of Run is one step of the group's work: what waits is put into the log and sent to the
// other members, the log is written, what a majority has is applied. What comes in meanwhile waits
// for the next turn, so that one write of the log is for all of it.

// Run works for the group until ctx ends, whose error it gives, or the log cannot be written. What
// waits then fails with KindLost. A group of one in memory takes commands without it.
func (r *Replica) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return sigma.Errorf("replica.Run", sigma.KindInvalid, "Run can be called once")
	}
	ctx, cancel := context.WithCancel(ctx)
	err := r.work(ctx)
	cancel()
	r.fail(err)
	r.images.sending.Wait()
	if r.disk != nil {
		r.disk.close()
	}
	return sigma.Wrap("replica.Run", r.cfg.Dir, err)
}

func (r *Replica) work(ctx context.Context) error {
	ticker := time.NewTicker(r.cfg.Tick)
	defer ticker.Stop()
	told := Status{}
	always := make(chan struct{})
	close(always)
	for {
		again, err := r.turn(ctx)
		if err != nil {
			return err
		}
		var more <-chan struct{}
		if again {
			more = always
		}
		if r.cfg.Changed != nil {
			told = r.tellChanged(told)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ended:
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.err
		case <-r.wake:
		case <-more:
		case <-ticker.C:
			if err := r.tick(); err != nil {
				return err
			}
			if err := r.makeRoom(); err != nil {
				return err
			}
		case done := <-r.images.written():
			if err := r.wroteImage(ctx, done); err != nil {
				return err
			}
		}
	}
}

// tellChanged calls Config.Changed if something has changed since told.
func (r *Replica) tellChanged(told Status) Status {
	r.mu.Lock()
	same := told.Term == r.lastTerm && told.Leader == r.soft.Lead && told.Leads == r.leads.Load() &&
		len(told.Members) == len(r.core.voters()) && len(told.Learners) == len(r.core.conf.Learners)
	for id, name := range told.Members {
		same = same && r.core.names[id] == name
	}
	if !same {
		told = r.statusLocked()
	}
	r.mu.Unlock()
	if !same {
		r.cfg.Changed(told)
	}
	return told
}

func (r *Replica) tick() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.node == nil {
		return nil
	}
	r.votes.mute = max(0, r.votes.mute-1)
	return r.guard(func() error {
		r.node.Tick()
		return r.tickEndedLocked()
	})
}

// turn does what there is to do, and tells whether there was anything.
func (r *Replica) turn(ctx context.Context) (again bool, err error) {
	var rd raft.Ready
	var capture *image
	leads := false
	r.mu.Lock()
	if r.node != nil && r.err == nil {
		err = r.guard(func() error {
			r.appendQueueLocked()
			r.askLocked()
			if again = r.node.HasReady(); again {
				rd = r.node.Ready()
				r.store.room.writing()
				leads = r.node.BasicStatus().RaftState == raft.StateLeader
			}
			r.goSoloLocked()
			return nil
		})
	}
	if again {
		capture, r.images.captured = r.images.captured, nil
	}
	if in := r.images.incoming; in != nil && raft.IsEmptySnap(rd.Snapshot) { // raft did not want it
		in.close()
		r.images.incoming = nil
	}
	r.mu.Unlock()
	if !again || err != nil {
		return false, err
	}
	// A leader's messages to followers need not wait for its own log: all write at the same time.
	late := rd.Messages
	if leads {
		late = r.send(ctx, rd.Messages, capture, true)
	}
	in, err := r.persist(ctx, &rd)
	if err != nil {
		return false, err
	}
	if err := r.take(&rd, in); err != nil {
		return false, err
	}
	r.send(ctx, late, capture, false)
	return true, r.writeImage(ctx)
}

// persist writes what must be on disk before anybody learns of it. in is the snapshot that the
// leader sent, if there is one.
func (r *Replica) persist(ctx context.Context, rd *raft.Ready) (in *incoming, err error) {
	if !raft.IsEmptySnap(rd.Snapshot) {
		if in, err = r.arrived(rd.Snapshot.Metadata); err != nil {
			return nil, err
		}
	}
	if r.disk == nil {
		return in, nil
	}
	if in != nil {
		if err := r.disk.install(ctx, in, rd.Snapshot.Metadata); err != nil {
			return nil, err
		}
	}
	if err := r.disk.save(rd.HardState, rd.Entries); err != nil {
		return nil, &sigma.Error{Op: "replica.Run", Kind: sigma.KindOf(err), Msg: "the log cannot be written", Err: err,
			Hint: "the member ends, as what is on disk is unknown; open it again when the disk has space"}
	}
	if in != nil {
		r.disk.based(ctx, in.number, rd.Snapshot.Metadata, in.state.Size())
	}
	return in, r.makeRoom()
}

// take changes the state in memory by what was persisted.
func (r *Replica) take(rd *raft.Ready, in *incoming) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	before, leader := r.core.index, r.soft
	if in != nil {
		defer in.close()
		if err := r.core.restore(rd.Snapshot.Metadata, in.state); err != nil {
			return err
		}
		r.store.bytes = 0
		if err := r.store.ApplySnapshot(rd.Snapshot); err != nil {
			return err
		}
	}
	if !raft.IsEmptyHardState(rd.HardState) {
		r.lastTerm = rd.HardState.GetTerm()
		if err := r.store.SetHardState(rd.HardState); err != nil {
			return err
		}
	}
	if err := r.store.add(rd.Entries); err != nil {
		return err
	}
	if rd.SoftState != nil {
		r.lead(*rd.SoftState)
	}
	return r.guard(func() error {
		for _, e := range rd.CommittedEntries {
			if err := r.apply(e); err != nil {
				return err
			}
		}
		r.answerLocked(rd.ReadStates)
		r.node.Advance(*rd)
		if before != r.core.index || leader != r.soft {
			r.tellLocked()
		}
		return r.compactLocked()
	})
}

// lead takes note of who leads.
func (r *Replica) lead(now raft.SoftState) {
	was := r.soft.RaftState == raft.StateLeader
	leads := now.RaftState == raft.StateLeader
	if r.soft = now; leads {
		r.leads.Store(true)
	} else if was {
		r.deposeLocked()
	}
	if leads != was {
		r.cfg.Logger.Info("leadership", "member", r.cfg.ID, "leads", leads, "leader", now.Lead, "term", r.lastTerm)
	}
}

// apply applies one entry of the log.
func (r *Replica) apply(e *pb.Entry) error {
	if e.GetIndex() <= r.core.index {
		return nil
	}
	defer func() { r.core.index, r.core.term = e.GetIndex(), e.GetTerm() }()
	switch e.GetType() {
	case pb.EntryConfChangeV2, pb.EntryConfChange:
		return r.applyChange(e)
	}
	if len(e.GetData()) == 0 { // a new leader's first
		return nil
	}
	var x entry
	if err := decode(e.GetData(), x.code); err != nil {
		return err
	}
	var batch []*proposal
	if x.origin == r.origin {
		batch = r.proposed.batches[x.batch]
		delete(r.proposed.batches, x.batch)
	}
	for i, c := range x.commands {
		result, err := r.core.apply(c.Session, c.data)
		if i < len(batch) {
			r.proposed.finish(batch[i], result, err)
		}
	}
	return nil
}

// applyChange applies a change of members.
func (r *Replica) applyChange(e *pb.Entry) error {
	var cc pb.ConfChangeV2
	if err := proto.Unmarshal(e.GetData(), &cc); err != nil {
		return err
	}
	var x change
	if len(cc.Context) > 0 { // raft's own change, which leaves the joint configuration, has none
		if err := decode(cc.Context, x.code); err != nil {
			return err
		}
	}
	r.images.early = true
	conf := r.node.ApplyConfChange(&cc)
	r.images.early = false
	r.core.reconfigure(conf, x.names)
	r.leased.Store(0) // of a majority that may be one no more
	r.tellLocked()
	r.cfg.Logger.Info("members changed", "member", r.cfg.ID, "voters", r.core.conf.Voters, "learners",
		r.core.conf.Learners)
	return nil
}

// compactLocked drops entries that no member is likely to need. Members that are getting a snapshot
// need what follows it, unless they take too long.
func (r *Replica) compactLocked() error {
	if r.store.bytes <= r.cfg.LogKeep {
		return nil
	}
	held := uint64(math.MaxUint64)
	if r.store.bytes < 16*r.cfg.LogKeep {
		r.node.WithProgress(func(_ uint64, _ raft.ProgressType, p tracker.Progress) {
			if p.State == tracker.StateSnapshot {
				held = min(held, p.PendingSnapshot)
			}
		})
	}
	return r.store.compact(r.core.index, held, r.cfg.LogKeep)
}

// goSoloLocked ends the log of a group in memory that has come down to this member.
func (r *Replica) goSoloLocked() {
	if r.disk != nil || r.soft.RaftState != raft.StateLeader || !r.core.alone(r.cfg.ID) || r.changing {
		return
	}
	if last, err := r.store.LastIndex(); err != nil || last != r.core.index || r.node.HasReady() ||
		len(r.proposed.batches)+len(r.proposed.queue)+len(r.reads.queue)+len(r.reads.rounds) > 0 {
		return
	}
	r.node, r.store = nil, nil
	r.solo.Store(true)
}

// leaveSoloLocked begins a log at the state of a group of one in memory.
func (r *Replica) leaveSoloLocked() error {
	if !r.solo.Load() {
		return nil
	}
	r.core.term = r.lastTerm
	hard := &pb.HardState{Term: new(r.lastTerm), Vote: new(r.cfg.ID), Commit: new(r.core.index)}
	r.soft = raft.SoftState{}
	r.solo.Store(false)
	defer r.signal()
	return r.raft(logged{hard: hard})
}

// send sends messages. With early it sends those that need not wait for the log, and gives the
// others.
func (r *Replica) send(ctx context.Context, all []*pb.Message, capture *image, early bool) (late []*pb.Message) {
	if r.cfg.Transport == nil {
		return nil
	}
	for _, m := range all {
		if early && m.GetType() != pb.MsgApp && m.GetType() != pb.MsgHeartbeat {
			late = append(late, m)
			continue
		}
		r.mu.Lock()
		to := Peer{m.GetTo(), cmp.Or(r.core.names[m.GetTo()], r.heard[m.GetTo()])}
		r.mu.Unlock()
		if m.GetType() == pb.MsgSnap {
			r.sendImage(ctx, to, m, capture)
			continue
		}
		// To a member that has just been removed; or a kind that members do not send.
		if to.Name == "" || !messages[m.GetType()] {
			continue
		}
		b, err := proto.Marshal(m)
		if err != nil {
			r.cfg.Logger.Error("message", "err", err)
			continue
		}
		r.cfg.Transport.Send(to, b)
	}
	return late
}

func appendNumber(b []byte, n uint64) []byte { return binary.LittleEndian.AppendUint64(b, n) }

func number(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

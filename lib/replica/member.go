package replica

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// Replica is a member of a group. Its methods are safe for concurrent use.
//
// A group of one in memory has no log: Propose applies its command at once (node is nil then). As
// soon as a member is to be added, the group goes on from a log that begins at its state.
type Replica struct {
	cfg     Config
	origin  uint64 // of the entries that this process proposes
	began   time.Time
	wake    chan struct{} // Run has work
	ended   chan struct{} // closed when the member has ended, by fail
	solo    atomic.Bool   // node is nil, and the member is the group
	leads   atomic.Bool
	running atomic.Bool
	leased  atomic.Int64 // until when reads need no round, since began
	disk    *disk        // nil in memory. Used by Run's goroutine only, once the member is open

	mu       sync.Mutex
	node     *raft.RawNode // nil: solo
	store    *storage      // nil: solo
	core     core
	proposed proposals
	reads    reads
	images   images
	err      error             // why the member has ended
	soft     raft.SoftState    // as Run knows it
	lastTerm uint64            // likewise
	noLease  uint64            // the term in which no lease counts any more
	heard    map[uint64]string // names of members that sent messages before they were known
	changing bool              // a Change is under way
	votes    votes
	news     chan struct{} // closed when leader, members or applied index change; nil = nobody waits
}

// Open makes a member and, with Dir, reads its snapshot and log. It starts nothing. Call Run, then
// Close. KindInvalid: the Config makes no sense, or Dir holds what this member has not written, or
// what was damaged since. KindNoSpace: there is no room for a log that begins.
func Open(ctx context.Context, cfg Config) (*Replica, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	r := &Replica{cfg: cfg, origin: rand.Uint64(), began: time.Now(), wake: make(chan struct{}, 1),
		ended: make(chan struct{})}
	r.core = core{machine: cfg.Machine, sessions: newSessions(), conf: pb.EnsureConfState(nil)}
	r.proposed.batches = make(map[uint64][]*proposal)
	r.reads.rounds, r.heard = make(map[uint64]*round), make(map[uint64]string)
	var l logged
	if cfg.Dir != "" {
		var err error
		if r.disk, l, err = openDisk(ctx, &cfg, int64(cfg.CommandMax)+2*batchBytes+spare); err != nil {
			return nil, err
		}
	}
	err := r.begin(ctx, l)
	if err == nil {
		err = r.makeRoom()
	}
	if err != nil && r.disk != nil {
		r.disk.close()
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// begin gives the member its first state.
func (r *Replica) begin(ctx context.Context, l logged) error {
	goesOn := r.disk != nil && (r.disk.base.GetIndex() > 0 || len(l.entries) > 0 || !raft.IsEmptyHardState(l.hard))
	switch {
	case goesOn && r.disk.base.GetIndex() > 0:
		if err := r.disk.restore(ctx, &r.core); err != nil {
			return err
		}
		if r.cfg.Lease {
			r.votes.mute = r.cfg.ElectionTicks
		}
	case goesOn: // it was to be added, and never was
	case r.cfg.Peers != nil:
		// All members of a group that begins have the same state at index 1, which nobody logged.
		ids := slices.Sorted(maps.Keys(r.cfg.Peers))
		r.core.index, r.core.term = 1, 1
		r.core.reconfigure(&pb.ConfState{Voters: ids}, r.cfg.Peers)
		l.hard = &pb.HardState{Term: new(uint64(1)), Commit: new(uint64(1)), Vote: new(uint64(0))}
		if r.disk != nil {
			if err := r.firstImage(ctx, l.hard); err != nil {
				return sigma.Wrap("replica.Open", r.cfg.Dir, err)
			}
		}
	}
	if r.disk == nil && r.core.alone(r.cfg.ID) {
		r.solo.Store(true)
		r.leads.Store(true)
		r.soft, r.lastTerm = raft.SoftState{Lead: r.cfg.ID, RaftState: raft.StateLeader}, 1
		return nil
	}
	return r.raft(l)
}

// firstImage makes a durable group's first state its first snapshot.
func (r *Replica) firstImage(ctx context.Context, hard *pb.HardState) error {
	m, err := r.core.snapshot()
	if err != nil {
		return err
	}
	number := r.disk.number()
	r.disk.hard = hard
	if err = r.disk.cut(ctx, number, m.Meta, nil); err != nil {
		return err
	}
	f, err := r.disk.spool(ctx, number, m.WriteTo)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		r.disk.based(ctx, number, m.Meta, f.size)
	}
	return err
}

// raft makes the node, which goes on from the core's state and what is logged after it.
func (r *Replica) raft(l logged) (err error) {
	if l.hard == nil {
		l.hard = &pb.HardState{}
	}
	if r.store, err = newStorage(r.core.meta(), l.hard); err != nil {
		return err
	}
	if err = r.store.add(l.entries); err != nil {
		return err
	}
	r.store.snapshot = r.capture
	return r.guard(func() (err error) {
		r.node, err = raft.NewRawNode(&raft.Config{
			ID: r.cfg.ID, ElectionTick: r.cfg.ElectionTicks, HeartbeatTick: max(1, r.cfg.ElectionTicks/10),
			Storage: r.store, Applied: r.core.index, MaxSizePerMsg: appendMax, MaxInflightMsgs: 256,
			MaxInflightBytes: 64 << 20, MaxCommittedSizePerReady: 4 << 20, CheckQuorum: true, PreVote: true,
			DisableProposalForwarding: true, StepDownOnRemoval: true, Logger: logger{r.cfg.Logger}})
		if err == nil && r.core.alone(r.cfg.ID) {
			err = r.node.Campaign()
		}
		return err
	})
}

// appendMax is the size of a message with entries, unless it has one entry that is larger.
const appendMax = 1 << 20

// guard calls what may make raft panic, which it does when other members did what raft excludes: a
// member that lost its log and came back with its old id, for instance. r.mu is held.
func (r *Replica) guard(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case refusal:
			err = &sigma.Error{Op: "replica.Run", Kind: sigma.KindInvalid,
				Msg:  fmt.Sprint("the log is broken: ", string(p)),
				Hint: "add the member again, with a new id; one that lost its memory or disk never uses its id again"}
			r.failLocked(err)
		default:
			panic(p)
		}
	}()
	return f()
}

// fail ends the member: all that waits fails.
func (r *Replica) fail(err error) {
	r.mu.Lock()
	r.failLocked(err)
	r.mu.Unlock()
}

func (r *Replica) failLocked(err error) {
	if r.err != nil {
		return
	}
	r.err = err
	r.solo.Store(false)
	r.deposeLocked()
	close(r.ended)
	r.tellLocked()
}

// deposeLocked fails what waits because this member leads no more.
func (r *Replica) deposeLocked() {
	r.leads.Store(false)
	r.leased.Store(0)
	r.proposed.failAll(r.notLeaderLocked())
	r.reads.failAll(r.notLeaderLocked())
}

// notLeaderLocked is the error of who asks a member that does not lead.
func (r *Replica) notLeaderLocked() error {
	const op = "replica.Propose"
	switch name := r.core.names[r.soft.Lead]; {
	case r.err != nil:
		return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "this member of the group has ended", Err: r.err}
	case name == "" || r.leaderlessLocked():
		return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "the group has no leader now",
			Hint: "try again; without a majority of its members a group has none"}
	default:
		return call.Redirect(name)
	}
}

// signal has Run look for work.
func (r *Replica) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// newsLocked gives a channel that is closed at the next change.
func (r *Replica) newsLocked() <-chan struct{} {
	if r.news == nil {
		r.news = make(chan struct{})
	}
	return r.news
}

func (r *Replica) tellLocked() {
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// Close ends the member: Run returns, and files are closed.
func (r *Replica) Close() error {
	r.fail(sigma.Errorf("replica.Run", sigma.KindCanceled, "the member was closed"))
	if !r.running.Load() && r.disk != nil { // else Run closes files
		r.disk.close()
	}
	return nil
}

// Leads tells whether this member leads, as far as it knows. It costs next to nothing.
func (r *Replica) Leads() bool { return r.leads.Load() }

// Status tells what this member knows of its group.
func (r *Replica) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.statusLocked()
}

func (r *Replica) statusLocked() Status {
	s := Status{ID: r.cfg.ID, Leads: r.leads.Load(), Leader: r.soft.Lead, LeaderName: r.core.names[r.soft.Lead],
		Term: r.lastTerm, Committed: r.core.index, Applied: r.core.index, Sessions: r.core.sessions.lru.Len(),
		Members: r.core.named(r.core.voters()), Learners: r.core.named(r.core.conf.Learners)}
	if r.node == nil {
		return s
	}
	s.LogBytes = r.store.bytes
	if s.Committed = r.node.BasicStatus().GetCommit(); s.Leads {
		s.Acknowledged = make(map[uint64]uint64)
		r.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
			if id != r.cfg.ID {
				s.Acknowledged[id] = p.Match
			}
		})
	}
	return s
}

// until waits for the next change, since raft tells of nothing else, at most a tick. It returns
// ctx's error; the caller looks at r.err.
func (r *Replica) until(ctx context.Context, news <-chan struct{}) error {
	t := time.NewTimer(r.cfg.Tick)
	defer t.Stop()
	select {
	case <-news:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

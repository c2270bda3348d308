package replica

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/raft/v3"

	"sigmaos.dev/sigma"
)

// proposal is a command that waits for its result.
type proposal struct {
	command
	result []byte
	err    error
	done   chan struct{} // has one value when result and err are there
}

// waitingCost is what a command that waits takes beside its bytes.
const waitingCost = 100

func (p *proposal) size() int64 { return int64(len(p.data)) + waitingCost }

func (p *proposal) finish(result []byte, err error) {
	p.result, p.err = result, err
	p.done <- struct{}{}
}

// proposals are the commands that wait at a leader: first in the queue, then in the log.
type proposals struct {
	queue   []*proposal
	batches map[uint64][]*proposal // by the number of the entry
	last    uint64                 // entry's number
	bytes   int64
}

// Bounds of one entry: it goes to the other members in one message.
const (
	batchBytes    = 256 << 10
	batchCommands = 4096
)

// next takes the commands of the next entry from the queue.
func (w *proposals) next() (batch []*proposal, size int) {
	n := 0
	for n < len(w.queue) && n < batchCommands && (n == 0 || size+len(w.queue[n].data) <= batchBytes) {
		size += len(w.queue[n].data) + commandCost
		n++
	}
	batch = w.queue[:n:n]
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
	return batch, size
}

// nextSize is about what next would take.
func (w *proposals) nextSize() int64 {
	return min(int64(len(w.queue[0].data))+batchBytes, w.bytes) + entryCost
}

// finish gives p its result, and takes its bytes from those that wait.
func (w *proposals) finish(p *proposal, result []byte, err error) {
	w.bytes -= p.size()
	p.finish(result, err)
}

// failAll fails all: those in the queue with err, since they were not taken.
func (w *proposals) failAll(err error) {
	w.failQueue(err)
	for _, batch := range w.batches {
		for _, p := range batch {
			w.finish(p, nil, &sigma.Error{Op: "replica.Propose", Kind: sigma.KindLost,
				Msg:  "the leader changed before the command was acknowledged",
				Hint: "whether it took effect is unknown; with a Session it can be proposed again"})
		}
	}
	clear(w.batches)
}

// failQueue fails those that were not taken.
func (w *proposals) failQueue(err error) {
	for _, p := range w.queue {
		w.finish(p, nil, err)
	}
	w.queue = nil
}

// Propose has a command applied, and gives its result. It keeps command, which must not change
// afterwards. Safe for concurrent use; commands that are proposed concurrently are applied in any
// order.
//
// An error for which call.Owner gives the leader's name (call.Redirect, of KindStale, too): another
// member leads, and the command was not taken. KindUnavailable: no leader was known for two times
// an election's time; it was not taken. KindBusy: too much waits; it was not taken. KindNoSpace:
// the leader's disk is full; it was not taken. KindTooBig: the command is too long, and was not
// taken; or its result is too long for its session, and it was applied. KindStale: the session's
// request was overtaken by a later one, or the session was not used for so long that it is
// forgotten: what became of the request is unknown then. KindLost, or the error of ctx: what became
// of the command is unknown; with a Session it can be proposed again.
func (r *Replica) Propose(ctx context.Context, s Session, data []byte) (result []byte, err error) {
	if len(data) > r.cfg.CommandMax {
		return nil, &sigma.Error{Op: "replica.Propose", Kind: sigma.KindTooBig, Msg: "the command is too long",
			Hint: "divide it, or raise Config.CommandMax"}
	}
	if (s.Client == 0) != (s.Seq == 0) {
		return nil, sigma.Errorf("replica.Propose", sigma.KindInvalid, "a session has a client and a number from 1")
	}
	r.mu.Lock()
	if r.solo.Load() {
		r.core.index++
		result, err = r.core.apply(s, data)
		r.mu.Unlock()
		return result, err
	}
	r.awaitLeaderLocked(ctx)
	p := &proposal{command: command{s, data}, done: make(chan struct{}, 1)}
	switch {
	case !r.leads.Load():
		err = r.notLeaderLocked()
	case r.proposed.bytes+p.size() > r.cfg.PendingMax && r.proposed.bytes > 0:
		err = &sigma.Error{Op: "replica.Propose", Kind: sigma.KindBusy, Msg: "too many commands wait",
			Hint: "try again later"}
	default:
		r.proposed.queue = append(r.proposed.queue, p)
		r.proposed.bytes += p.size()
	}
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	r.signal()
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return nil, sigma.Wrap("replica.Propose", "", ctx.Err())
	}
}

// appendQueueLocked gives raft what is in the queue. A member that was alone until now takes
// commands before raft has made it the leader.
func (r *Replica) appendQueueLocked() {
	w := &r.proposed
	for len(w.queue) > 0 && r.soft.RaftState == raft.StateLeader {
		if !r.store.room.has(w.nextSize()) {
			if r.store.room.full {
				w.failQueue(errNoRoom())
			}
			return // the log grows, and the next turn goes on
		}
		batch, size := w.next()
		r.store.room.spent += int64(size) + entryCost
		w.last++
		e := entry{origin: r.origin, batch: w.last, commands: make([]command, len(batch))}
		for i, p := range batch {
			e.commands[i] = p.command
		}
		b, err := encode(e.code, size+64)
		if err == nil {
			err = r.node.Propose(b)
		}
		if err == nil {
			w.batches[w.last] = batch
			continue
		}
		switch {
		case errors.Is(err, raft.ErrProposalDropped) && r.node.BasicStatus().RaftState != raft.StateLeader:
			err = r.notLeaderLocked()
		case errors.Is(err, raft.ErrProposalDropped):
			err = &sigma.Error{Op: "replica.Propose", Kind: sigma.KindBusy,
				Msg: "the leader does not take commands now, since it is handing over", Hint: "try again"}
		}
		for _, p := range batch {
			w.finish(p, nil, err)
		}
	}
}

// round is one question to the other members whether this one leads.
type round struct {
	began   time.Duration // since Replica.began
	index   uint64        // which must be applied; 0 = the others have not answered
	waiting []chan error
}

// reads are the reads that wait at a leader.
type reads struct {
	queue  []chan error
	rounds map[uint64]*round
	last   uint64
	renew  bool // a round is wanted for the lease
}

func (w *reads) failAll(err error) {
	for _, c := range w.queue {
		c <- err
	}
	w.queue, w.renew = nil, false
	for _, x := range w.rounds {
		for _, c := range x.waiting {
			c <- err
		}
	}
	clear(w.rounds)
}

// roundsMax bounds the rounds that are under way at a time; further reads wait and share one.
const roundsMax = 64

// Read returns when the machine of this member, which leads, has all commands that were
// acknowledged before Read was called. The caller reads the machine then, under the machine's own
// lock. Errors are those of Propose.
func (r *Replica) Read(ctx context.Context) error {
	if r.solo.Load() {
		return nil
	}
	if r.cfg.Lease {
		left := r.leased.Load() - int64(time.Since(r.began))
		if left > int64(r.cfg.lease()/3) {
			return nil
		}
		if left > 0 {
			r.renewLease()
			return nil
		}
	}
	c := make(chan error, 1)
	r.mu.Lock()
	r.awaitLeaderLocked(ctx)
	if !r.leads.Load() {
		defer r.mu.Unlock()
		return r.notLeaderLocked()
	}
	if r.solo.Load() {
		r.mu.Unlock()
		return nil
	}
	r.reads.queue = append(r.reads.queue, c)
	r.mu.Unlock()
	r.signal()
	select {
	case err := <-c:
		return err
	case <-ctx.Done():
		return sigma.Wrap("replica.Read", "", ctx.Err())
	}
}

func (r *Replica) renewLease() {
	r.mu.Lock()
	wanted := r.leads.Load() && r.node != nil && !r.reads.renew && len(r.reads.rounds) == 0
	if wanted {
		r.reads.renew = true
	}
	r.mu.Unlock()
	if wanted {
		r.signal()
	}
}

// askLocked begins a round for the reads in the queue.
func (r *Replica) askLocked() {
	w := &r.reads
	if len(w.queue) == 0 && !w.renew || len(w.rounds) >= roundsMax || r.soft.RaftState != raft.StateLeader {
		return
	}
	w.last++
	w.rounds[w.last] = &round{began: time.Since(r.began), waiting: w.queue}
	w.queue, w.renew = nil, false
	r.node.ReadIndex(appendNumber(nil, w.last))
}

// answerLocked ends the reads whose round is over and whose index is applied.
func (r *Replica) answerLocked(states []raft.ReadState) {
	for _, s := range states {
		if x := r.reads.rounds[number(s.RequestCtx)]; x != nil {
			x.index = s.Index
		}
	}
	for id, x := range r.reads.rounds {
		if x.index == 0 || x.index > r.core.index {
			continue
		}
		delete(r.reads.rounds, id)
		for _, c := range x.waiting {
			c <- nil
		}
		if r.cfg.Lease && r.noLease != r.lastTerm && r.leads.Load() {
			r.leased.Store(max(r.leased.Load(), int64(x.began+r.cfg.lease())))
		}
	}
}

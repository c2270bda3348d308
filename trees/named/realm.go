package named

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// A leader has one realm's whole tree in memory. Readers read it there; one goroutine (run) takes
// the mutations that wait, makes a step of as many as fit, commits the step as one transaction of
// the store, merges it and answers. While a commit is under way the next mutations gather, so that
// throughput grows with the number of callers (group commit) and nobody is answered, or seen by a
// reader, before the store has it.
//
// If a commit's outcome is unknown, memory can no longer be trusted: the leader ends, its callers
// learn KindLost, and the next caller makes a new leader, whose claim on the realm's record
// (load.go) makes a straggling commit of the old one fail.
type leader struct {
	realm sigma.RealmID
	store Store
	log   *slog.Logger
	board *changeboard.Board
	wake  chan struct{} // holds one token while queue may have something
	done  chan struct{} // closed when the leader has ended
	guard Revision      // of the realm's record; run only

	mu       sync.RWMutex
	tree     *tree               // guarded by mu for all but run, which alone writes and so reads without
	watches  map[uint64]*watched // guarded by mu
	watching atomic.Int64        // requests that wait in watches; added to with mu held
	feed     feed                // guarded by mu
	raised   chan struct{}       // guarded by mu; closed and replaced when a newer epoch of a fence comes

	queueMu sync.Mutex // never held together with mu
	queue   []*request // guarded by queueMu
	queued  int        // bytes of queue; guarded by queueMu
	ended   bool       // guarded by queueMu
	parking parking    // guarded by queueMu
}

// request is a mutation that waits for its reply.
type request struct {
	m     mutation
	once  sigma.Once
	taken atomic.Bool // by run, or by the caller who gave up before
	reply chan reply  // has room for one

	gone     atomic.Bool // the caller gave up
	parkedAt entry       // where it waits, or waited last; guarded by leader.queueMu
	resumed  bool        // it has waited; run only
}

// watched wakes the watchers of one file.
type watched struct {
	changed  chan struct{}
	watchers int
}

// Bounds of a realm's queue. A caller beyond them is told KindBusy: the tenant's own load is at
// fault.
const (
	queueMax      = 4096
	queueBytesMax = 32 << 20
)

// expiryRetry is the pause after leases were found expired.
const expiryRetry = 100 * time.Millisecond

// commitTimeout is beyond etcd's own (5 s and two elections).
const commitTimeout = 15 * time.Second

// do has a mutation applied and returns its reply once it is durable. If ctx ends before the
// mutation was taken up, it has no effect; later its outcome is unknown, which KindTimeout and
// KindCanceled leave open too.
func (l *leader) do(ctx context.Context, m mutation) reply {
	const op = "named.do"
	r := &request{m: m, once: sigma.OnceOf(ctx), reply: make(chan reply, 1)}
	l.queueMu.Lock()
	switch {
	case l.ended:
		l.queueMu.Unlock()
		return endedReply()
	case len(l.queue) >= queueMax || l.queued+m.size() > queueBytesMax:
		l.queueMu.Unlock()
		return reply{err: &sigma.Error{Op: op, Kind: sigma.KindBusy, Msg: "too many changes of the realm's names wait",
			Hint: "try again, with fewer at a time"}}
	}
	l.queue = append(l.queue, r)
	l.queued += m.size()
	l.queueMu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	select {
	case rep := <-r.reply:
		return rep
	case <-ctx.Done():
		r.gone.Store(true)
		if r.taken.CompareAndSwap(false, true) {
			l.unpark(r)
		}
		return reply{err: sigma.Wrap(op, "", ctx.Err())}
	}
}

// errEnded says that a request met a leader that had ended, and was not applied.
var errEnded = errors.New("leader ended")

func endedReply() reply {
	return reply{err: &sigma.Error{Op: "named.do", Kind: sigma.KindUnavailable, Msg: "the realm is being loaded again",
		Err: errEnded}}
}

// run serves the realm until ctx ends or the store fails it. It answers everyone before it returns.
func (l *leader) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer, due := time.NewTimer(0), time.Now()
	defer timer.Stop()
	look := func(in time.Duration) {
		due = time.Now().Add(in)
		timer.Reset(in)
	}
	for ctx.Err() == nil {
		var expire []*request
		select {
		case <-ctx.Done():
			continue
		case <-timer.C:
			if late :=
				time.Since(due); late > expiryRetry {
				// the store, or the host, stood still: holders were not heard meanwhile, so they
				// have as long again
				look(late)
				continue
			}
			over, next := l.tree.expired(time.Now())
			for _, id := range over {
				expire = append(expire, &request{m: endOp{id, true}, reply: make(chan reply, 1)})
			}
			switch {
			case len(over) > 0:
				look(expiryRetry) // looks for the next, or once more if the store did not take it
			case !next.IsZero():
				look(time.Until(next))
			}
		case <-l.wake:
		}
		requests := append(l.take(), expire...) // a renewal that waits was in time
		for len(requests) > 0 && ctx.Err() == nil {
			rest, granted, ended := l.serve(requests)
			if granted {
				look(0) // learns of the new deadline
			}
			if ended {
				cancel()
			}
			requests = rest
		}
		if len(requests) > 0 {
			l.end()
			answer(requests, endedReply())
		}
	}
	l.end()
}

// take empties the queue.
func (l *leader) take() []*request {
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	q := l.queue
	l.queue, l.queued = nil, 0
	return q
}

func answer(rs []*request, rep reply) {
	for _, r := range rs {
		r.reply <- rep
	}
}

// serve commits the first of the requests as one step and answers them; it returns the others,
// whether a lease was granted, and whether the leader has ended.
func (l *leader) serve(rs []*request) (rest []*request, granted, ended bool) {
	s := newStep(l.tree)
	now := time.Now()
	s.forgetIdle(now)
	var in []*request
	var replies []reply
	waited := map[entry]bool{} // by those that have to wait as of this step
	for len(rs) > 0 && !s.full() {
		r := rs[0]
		rs = rs[1:]
		if r.gone.Load() || !r.taken.CompareAndSwap(false, true) {
			continue
		}
		s.waited = func(e entry) bool { return waited[e] || !r.resumed && l.waited(e) }
		rep := s.once(r.once, r.m, now)
		in, replies = append(in, r), append(replies, rep)
		if rep.waits != nil {
			waited[*rep.waits] = true
		}
		if _, ok := bare(r.m).(grantOp); ok {
			granted = true
		}
	}
	if err := l.commit(s); err != nil {
		ends := sigma.KindOf(err) != sigma.KindNoSpace // after which nothing has happened
		if ends {
			l.end()
		}
		if !ends && len(in) > 1 { // what makes room shall not be refused for the company it is in
			return l.serveEach(in, rs)
		}
		answer(in, reply{err: err})
		return rs, false, ends
	}
	for i, r := range in {
		if e := replies[i].waits; e != nil {
			l.park(r, *e)
			continue
		}
		r.reply <- replies[i]
	}
	return append(l.resume(s), rs...), granted, false
}

// commit makes a step durable, then visible.
func (l *leader) commit(s *step) error {
	const op = "named.commit"
	if puts, deletes, ok := s.batch(); ok {
		// The caller's patience must not decide about a transaction of many.
		ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
		defer cancel()
		rev, err := l.store.Commit(ctx, Batch{Guard: realmKey(l.realm), GuardAt: l.guard, Puts: puts, Deletes: deletes,
			Grows: s.grows(), Writes: l.realm != sigma.SystemRealm && s.keeps()})
		switch {
		case errors.Is(err, ErrFull):
			return storeFull(op, l.realm, err)
		case errors.Is(err, ErrConflict):
			l.log.Warn("another name server took over the realm", "realm", l.realm)
			return &sigma.Error{Op: op, Realm: l.realm, Kind: sigma.KindUnavailable,
				Msg: "the realm is being loaded again", Err: err}
		case err != nil:
			l.log.Warn("names were not stored for certain; loading the realm again", "realm", l.realm, "err", err)
			return &sigma.Error{Op: op, Realm: l.realm, Kind: sigma.KindLost,
				Msg: "it is unknown whether the change was stored", Err: err}
		}
		l.guard = rev
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var changes []sigmap.NamesChange
	if l.feed.kept {
		changes = changesOf(l.tree, s) // as it was before is needed
	}
	for _, id := range l.tree.merge(s) {
		l.board.Changed(id)
		if w := l.watches[id]; w != nil {
			close(w.changed)
			delete(l.watches, id)
		}
	}
	l.feed.addLocked(changes)
	l.deposedLocked(s)
	return nil
}

// end marks the leader as ended and then answers everyone who waits: whoever was answered meets the
// next leader, not this one.
func (l *leader) end() {
	l.queueMu.Lock()
	if !l.ended {
		l.ended = true
		close(l.done)
	}
	l.queueMu.Unlock()
	answer(l.take(), endedReply())
	answer(l.unparkAll(), endedReply())
}

// watch waits until the file's version is beyond since. errEnded tells to go on with the next
// leader.
func (l *leader) watch(ctx context.Context, id uint64, by asker, since sigma.Version) (sigma.Version, error) {
	const op = "named.Watch"
	for first := true; ; first = false { // who waits is told of a change of the mode too
		l.mu.Lock()
		if _, err := l.tree.admit(sigma.FenceOf(ctx)); err != nil {
			l.mu.Unlock()
			return 0, err
		}
		n := l.tree.node(id)
		if n == nil {
			l.mu.Unlock()
			return 0, &sigma.Error{Op: op, Kind: sigma.KindNotFound, Msg: "the file was removed"}
		}
		if err := by.may(op, n, treeserver.MayRead); err != nil && first {
			l.mu.Unlock()
			return 0, err
		}
		if n.version > since {
			l.mu.Unlock()
			return n.version, nil
		}
		if err := l.watchRoomLocked(); err != nil {
			l.mu.Unlock()
			return 0, err
		}
		l.watching.Add(1)
		w := l.watches[id]
		if w == nil {
			w = &watched{changed: make(chan struct{})}
			l.watches[id] = w
		}
		w.watchers++
		raised := l.raised
		l.mu.Unlock()
		select {
		case <-w.changed:
			l.watching.Add(-1)
			continue
		case <-raised:
			l.unwatch(id, w)
			continue
		case <-ctx.Done():
			l.unwatch(id, w)
			return 0, sigma.Wrap(op, "", ctx.Err())
		case <-l.done:
			l.watching.Add(-1)
			return 0, errEnded
		}
	}
}

// unwatch forgets a watcher, so that those who give up leave nothing behind.
func (l *leader) unwatch(id uint64, w *watched) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watching.Add(-1)
	if w.watchers--; w.watchers == 0 && l.watches[id] == w {
		delete(l.watches, id)
	}
}

// read calls f with the committed tree. f must neither keep nor change anything of it but nodes.
func (l *leader) read(f func(t *tree) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return f(l.tree)
}

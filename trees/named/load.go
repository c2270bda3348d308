package named

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// slot is one realm of the server, loaded or not. Handles keep the slot and ask it for the leader
// of the day.
type slot struct {
	id      sigma.RealmID
	created time.Time
	shares  atomic.Uint32                     // as stored last; 0 is 1
	limits  atomic.Pointer[sigma.RealmLimits] // as stored last; never changed
	number  uint64                            // of the realm's record
	srv     *Server
	current atomic.Pointer[leader] // the newest; it may have ended; nil = the realm is not loaded
	used    atomic.Bool            // since tendRealms looked last

	credentials knownCredentials

	mu      sync.Mutex
	loading *loading           // guarded by mu; nil if nobody loads
	removed bool               // guarded by mu: no more leaders
	stop    context.CancelFunc // guarded by mu: ends the current leader
}

// loading is shared by all who wait for the same load.
type loading struct {
	done chan struct{} // closed when l or err is set
	l    *leader
	err  error
}

// leader returns the realm's leader and loads the realm if there is none. KindStale if the realm
// was removed.
func (s *slot) leader(ctx context.Context) (*leader, error) {
	if err := s.srv.cfg.hold(ctx); err != nil {
		return nil, err
	}
	if !s.used.Load() {
		s.used.Store(true)
	}
	if l := s.current.Load(); l != nil {
		select {
		case <-l.done:
		default:
			return l, nil
		}
	}
	if err := s.srv.started(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.removed {
		s.mu.Unlock()
		return nil, &sigma.Error{Op: "named.leader", Realm: s.id, Kind: sigma.KindStale, Msg: "the realm was removed"}
	}
	w := s.loading
	if w == nil {
		w = &loading{done: make(chan struct{})}
		if !s.srv.spawn(func(ctx context.Context) { s.load(ctx, w) }) {
			s.mu.Unlock()
			return nil, s.srv.closedError()
		}
		s.loading = w
	}
	s.mu.Unlock()
	select {
	case <-w.done:
		if err := s.srv.cfg.hold(ctx); err != nil { // it may have taken long
			return nil, err
		}
		return w.l, w.err
	case <-ctx.Done():
		return nil, sigma.Wrap("named.leader", "", ctx.Err())
	}
}

// load makes a leader and publishes it.
func (s *slot) load(ctx context.Context, w *loading) {
	// A leader that has just ended may still be the current one of somebody who was faster.
	if l := s.current.Load(); l != nil {
		select {
		case <-l.done:
		default:
			w.l = l
		}
	}
	if w.l == nil {
		w.l, w.err = load(ctx, s.srv, s.id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(w.done)
	s.loading = nil
	if w.err != nil {
		s.srv.log.Error("a realm's names cannot be loaded", "realm", s.id, "err", w.err)
		return
	}
	if w.l == s.current.Load() {
		return
	}
	run, stop := context.WithCancel(ctx)
	if s.removed || !s.srv.spawn(func(context.Context) { defer stop(); w.l.run(run) }) {
		stop()
		w.l, w.err = nil, s.srv.closedError()
		return
	}
	s.stop = stop
	s.current.Store(w.l)
}

// retire ends the realm's leader for good and waits for it.
func (s *slot) retire(ctx context.Context) error {
	s.mu.Lock()
	s.removed = true
	w := s.loading
	s.mu.Unlock()
	if w != nil {
		select {
		case <-w.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	l, stop := s.current.Load(), s.stop
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	stop()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// revive takes retire back.
func (s *slot) revive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = false
}

// claimTries bounds how often a claim is repeated when a commit that was given up on came through
// in between.
const claimTries = 5

// load claims a realm and reads its tree.
func load(ctx context.Context, srv *Server, id sigma.RealmID) (*leader, error) {
	const op = "named.load"
	rec, guard, err := claim(ctx, srv.store, id)
	if err != nil {
		return nil, err
	}
	t := newTree(id, rec, srv.cfg.limits())
	now := time.Now()
	prefix := leasePrefix(id)
	err = srv.store.Scan(ctx, prefix, func(key string, value []byte) error {
		n, ok := parseHex16(strings.TrimPrefix(key, prefix))
		r, err := decodeLease(value)
		if err != nil || !ok {
			return sigma.Errorf(op, sigma.KindOther, "key %q: %v", key, err)
		}
		id := sigma.LeaseID(n)
		// Nobody could renew while there was no leader: every lease begins anew.
		t.leases[id] = &lease{id: id, ttl: r.ttl, machine: r.machine, deadline: now.Add(r.ttl),
			files: map[uint64]struct{}{}}
		return nil
	})
	if err != nil {
		return nil, unavailable(op, id, err)
	}
	if err = t.loadFences(ctx, srv.store); err != nil {
		return nil, unavailable(op, id, err)
	}
	prefix = oncePrefix(id)
	err = srv.store.Scan(ctx, prefix, func(key string, value []byte) error {
		n, ok := parseHex16(strings.TrimPrefix(key, prefix))
		c, err := decodeClient(value)
		if err != nil || !ok {
			return sigma.Errorf(op, sigma.KindOther, "key %q: %v", key, err)
		}
		t.addClient(n, c, now)
		return nil
	})
	if err != nil {
		return nil, unavailable(op, id, err)
	}
	prefix = treePrefix(id)
	err = srv.store.Scan(ctx, prefix, func(key string, value []byte) error {
		parent, name, ok := parseNodeKey(strings.TrimPrefix(key, prefix))
		n, err := decodeNode(value)
		if err != nil || !ok {
			return sigma.Errorf(op, sigma.KindOther, "key %q: %v", key, err)
		}
		n.parent, n.name = parent, name
		return t.add(n)
	})
	if err == nil {
		err = t.link()
	}
	if err != nil {
		return nil, unavailable(op, id, err)
	}
	srv.cfg.Board.AllChanged() // by a commit whose outcome was unknown
	return &leader{realm: id, store: srv.store, log: srv.log, board: srv.cfg.Board, wake: make(chan struct{}, 1),
		done: make(chan struct{}), guard: guard,
		tree: t, watches: map[uint64]*watched{}, feed: newFeed(), raised: make(chan struct{})}, nil
}

// claim writes the realm's record, after which no batch of an earlier leader takes effect.
func claim(ctx context.Context, store Store, id sigma.RealmID) (realmRecord, Revision, error) {
	const op = "named.claim"
	for range claimTries {
		value, at, found, err := store.Get(ctx, realmKey(id))
		if err != nil {
			return realmRecord{}, 0, unavailable(op, id, err)
		}
		if !found {
			return realmRecord{}, 0, &sigma.Error{Op: op, Realm: id, Kind: sigma.KindStale,
				Msg: "the realm was removed"}
		}
		rec, err := decodeRealm(value)
		if err != nil {
			return realmRecord{}, 0, err
		}
		rec.claims++
		rev, err := store.Commit(ctx, Batch{Guard: realmKey(id), GuardAt: at, Puts: []KV{{realmKey(id), rec.encode()}}})
		if err == nil {
			return rec, rev, nil
		}
		if s, ok := store.(settler); ok && errors.Is(err, ErrOthersFull) &&
			s.Settled() { // reads go on, and what writes will find that it cannot
			rec.claims--
			return rec, at, nil
		}
		if !errors.Is(err, ErrConflict) {
			return realmRecord{}, 0, unavailable(op, id, err)
		}
	}
	return realmRecord{}, 0, unavailable(op, id, ErrConflict)
}

// unavailable is what users see of a store that does not answer.
func unavailable(op string, id sigma.RealmID, err error) error {
	return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindUnavailable, Msg: "the realm's names cannot be read now",
		Err: err}
}

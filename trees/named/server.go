// Package named is the name service: one tree of directories, small files, symlinks and endpoint
// files per realm, kept in a Store.
//
// It promises: a change is in the store, synced, before it is acknowledged, and no reader sees it
// before that; one realm's changes have one order; what a caller was told stays true when the
// process is killed. A file's version grows with each change of it; a Watch misses none. An
// ephemeral file goes in the same transaction as its lease. A handle follows its file through
// renames.
//
// It assumes: a Server is the only one of its store. Where several machines hold the store, one
// leads and has the Server (package member); whatever happens, the store's revisions stop an
// earlier one from writing.
//
// It is used by trees/named/member, which has the store in etcd and says who leads.
//
// Where things are: record.go what is stored; tree.go and step.go the state of a realm and changes
// on top of it; mutate.go and lease.go what each operation does (pure); fence.go and wait.go who is
// deposed, and who waits for a name; realm.go the goroutine that leads a realm; feed.go what tells
// machines of changes; load.go how realms get a leader; file.go the handles; store.go what a store
// promises, full.go what is refused when it is full.
//
// Locks: slot.mu before Server.mu; leader.mu and leader.queueMu alone.
package named

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/wire/sigmap"
)

// FileMax is how many bytes a file may have: what etcd takes as one request by default, less the
// record around it.
const FileMax = 1<<20 - 4096

// realmsMax bounds the realms of one server.
const realmsMax = 10_000

// Config says where a Server keeps its state and how much it may be.
type Config struct {
	// Store keeps the names. Close closes it.
	Store Store
	// Authority is asked before anything is answered from memory. Default: the server may always
	// answer.
	Authority Authority
	// Log gets what an operator should know. Default: none.
	Log *slog.Logger
	// Board is where changes are counted, for those on this machine who remember what they found.
	// Default: nowhere.
	Board *changeboard.Board
	// EntriesMax is how many names one realm may have. Each takes about 400 bytes of memory.
	// Default 1,000,000.
	EntriesMax int
	// BytesMax is how much data the files of one realm may have together. It is all in memory.
	// Default 256 MiB.
	BytesMax sigma.Bytes
	// Idle is for how long at least, and for twice as long at most, a realm that nobody uses stays
	// in memory. Default 2 min.
	Idle time.Duration
}

func (cfg Config) withDefaults() Config {
	cfg.EntriesMax = cmp.Or(cfg.EntriesMax, 1_000_000)
	cfg.BytesMax = cmp.Or(cfg.BytesMax, 256*sigma.MiB)
	cfg.Idle = cmp.Or(cfg.Idle, 2*time.Minute)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// Authority says whether a server may answer: one that leads among several members may for a
// while after it made sure of that. Safe for concurrent use.
type Authority interface {
	// Hold returns nil while the server may answer. It waits if that may become so soon.
	Hold(ctx context.Context) error
}

// hold returns nil while the server may answer.
func (cfg *Config) hold(ctx context.Context) error {
	if cfg.Authority == nil {
		return nil
	}
	return cfg.Authority.Hold(ctx)
}

// Server is the name service. It implements sigma.Tree and sigma.Realms. Safe for concurrent use.
type Server struct {
	cfg   Config
	store Store
	log   *slog.Logger
	admin chan struct{} // a token for who makes or removes realms

	running chan struct{} // closed by Run
	closing chan struct{} // closed by Close, or when Run ends

	mu     sync.Mutex
	realms map[sigma.RealmID]*slot // guarded by mu
	ctx    context.Context         // of Run; guarded by mu; nil before
	cancel context.CancelFunc      // guarded by mu
	closed bool                    // guarded by mu: no more goroutines
	work   sync.WaitGroup          // goroutines; Add only with mu held and not closed
	once   sync.Once               // Close
}

var (
	_ sigma.Tree   = (*Server)(nil)
	_ sigma.Realms = (*Server)(nil)
)

// Open finds the realms of a store. ctx bounds the opening only. Calls wait until Run is
// running.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if cfg.Store == nil {
		return nil, sigma.Errorf("named.Open", sigma.KindInvalid, "a server needs a store")
	}
	s := &Server{cfg: cfg, store: cfg.Store, log: cfg.Log, admin: make(chan struct{}, 1), running: make(chan struct{}),
		closing: make(chan struct{}),
		realms:  map[sigma.RealmID]*slot{}}
	if err := s.findRealms(ctx); err != nil {
		s.store.Close()
		return nil, err
	}
	return s, nil
}

// findRealms reads the realms' records and finishes removals that were cut short.
func (s *Server) findRealms(ctx context.Context) error {
	const op = "named.Open"
	var removing []sigma.RealmID
	err := s.store.Scan(ctx, realmPrefix, func(key string, value []byte) error {
		id := sigma.RealmID(strings.TrimPrefix(key, realmPrefix))
		rec, err := decodeRealm(value)
		if err == nil {
			err = id.Check()
		}
		if err != nil {
			return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindOther, Msg: "realm " + string(id), Err: err}
		}
		if rec.removing {
			removing = append(removing, id)
			return nil
		}
		s.realms[id] = s.newSlot(id, rec)
		return nil
	})
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	for _, id := range removing {
		if err := s.erase(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) newSlot(id sigma.RealmID, rec realmRecord) *slot {
	at := &slot{id: id, number: rec.number, created: time.Unix(0, rec.created), srv: s}
	at.shares.Store(rec.shares)
	if l := rec.limits; l != (sigma.RealmLimits{}) {
		at.limits.Store(&l)
	}
	return at
}

// Run serves until ctx ends or the store stops by itself, which is the error then. It returns when
// all goroutines but the store's have ended. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if s.ctx != nil || s.closed {
		s.mu.Unlock()
		return sigma.Errorf("named.Run", sigma.KindInvalid, "run twice, or after Close")
	}
	s.ctx, s.cancel = ctx, cancel
	close(s.running)
	s.work.Go(func() { s.loadLeased(ctx) })
	s.work.Go(func() { s.tendRealms(ctx) })
	s.mu.Unlock()
	var err error
	select {
	case <-ctx.Done():
	case <-s.store.Lost():
		err = sigma.Errorf("named.Run", sigma.KindUnavailable, "the store of names has stopped")
	}
	cancel()
	s.shut()
	return err
}

// shut lets no more goroutines start and waits for those there are.
func (s *Server) shut() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// Close ends Run and closes the store. Calls that wait get KindUnavailable.
func (s *Server) Close() {
	s.shut()
	s.once.Do(s.store.Close)
}

// spawn starts a goroutine that ends when Run does; false if it is too late, or too early.
func (s *Server) spawn(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ctx == nil {
		return false
	}
	ctx := s.ctx
	s.work.Go(func() { f(ctx) })
	return true
}

// started waits for Run.
func (s *Server) started(ctx context.Context) error {
	select {
	case <-s.closing:
		return s.closedError()
	default:
	}
	select {
	case <-s.running:
		return nil
	case <-s.closing:
		return s.closedError()
	case <-ctx.Done():
		return sigma.Wrap("named.started", "", ctx.Err())
	}
}

func (s *Server) closedError() error {
	return &sigma.Error{Op: "named.Server", Kind: sigma.KindUnavailable, Msg: "the name service is shutting down"}
}

// Attach returns the root of p's realm. A system principal may name another realm, and act as its
// owner (sigmap.AsOwner) instead of the provider; others always do.
func (s *Server) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	const op = "named.Attach"
	by := asOwner
	if p.System {
		by = asProvider
		if of, ok := strings.CutSuffix(name, sigmap.AsOwner); ok {
			name, by = of, asOwner
		}
	}
	realm, err := p.RealmNamed(op, name)
	if err != nil {
		return nil, err
	}
	at, err := s.slotOf(op, realm)
	if err != nil {
		return nil, err
	}
	l, err := at.leader(ctx)
	if err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	var root uint64
	err = l.read(func(t *tree) error { root = t.rec.rootID(); return nil })
	return &file{slot: at, id: root, root: true, by: by, machine: machineOfPrincipal(p), system: p.System}, err
}

// machineOfPrincipal is what leases are kept by; "" if there is no proper name.
func machineOfPrincipal(p sigma.Principal) sigma.MachineID {
	if p.Machine.Check() != nil {
		return ""
	}
	return p.Machine
}

// slotOf is where a realm's names are served.
func (s *Server) slotOf(op string, id sigma.RealmID) (*slot, error) {
	s.mu.Lock()
	at := s.realms[id]
	s.mu.Unlock()
	if at == nil {
		return nil, noRealm(op, id)
	}
	return at, nil
}

func noRealm(op string, id sigma.RealmID) error {
	return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindNotFound, Msg: fmt.Sprintf("there is no realm %q",
		string(id)), Hint: "sigma realm ls lists the realms"}
}

// administer takes the token for making and removing realms.
func (s *Server) administer(ctx context.Context) (release func(), err error) {
	if err := s.started(ctx); err != nil {
		return nil, err
	}
	select {
	case s.admin <- struct{}{}:
		return func() { <-s.admin }, nil
	case <-ctx.Done():
		return nil, sigma.Wrap("named.administer", "", ctx.Err())
	case <-s.closing:
		return nil, s.closedError()
	}
}

// Create makes a realm with an empty root directory.
func (s *Server) Create(ctx context.Context, id sigma.RealmID) error {
	const op = "named.Create"
	if err := id.Check(); err != nil {
		return sigma.Wrap(op, "", err)
	}
	release, err := s.administer(ctx)
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	known, count := s.realms[id] != nil, len(s.realms)
	s.mu.Unlock()
	exists := &sigma.Error{Op: op, Realm: id, Kind: sigma.KindExists, Msg: fmt.Sprintf("there is a realm %q already",
		string(id))}
	switch {
	case known:
		return exists
	case count >= realmsMax:
		return sigma.Errorf(op, sigma.KindNoSpace, "there are %d realms already", count)
	}
	rec, created, err := s.create(ctx, id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.realms[id] = s.newSlot(id, rec)
	s.mu.Unlock()
	if !created {
		return exists
	}
	return nil
}

// create stores a new realm. made is false if an earlier attempt was stored after all.
func (s *Server) create(ctx context.Context, id sigma.RealmID) (rec realmRecord, created bool, err error) {
	const op = "named.Create"
	value, _, found, err := s.store.Get(ctx, realmKey(id))
	if err != nil {
		return rec, false, unavailable(op, id, err)
	}
	if found {
		rec, err = decodeRealm(value)
		return rec, false, err
	}
	value, at, found, err := s.store.Get(ctx, counterKey)
	if err != nil {
		return rec, false, unavailable(op, id, err)
	}
	var n uint64
	if found {
		if n, err = decodeCounter(value); err != nil {
			return rec, false, err
		}
	}
	if n >= realmNumberMax {
		return rec, false, sigma.Errorf(op, sigma.KindNoSpace, "all realm numbers are used up")
	}
	rec = realmRecord{number: n + 1, created: time.Now().UnixNano(), nextID: 2, seq: 1}
	root := newRoot(rec)
	_, err = s.store.Commit(ctx, Batch{Guard: counterKey, GuardAt: at, Puts: []KV{
		{counterKey, encodeCounter(n + 1)}, {realmKey(id), rec.encode()}, {nodeKey(id, 0, ""), root.encode()}},
		Writes: id != sigma.SystemRealm})
	return rec, true, commitError(op, id, err)
}

// commitError is what users see of a commit that failed.
func commitError(op string, id sigma.RealmID, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrConflict):
		return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindUnavailable,
			Msg: "another name server changed it at the same time", Err: err}
	case errors.Is(err, ErrFull):
		return storeFull(op, id, err)
	}
	return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindLost, Msg: "it is unknown whether the change was stored",
		Err: err}
}

// Remove removes a realm with all its names and leases. Watches in it end with KindNotFound, other
// calls get KindStale. When it fails half way, the realm is gone for all but Remove, which goes on
// where it was; so does the next Open.
func (s *Server) Remove(ctx context.Context, id sigma.RealmID) error {
	const op = "named.Remove"
	release, err := s.administer(ctx)
	if err != nil {
		return err
	}
	defer release()
	at, err := s.slotOf(op, id)
	if err != nil {
		return err
	}
	if err := at.retire(ctx); err != nil {
		at.revive()
		return sigma.Wrap(op, "", err)
	}
	if err := s.erase(ctx, id); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.realms, id)
	s.mu.Unlock()
	return nil
}

// erasePage is how many keys are deleted at once, so that other realms' commits get in between.
const erasePage = 2000

// erase deletes all keys of a realm that has no leader. The realm's record goes last and says
// meanwhile what is going on.
func (s *Server) erase(ctx context.Context, id sigma.RealmID) error {
	const op = "named.Remove"
	value, at, found, err := s.store.Get(ctx, realmKey(id))
	if err != nil {
		return unavailable(op, id, err)
	}
	if !found {
		return nil
	}
	rec, err := decodeRealm(value)
	if err != nil {
		return err
	}
	rec.removing = true
	at, err = s.store.Commit(ctx, Batch{Guard: realmKey(id), GuardAt: at, Puts: []KV{{realmKey(id), rec.encode()}}})
	if err != nil {
		return commitError(op, id, err)
	}
	for _, prefix := range []string{treePrefix(id), leasePrefix(id), fencePrefix(id), oncePrefix(id),
		credentialsPrefix(id)} {
		for more := true; more; {
			if more, err = s.store.DeletePrefix(ctx, prefix, erasePage); err != nil {
				return commitError(op, id, err)
			}
		}
	}
	_, err = s.store.Commit(ctx, Batch{Guard: realmKey(id), GuardAt: at, Deletes: []string{realmKey(id)}})
	return commitError(op, id, err)
}

// SetShares stores how much of what is shared a realm has a right to; whoever lists the realms sees
// it. It is 1 to sigma.SharesMax.
func (s *Server) SetShares(ctx context.Context, id sigma.RealmID, shares uint32) error {
	const op = "named.SetShares"
	if shares == 0 || shares > sigma.SharesMax {
		return sigma.Errorf(op, sigma.KindInvalid, "a realm has 1 to %d shares, not %d", sigma.SharesMax, shares)
	}
	at, err := s.slotOf(op, id)
	if err != nil {
		return err
	}
	l, err := at.leader(ctx)
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	return sigma.Wrap(op, "", l.do(ctx, sharesOp{at, shares}).err)
}

// sharesOp sets a realm's shares. That they are seen before they are stored harms nobody: a restart
// brings back what is stored.
type sharesOp struct {
	at     *slot
	shares uint32
}

func (o sharesOp) apply(s *step, _ time.Time) reply {
	s.rec.shares, s.stored = o.shares, true
	o.at.shares.Store(o.shares)
	return reply{}
}

func (o sharesOp) size() int { return 8 }

// List returns the realms by name. Procs are not named's to count and are 0.
func (s *Server) List(context.Context) ([]sigma.RealmInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := make([]sigma.RealmInfo, 0, len(s.realms))
	for id, at := range s.realms {
		infos = append(infos, sigma.RealmInfo{ID: id, Created: at.created, Shares: max(1, at.shares.Load()),
			Limits: at.limitsInForce()})
	}
	slices.SortFunc(infos, func(a, b sigma.RealmInfo) int { return cmp.Compare(a.ID, b.ID) })
	return infos, nil
}

package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
)

// etcdStore is a Store in an etcd. That is one of an operator's (external.go), or one inside this
// process, which has no listener, not even a socket file: the client calls the server's functions,
// and other members come in by streams (peers.go).
//
// etcd keeps every old value of a key until it is told to compact. Nobody asks for old values here,
// and a tenant that rewrites a big file would fill the database within etcd's shortest automatic
// period. So the store compacts by itself each time that compactBytes were written, and writers
// wait when it cannot keep up.
type etcdStore struct {
	etcd   *embed.Etcd // nil = it is external
	client *clientv3.Client
	log    *slog.Logger
	lost   <-chan struct{}
	work   sync.WaitGroup
	stop   context.CancelFunc // ends compaction
	due    chan struct{}      // holds a token when compaction should start
	lock   *os.File           // of the directory; nil = none
	keep   atomic.Int64       // the revision that a snapshot reads; 0 = none
	max    atomic.Int64       // bytes that etcd's database may have; 0 = not known

	start    time.Time
	squeezed atomic.Int64 // when compaction was tried for want of room, nanoseconds after start
	total    atomic.Int64 // bytes written in all
	sizeSeen,
	totalSeen atomic.Int64 // of etcd's database when it was looked at, and of total when it had changed
	room     atomic.Pointer[space] // of an external etcd, as it was last; nil = not known
	lookRoom chan struct{}         // holds a token when that is to be looked at

	disk   func() (sigma.Space, error) // where it is; nil = an operator's
	whose  sigma.MachineID             // that is
	narrow atomic.Bool                 // less than the reserve of that is free
	file   string                      // of etcd's database
	aside  atomic.Int64                // how much of that the disk has set aside

	several atomic.Bool // there are other members, or will be in a moment

	claimed string                   // of an external etcd: whose names it has, as far as this process has made sure
	foreign func(there string) error // why another system there is refused

	mu      sync.Mutex
	written int64         // bytes since the last compaction began; guarded by mu
	over    chan struct{} // closed when a compaction has ended; replaced then; guarded by mu
}

const (
	// compactBytes bounds the database's garbage; four times as much makes writers wait.
	compactBytes = 64 << 20
	// etcd keeps the last entries of its log in memory until it takes a snapshot; an entry may have
	// named.CommitBytesMax bytes, usual ones few.
	etcdSnapshotCount = 2000
	etcdCatchUp       = 100
	scanPage          = 1000    // keys; an average page of small files has 100 KB
	scanPageBig       = 16      // keys while they are big: at most 16 MiB
	scanPageBytes     = 4 << 20 // what tells big from small
)

// openAlone starts an etcd of one member in cfg.Dir, and a server on it that asks nobody whether it
// leads. ctx bounds the opening only.
func openAlone(ctx context.Context, cfg Config) (*named.Server, error) {
	cfg = cfg.withDefaults()
	s, err := startEtcd(cfg, func(*embed.Config) {})
	if err != nil {
		return nil, err
	}
	if err = s.awaitReady(ctx); err == nil {
		err = s.makeRoom(ctx)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	cfg.Store = s
	return named.Open(ctx, cfg.Config)
}

// startEtcd starts etcd in cfg.Dir; change sees its configuration before. It may not serve for long
// yet: while most of its members are missing.
func startEtcd(cfg Config, change func(*embed.Config)) (*etcdStore, error) {
	const op = "named.openEtcd"
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil || cfg.Dir == "" {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "%q is no directory for names", cfg.Dir)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	c := etcdConfig(filepath.Join(dir, etcdDir), cfg)
	change(c)
	e, err := embed.StartEtcd(c)
	if err != nil {
		lock.Close()
		return nil, &sigma.Error{Op: op, Path: dir, Kind: sigma.KindUnavailable, Msg: "etcd does not start", Err: err}
	}
	s := newStore(e, v3client.New(e.Server), cfg.Log, e.Server.StopNotify(), lock)
	s.max.Store(int64(cfg.StoreMax))
	s.disk, s.whose = func() (sigma.Space, error) { return cfg.disk(cfg.Dir) }, cfg.Machine
	s.file = filepath.Join(c.Dir, "member", "snap", "db")
	s.setAside()
	tending, stop := context.WithCancel(context.Background())
	compacting := s.stop
	s.stop = func() { compacting(); stop() }
	s.work.Go(func() { s.tend(tending) })
	return s, nil
}

func newStore(e *embed.Etcd, client *clientv3.Client, log *slog.Logger, lost <-chan struct{},
	lock *os.File) *etcdStore {
	compacting, stop := context.WithCancel(context.Background())
	s := &etcdStore{etcd: e, client: client, log: log, lost: lost, stop: stop, due: make(chan struct{}, 1),
		start: time.Now(), lookRoom: make(chan struct{}, 1), over: make(chan struct{}), lock: lock}
	s.work.Go(func() { s.compact(compacting) })
	return s
}

// etcdDir is where etcd's files are in the data directory.
const etcdDir = "etcd"

// awaitReady waits until etcd serves.
func (s *etcdStore) awaitReady(ctx context.Context) error {
	select {
	case <-s.etcd.Server.ReadyNotify():
		return nil
	case <-s.lost:
		return sigma.Errorf("named.openEtcd", sigma.KindUnavailable, "etcd stopped while it started")
	case <-ctx.Done():
		return sigma.Wrap("named.openEtcd", "", ctx.Err())
	}
}

// etcdConfig makes the configuration of a single member without listeners. The URLs are names that
// etcd wants to have; nobody opens them.
func etcdConfig(dir string, cfg Config) *embed.Config {
	c := embed.NewConfig()
	nobody := []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	c.Name = "named"
	c.Dir = dir
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = nobody, nobody
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.EnableGRPCGateway = false
	c.MaxRequestBytes = named.CommitBytesMax
	c.MaxTxnOps = named.CommitOpsMax
	c.TickMs, c.ElectionMs = uint(raftTick/time.Millisecond), uint(raftElection/time.Millisecond)
	c.MaxLearners = membersMax
	c.QuotaBackendBytes = int64(cfg.StoreMax)
	c.SnapshotCount = etcdSnapshotCount
	c.SnapshotCatchUpEntries = etcdCatchUp
	c.MaxWalFiles, c.MaxSnapFiles = 2, 2
	c.AutoCompactionRetention = "0"
	c.LogLevel = "warn"
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(slogCore{log: cfg.Log}))
	return c
}

// makeRoom lifts the alarm that etcd raised when its quota was full, if compaction makes room.
func (s *etcdStore) makeRoom(ctx context.Context) error {
	const op = "named.openEtcd"
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	for _, a := range alarms.Alarms {
		if a.Alarm != etcdserverpb.AlarmType_NOSPACE {
			return sigma.Errorf(op, sigma.KindOther, "etcd has the alarm %v; its data may be damaged", a.Alarm)
		}
		s.log.Warn("the store of names was full; compacting")
		if err := s.compactNow(ctx); err != nil {
			return sigma.Wrap(op, "", err)
		}
		if err := s.defragment(); err != nil {
			return sigma.Wrap(op, "", err)
		}
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
			return sigma.Wrap(op, "", err)
		}
	}
	return nil
}

// Get implements Store.
func (s *etcdStore) Get(ctx context.Context, key string) (value []byte, at named.Revision, found bool, err error) {
	return s.get(ctx, key)
}

func (s *etcdStore) get(ctx context.Context, key string, how ...clientv3.OpOption) (value []byte, at named.Revision,
	found bool, err error) {
	r, err := s.client.Get(ctx, key, how...)
	if err != nil || len(r.Kvs) == 0 {
		return nil, 0, false, err
	}
	return r.Kvs[0].Value, named.Revision(r.Kvs[0].ModRevision), true, nil
}

// Scan implements Store. It reads all pages at the revision of the first, so that they fit
// together.
func (s *etcdStore) Scan(ctx context.Context, prefix string, f func(key string, value []byte) error) error {
	return s.scan(ctx, prefix, f)
}

func (s *etcdStore) scan(ctx context.Context, prefix string, f func(key string, value []byte) error,
	how ...clientv3.OpOption) error {
	from, end, page, revision := prefix, clientv3.GetPrefixRangeEnd(prefix), int64(scanPage), int64(0)
	for {
		r, err := s.client.Get(ctx, from, append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(page),
			clientv3.WithRev(revision)}, how...)...)
		if err != nil {
			return err
		}
		revision = r.Header.Revision
		size := 0
		for _, kv := range r.Kvs {
			size += len(kv.Value)
			if err := f(string(kv.Key), kv.Value); err != nil {
				return err
			}
		}
		if !r.More {
			return nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
		if page = scanPage; size > scanPageBytes {
			page = scanPageBig
		}
	}
}

// Commit implements Store.
func (s *etcdStore) Commit(ctx context.Context, b named.Batch) (named.Revision, error) {
	if err := s.admit(ctx, b); err != nil {
		return 0, err
	}
	return s.commitIf(ctx, b)
}

// commitIf is Commit on more conditions, without waiting for room.
func (s *etcdStore) commitIf(ctx context.Context, b named.Batch, also ...clientv3.Cmp) (named.Revision, error) {
	ops := make([]clientv3.Op, 0, len(b.Puts)+len(b.Deletes))
	size := 0
	for _, kv := range b.Puts {
		ops = append(ops, clientv3.OpPut(kv.Key, string(kv.Value)))
		size += len(kv.Key) + len(kv.Value)
	}
	for _, key := range b.Deletes {
		ops = append(ops, clientv3.OpDelete(key))
		size += len(key)
	}
	also = append(also, clientv3.Compare(clientv3.ModRevision(b.Guard), "=", int64(b.GuardAt)))
	r, err := s.client.Txn(ctx).If(also...).Then(ops...).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace), errors.Is(err, rpctypes.ErrGRPCNoSpace):
		if s.etcd == nil {
			return 0, named.ErrOthersFull
		}
		return 0, named.ErrFull
	case err != nil:
		return 0, err
	case !r.Succeeded:
		return 0, named.ErrConflict
	}
	s.wrote(size)
	return named.Revision(r.Header.Revision), nil
}

// DeletePrefix implements Store.
func (s *etcdStore) DeletePrefix(ctx context.Context, prefix string, most int) (bool, error) {
	return s.deletePrefixIf(ctx, prefix, most)
}

func (s *etcdStore) deletePrefixIf(ctx context.Context, prefix string, most int, also ...clientv3.Cmp) (bool, error) {
	r, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(int64(most)))
	if err != nil || len(r.Kvs) == 0 {
		return false, err
	}
	t, err := s.client.Txn(ctx).If(also...).Then(clientv3.OpDelete(prefix,
		clientv3.WithRange(string(r.Kvs[len(r.Kvs)-1].Key)+"\x00"))).Commit()
	if err == nil && !t.Succeeded {
		err = named.ErrConflict
	}
	return r.More, err
}

// Lost implements Store.
func (s *etcdStore) Lost() <-chan struct{} { return s.lost }

// Close implements Store.
func (s *etcdStore) Close() {
	s.stop()
	s.work.Wait()
	s.client.Close()
	if s.etcd != nil {
		s.etcd.Close()
	}
	s.lock.Close() // nil does no harm
}

// admit makes a writer wait while there is too much garbage, and refuses what would take the last
// room.
func (s *etcdStore) admit(ctx context.Context, b named.Batch) error {
	s.setAside()
	if err := s.diskFor(b); err != nil {
		return err
	}
	if b.Grows && !s.roomFor(ctx, b) {
		if s.etcd == nil {
			return named.ErrOthersNearlyFull
		}
		return named.ErrFull
	}
	for {
		s.mu.Lock()
		full, over := s.written > 4*s.compactDue(), s.over
		s.mu.Unlock()
		if !full {
			return nil
		}
		s.compactSoon() // it was not due when what is written now was, if the disk has become low since
		select {
		case <-over:
		case <-s.lost:
			return errors.New("etcd has stopped")
		case <-ctx.Done():
			return fmt.Errorf("waiting for compaction: %w", ctx.Err())
		}
	}
}

func (s *etcdStore) wrote(size int) {
	s.total.Add(int64(size))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written += int64(size)
	if s.written > s.compactDue() {
		s.compactSoon()
	}
}

// compactSoon wakes compact.
func (s *etcdStore) compactSoon() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// compact removes old values whenever they are due.
func (s *etcdStore) compact(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.lost:
			return
		case <-s.due:
		}
		s.mu.Lock()
		began := s.written
		s.mu.Unlock()
		if err := s.compactNow(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("old names cannot be removed from etcd", "err", err)
			select {
			case <-time.After(time.Second): // whoever writes next tries again
			case <-ctx.Done():
			}
		}
		s.mu.Lock()
		s.written -= began
		close(s.over)
		s.over = make(chan struct{})
		s.mu.Unlock()
	}
}

// compactNow removes all values but the last of each key, and returns when their space can be used
// again.
func (s *etcdStore) compactNow(ctx context.Context) error {
	r, err := s.client.Get(ctx, termKey)
	if err != nil {
		return err
	}
	revision := r.Header.Revision
	if keep := s.keep.Load(); keep > 0 { // a snapshot that is under way reads that revision
		revision = min(revision, keep)
	}
	_, err = s.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return err
}

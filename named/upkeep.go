package named

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"

	"sigmaos.dev/sigma"
)

// Upkeep of an etcd of our own, which nobody has to think of:
//
// When etcd's database is as big as it may be, etcd refuses all that puts something: removals, which rewrite records, and a leader's beats as well. So named stops before: what makes a realm bigger is refused
// while less than the reserve is left, and all else goes on. Removals and compaction (etcd.go) make room again.
//
// A database never shrinks by itself, but uses its free pages again. One of which much is free is copied (etcd: defragmentation), one member at a time. etcd answers nothing meanwhile, so this is
// done only while the copy is small.

const (
	reserveLeast = 16 << 20
	reservePart  = 8 // of the whole
	squeezePause = time.Second
	tendStore    = 5 * time.Second

	defragFree = 64 << 20         // less is not worth it, nor less than half
	defragMost = 128 << 20        // bytes in use: what the copy costs
	turnTime   = 30 * time.Second // members take turns, by their clocks; two that differ much may do it at once, which costs waiting only
)

func (s *etcdStore) reserve() int64 { return max(reserveLeast, s.max/reservePart) }

// compactDue is how much is written between compactions. What is written until one must have ended, four times as much, fits into the reserve.
func (s *etcdStore) compactDue() int64 {
	if s.max == 0 {
		return compactBytes
	}
	return min(compactBytes, s.reserve()/4)
}

// roomFor says whether a batch leaves the reserve alone. If not it tries compaction first, now and then.
func (s *etcdStore) roomFor(ctx context.Context, b Batch) bool {
	if s.etcd == nil || s.max == 0 {
		return true
	}
	size := int64(0)
	for _, kv := range b.Puts {
		size += int64(len(kv.Key) + len(kv.Value))
	}
	fits := func() bool { // a database that is as big as it may be has room as long as much in it is free, in pieces that need not suit
		b := s.etcd.Server.Backend()
		file, used := b.Size(), b.SizeInUse()
		return used+size <= s.max-s.reserve() && (file+size <= s.max-s.reserve()/2 || file-used >= s.reserve())
	}
	if fits() {
		return true
	}
	now, last := time.Now().UnixNano(), s.squeezed.Load()
	if now-last < int64(squeezePause) || !s.squeezed.CompareAndSwap(last, now) {
		return false
	}
	if err := s.squeeze(ctx); err != nil {
		s.log.Warn("the store of names is full, and old names cannot be removed from it", "err", err)
		return false
	}
	if fits() {
		return true
	}
	s.log.Warn("the store of names is full: it takes only what makes it smaller", "used", s.etcd.Server.Backend().SizeInUse(), "bytes", s.etcd.Server.Backend().Size(), "most", s.max)
	return false
}

// squeeze compacts and has the pages that this frees counted: those of a transaction are free after the next.
func (s *etcdStore) squeeze(ctx context.Context) error {
	if err := s.compactNow(ctx); err != nil {
		return err
	}
	s.etcd.Server.Backend().ForceCommit()
	s.etcd.Server.Backend().ForceCommit()
	return nil
}

// storeFull is what users see of it.
func storeFull(op string, id sigma.RealmID) error {
	return &sigma.Error{Op: op, Realm: id, Kind: sigma.KindNoSpace, Msg: "the store of names is full", Hint: "remove names, which makes room by itself; the provider sees which realms may hold much with: sigma realm ls --json"}
}

// tend lifts alarms and defragments.
func (s *etcdStore) tend(ctx context.Context) {
	select {
	case <-s.etcd.Server.ReadyNotify():
	case <-ctx.Done():
		return
	}
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.lost:
			return
		case <-time.After(tendStore):
		}
		err := s.tendOnce(ctx, time.Now())
		if err == nil {
			said = ""
		} else if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			s.log.Warn("the store of names cannot be tended", "err", err)
		}
	}
}

func (s *etcdStore) tendOnce(ctx context.Context, now time.Time) error {
	srv := s.etcd.Server
	if len(srv.Alarms()) > 0 && srv.Leader() == srv.MemberID() {
		return s.makeRoom(ctx)
	}
	b := srv.Backend()
	if !wantsDefrag(b.Size(), b.SizeInUse()) || !s.turn(now) {
		return nil
	}
	return s.defragment()
}

// wantsDefrag says whether a database is worth its copying.
func wantsDefrag(size, used int64) bool {
	free := size - used
	return free >= defragFree && free >= size/2 && used <= defragMost
}

// turn says whether it is this member's.
func (s *etcdStore) turn(now time.Time) bool {
	var ids []types.ID
	for _, x := range s.etcd.Server.Cluster().Members() {
		ids = append(ids, x.ID)
	}
	slices.Sort(ids)
	i := slices.Index(ids, s.etcd.Server.MemberID())
	return len(ids) < 2 || i >= 0 && now.Unix()/int64(turnTime/time.Second)%int64(len(ids)) == int64(i)
}

func (s *etcdStore) defragment() error {
	b, began := s.etcd.Server.Backend(), time.Now()
	before := b.Size()
	if err := b.Defrag(); err != nil { // the client has no way to that of a server without a listener
		return err
	}
	s.log.Info("the store of names was defragmented", "before", before, "after", b.Size(), "took", time.Since(began))
	return nil
}

// grows says whether a step makes its realm bigger by more than a record.
func (s *step) grows() bool {
	return s.count > len(s.base.cells) || s.bytes > s.base.bytes || s.cost > growFree && s.bytes == s.base.bytes
}

// growFree is how much a step may rewrite while the store is full.
const growFree = 256 << 10

// serveEach serves requests that were applied in one step each in a step of its own.
func (l *leader) serveEach(in, rest []*request) (_ []*request, granted, ended bool) {
	for i, r := range in {
		r.taken.Store(false)
		more, g, end := l.serve([]*request{r})
		granted = granted || g
		rest = append(more, rest...)
		if end {
			return append(in[i+1:], rest...), granted, true
		}
	}
	return rest, granted, false
}

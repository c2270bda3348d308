package member

import (
	"context"
	"os"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"golang.org/x/sys/unix"

	"sigmaos.dev/trees/diskspace"
	"sigmaos.dev/trees/named"
)

// Upkeep of an etcd of our own, which nobody has to think of:
//
// When etcd's database is as big as it may be, etcd refuses all that puts something: removals,
// which rewrite records, and a leader's beats as well. So named stops before: what makes a realm
// bigger is refused while less than the reserve is left, and all else goes on. Removals and
// compaction (etcd.go) make room again.
//
// The disk may be full before the database is, and then etcd cannot go on at all. So while less
// than a reserve of it is free (diskspace), changes of a tenant's realm are refused but for those
// that make it smaller; leases, limits, the realm of the system and realms' ends go on, and old
// values are compacted sooner.
//
// An etcd that somebody else runs tells its quota (since 3.6), and the same is done there. But
// others may fill it, or it may not tell. Then it raises its alarm and refuses everything that
// puts, removals too; a leader goes on answering reads, as it can still make sure of its term
// (etcdStore.beat).
//
// A database never shrinks by itself, but uses its free pages again. One of which much is free is
// copied (etcd: defragmentation), one member at a time. etcd answers nothing meanwhile, so this is
// done only while the copy is small.

const (
	reserveLeast = 16 << 20
	reservePart  = 8 // of the whole
	squeezePause = time.Second
	tendStore    = 5 * time.Second

	defragFree = 64 << 20  // less is not worth it, nor less than half
	defragMost = 128 << 20 // bytes in use: what the copy costs
	// members take turns, by their clocks; two that differ much may do it at once, which costs
	// waiting only
	turnTime = 30 * time.Second
)

func (s *etcdStore) reserve() int64 {
	most := s.max.Load()
	return min(max(reserveLeast, most/reservePart), most/2)
}

// space is how big a database is.
type space struct {
	file, used int64 // bytes; of which the second are not free
	total      int64 // etcdStore.total then
}

// space is what the database has now, at most.
func (s *etcdStore) space() space {
	if s.etcd != nil {
		b, total := s.etcd.Server.Backend(), s.total.Load()
		x := space{file: b.Size(), used: b.SizeInUse()}
		if s.sizeSeen.Swap(x.file) != x.file { // what was written since is not in it yet: etcd gathers transactions
			s.totalSeen.Store(total)
		}
		more := total - s.totalSeen.Load()
		return space{file: x.file + more, used: x.used + more}
	}
	x := *s.room.Load()
	more := s.total.Load() - x.total
	if more > s.reserve()/8 {
		select {
		case s.lookRoom <- struct{}{}:
		default:
		}
	}
	return space{file: x.file + more, used: x.used + more}
}

// follow looks now and then how big an external etcd's database is.
func (s *etcdStore) followSpace(ctx context.Context) {
	for {
		if err := s.lookSpace(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("how much room there is in etcd is not known", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.lookRoom:
		case <-time.After(tendStore):
		}
	}
}

// lookSpace asks all members of an external etcd, of which the biggest counts.
func (s *etcdStore) lookSpace(ctx context.Context) (err error) {
	now, most := space{total: s.total.Load()}, int64(0)
	for _, at := range s.client.Endpoints() {
		soon, cancel := context.WithTimeout(ctx, commitTry)
		r, e := s.client.Status(soon, at)
		cancel()
		if e != nil {
			err = e
			continue
		}
		if q := r.DbSizeQuota; q > 0 && (most == 0 || q < most) {
			most = q
		}
		now.file, now.used = max(now.file, r.DbSize), max(now.used, r.DbSizeInUse)
	}
	if most > 0 {
		s.room.Store(&now)
		s.max.Store(most)
	}
	return err
}

// compactDue is how much is written between compactions. What is written until one must have ended,
// four times as much, fits into the reserve.
func (s *etcdStore) compactDue() int64 {
	if s.narrow.Load() {
		return compactNarrow
	}
	if s.max.Load() == 0 {
		return compactBytes
	}
	return min(compactBytes, s.reserve()/4)
}

// roomFor says whether a batch leaves the reserve alone. If not it tries compaction first, now and
// then.
func (s *etcdStore) roomFor(ctx context.Context, b named.Batch) bool {
	most := s.max.Load()
	if most == 0 {
		return true
	}
	size := int64(0)
	for _, kv := range b.Puts {
		size += int64(len(kv.Key) + len(kv.Value))
	}
	fits :=
		func() bool {
			// a database that is as big as it may be has room as long as much in it is free, in
			// pieces that need not suit
			x := s.space()
			if x.used+size > most-s.reserve() || s.etcd == nil &&
				x.file+
					size > most-s.reserve()/4 {
				// another's etcd refuses even removals when its file is as big as it may be,
				// whatever is free in it
				return false
			}
			tight := s.etcd != nil && x.used <= defragMost &&
				x.file+
					// among few free pages there may be none that suit, and to copy them is cheap
					size > most-s.reserve()/4
			return x.file+size <= most-s.reserve()/2 || x.file-x.used >= s.reserve() && !tight
		}
	if fits() {
		return true
	}
	now, last := int64(time.Since(s.start)), s.squeezed.Load()
	if last > 0 && now-last < int64(squeezePause) || !s.squeezed.CompareAndSwap(last, now) {
		return false
	}
	if err := s.squeeze(ctx); err != nil {
		s.log.Warn("the store of names is full, and old names cannot be removed from it", "err", err)
		return false
	}
	if x := s.space(); s.etcd != nil && x.used <= defragMost && x.file-x.used >= s.reserve() {
		if err := s.defragment(); err != nil {
			s.log.Warn("the store of names cannot be defragmented", "err", err)
		}
	}
	if fits() {
		return true
	}
	s.log.Warn("the store of names is full: it takes only what makes it smaller", "used", s.space().used, "bytes",
		s.space().file, "most", most)
	return false
}

// compactNarrow is compactDue while the disk is low.
const compactNarrow = 4 << 20

// diskFor refuses a batch that writes while less than the reserve of the disk is free.
func (s *etcdStore) diskFor(b named.Batch) error {
	if s.disk == nil {
		return nil
	}
	space, err := s.disk()
	if err != nil { // it will be seen when something is written
		return nil
	}
	low := diskspace.Low(space)
	if s.narrow.Swap(low) != low {
		s.log.Warn("the disk of the names", "low", low, "free", space.Free, "kept", diskspace.Reserve(space))
	}
	if !low || !b.Writes {
		return nil
	}
	return &named.DiskFullError{Why: diskspace.Error("named.commit", s.whose, space)}
}

// asideMore is how much is set aside beyond the pages that etcd's database has used, and at least
// half of it. What is written until old values are removed from a database on a low disk fits into
// it.
const asideMore = compactNarrow

// setAside takes disk space for what etcd's database has used and a little more. Its file has
// holes. etcd ends its process when a page does not fit on the disk, even if nobody but a leader's
// beat writes. Where the file system cannot set space aside, or has none, it is tried again later.
func (s *etcdStore) setAside() {
	if s.etcd == nil {
		return
	}
	was, size := s.aside.Load(), s.etcd.Server.Backend().Size()
	if size+asideMore/2 <= was || !s.aside.CompareAndSwap(was, size+asideMore) {
		return
	}
	f, err := os.OpenFile(s.file, os.O_WRONLY, 0)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size+asideMore)
		f.Close()
	}
	if err != nil {
		s.aside.CompareAndSwap(size+asideMore, 0)
		s.log.Debug("no disk space is set aside for the names", "err", err)
	}
}

// squeeze compacts and has the pages that this frees counted: those of a transaction are free after
// the next.
func (s *etcdStore) squeeze(ctx context.Context) error {
	if err := s.compactNow(ctx); err != nil {
		return err
	}
	if s.etcd == nil {
		return s.lookSpace(ctx)
	}
	total := s.total.Load()
	s.etcd.Server.Backend().ForceCommit()
	s.etcd.Server.Backend().ForceCommit()
	s.totalSeen.Store(total)
	return nil
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
	s.setAside()
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
	s.aside.Store(0) // it is another file
	s.setAside()
	s.log.Info("the store of names was defragmented", "before", before, "after", b.Size(), "took", time.Since(began))
	return nil
}

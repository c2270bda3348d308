package quotas

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/atomicfile"
	"sigmaos.dev/trees/diskfs"
	"sigmaos.dev/trees/ux"
)

// Scratch keeps what this machine has in ux from being shown to another realm of the same name. A
// realm that is removed is removed from all machines that are alive; one that was lost then has its
// files still. So in each life of the machine, and of its sigmad, the first who comes to a realm's
// files finds out when the realm was made; if that is not what it was when the files were, they go.
type Scratch struct {
	x      *Quotas
	ux     *ux.Tree
	file   string        // where made is kept
	asking chan struct{} // of one; held while named is asked and what it says is carried out

	byDefault sigma.Bytes // for realms of which no other limit is known, or was set
	limits    sync.Map    // sigma.RealmID -> *scratchLimit

	mu      sync.Mutex
	checked map[sigma.RealmID]sigma.Incarnation // mu; in which life
	created map[sigma.RealmID]time.Time         // mu; of realms that have files here, or may have
}

// scratchFile is beside the directory of ux: a map of realms to when they were made.
const scratchFile = "ux-realms.json"

func newScratch(x *Quotas) (*Scratch, error) {
	dir := filepath.Join(x.cfg.Data, "ux")
	most, err := defaultScratch(dir)
	if err != nil {
		return nil, err
	}
	s := &Scratch{x: x, byDefault: most, file: filepath.Join(x.cfg.Data, scratchFile), asking: make(chan struct{}, 1)}
	if s.ux, err = ux.New(ux.Config{Dir: dir, Quota: &diskfs.Quota{Of: s.Limit, Refused: s.refused}}); err != nil {
		return nil, err
	}
	return s, s.Reload()
}

// Reload reads what is written down, as at a start.
func (s *Scratch) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked, s.created = map[sigma.RealmID]sigma.Incarnation{}, map[sigma.RealmID]time.Time{}
	text, err := os.ReadFile(s.file)
	if os.IsNotExist(err) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s.created)
	}
	return sigma.Wrap("kernel.scratch", s.file, err)
}

// Has says whether a realm has files here, or may have.
func (s *Scratch) Has(realm sigma.RealmID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.created[realm]
	return there
}

// Used is how many bytes a realm's files have here, if that is known.
func (s *Scratch) Used(realm sigma.RealmID) (sigma.Bytes, bool) { return s.ux.Used(realm) }

// Close ends what is under way.
func (s *Scratch) Close() { s.ux.Close() }

// Attach gives the root of a realm's files here.
func (s *Scratch) Attach(ctx context.Context, p sigma.Principal) (sigma.File, error) {
	if err := s.check(ctx, p.Realm); err != nil {
		return nil, err
	}
	return s.ux.Attach(ctx, p, "")
}

func (s *Scratch) isChecked(realm sigma.RealmID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	life, ok := s.checked[realm]
	return ok && life == s.x.cfg.Self().Incarnation
}

// check makes sure that the files here are of the realm that there is now.
func (s *Scratch) check(ctx context.Context, realm sigma.RealmID) error {
	if s.isChecked(realm) {
		return nil
	}
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-ctx.Done():
		return sigma.Wrap("kernel.scratch", "", ctx.Err())
	}
	if s.isChecked(realm) {
		return nil
	}
	life := s.x.cfg.Self().Incarnation
	infos, err := s.x.cfg.Realms(ctx)
	if err != nil {
		return err
	}
	now := map[sigma.RealmID]time.Time{}
	for _, i := range infos {
		now[i.ID] = i.Created
	}
	s.mu.Lock()
	var gone []sigma.RealmID
	for r, created := range s.created {
		if at, there := now[r]; !there || !at.Equal(created) {
			gone = append(gone, r)
		}
	}
	s.mu.Unlock()
	for _, r := range gone {
		s.x.cfg.Log.Info("scratch files of a realm that was removed while this machine was away go", "realm", r)
		if err := s.ux.RemoveRealm(ctx, r); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return s.note(gone, realm, now[realm], life)
}

// note remembers what is so now.
func (s *Scratch) note(gone []sigma.RealmID, realm sigma.RealmID, created time.Time, life sigma.Incarnation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range gone {
		delete(s.created, r)
		delete(s.checked, r)
	}
	if at, ok := s.created[realm]; !ok || !at.Equal(created) || len(gone) > 0 {
		s.created[realm] = created
		if err := s.saveLocked(); err != nil {
			delete(s.created, realm)
			return err
		}
	}
	s.checked[realm] = life
	return nil
}

// saveLocked writes the file, whole or not at all. It is small, and written when a realm's files
// are first used here.
func (s *Scratch) saveLocked() error {
	text, err := json.Marshal(s.created)
	if err != nil {
		return err
	}
	err = atomicfile.Write(s.file, text)
	return sigma.Wrap("kernel.scratch", s.file, err)
}

// Remove removes a realm's files.
func (s *Scratch) Remove(ctx context.Context, realm sigma.RealmID) error {
	if err := s.ux.RemoveRealm(ctx, realm); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.checked, realm)
	s.limits.Delete(realm)
	if _, ok := s.created[realm]; !ok {
		return nil
	}
	delete(s.created, realm)
	return s.saveLocked()
}

// scratchLimit is how much one realm may have in ux at this machine (sigma.RealmLimits.Scratch). As
// with Quota the limits are named's to keep, are asked for if that was not done for a while and
// before anything is refused, and the default counts until they are known.
type scratchLimit struct {
	most   atomic.Uint64 // 0 = not known
	asked  atomic.Int64  // when, nanoseconds after the kernel's start; 0 = never
	asking atomic.Bool
}

// defaultScratch is the limit at a machine that keeps ux in dir: no realm can fill the disk by
// itself.
func defaultScratch(dir string) (sigma.Bytes, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, sigma.Wrap("kernel.quotas", dir, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, sigma.Wrap("kernel.quotas", dir, err)
	}
	return min(sigma.LimitScratchDefault, sigma.Bytes(st.Blocks*uint64(st.Frsize)/2)), nil
}

// limitOf is what is known of a realm's limit.
func (s *Scratch) limitOf(realm sigma.RealmID) *scratchLimit {
	v, ok := s.limits.Load(realm)
	if !ok {
		v, _ = s.limits.LoadOrStore(realm, &scratchLimit{})
	}
	return v.(*scratchLimit)
}

// Limit is how much a realm may have here. See diskfs.Quota.
func (s *Scratch) Limit(realm sigma.RealmID, ask bool) sigma.Bytes {
	q := s.limitOf(realm)
	now := int64(time.Since(s.x.cfg.Start))
	if at := q.asked.Load(); ask {
		s.ask(realm, q)
	} else if (at == 0 || now-at > int64(quotaStale)) && q.asking.CompareAndSwap(false, true) {
		q.asked.Store(max(1, now))
		s.x.cfg.Go(func() {
			defer q.asking.Store(false)
			s.ask(realm, q)
		})
	}
	return s.InForce(sigma.Bytes(q.most.Load()))
}

// InForce is the limit of a realm for which one was set, 0 = none.
func (s *Scratch) InForce(set sigma.Bytes) sigma.Bytes {
	if set == 0 || set == sigma.LimitScratchDefault {
		return s.byDefault
	}
	return set
}

func (s *Scratch) ask(realm sigma.RealmID, q *scratchLimit) {
	if u, err := s.x.Use(realm); err == nil {
		q.most.Store(uint64(u.Limits.Scratch))
	}
}

func (s *Scratch) refused(_ sigma.RealmID, held, more, quota sigma.Bytes) *sigma.Error {
	return &sigma.Error{Kind: sigma.KindNoSpace,
		Msg: fmt.Sprintf(
			"the realm's limit of scratch files at machine %s is reached: it has %v of %v, and this takes %v more",
			s.x.cfg.Machine, held, quota, more),
		Hint: "remove files there; the provider raises it with: sigma realm set --limit-scratch N REALM"}
}

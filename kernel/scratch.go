package kernel

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sigmaos.dev/atomicfile"
	"sigmaos.dev/sigma"
)

// scratch keeps what this machine has in ux from being shown to another realm of the same name. A
// realm that is removed is removed from all machines that are alive; one that was lost then has its
// files still. So in each life of the machine, and of its sigmad, the first who comes to a realm's
// files finds out when the realm was made; if that is not what it was when the files were, they go.
type scratch struct {
	k      *Kernel
	file   string        // where made is kept
	asking chan struct{} // of one; held while named is asked and what it says is carried out

	mu      sync.Mutex
	checked map[sigma.RealmID]sigma.Incarnation // mu; in which life
	made    map[sigma.RealmID]time.Time         // mu; of realms that have files here, or may have
}

// scratchFile is beside the directory of ux: a map of realms to when they were made.
const scratchFile = "ux-realms.json"

func newScratch(k *Kernel) (*scratch, error) {
	s := &scratch{k: k, file: filepath.Join(k.cfg.Data, scratchFile), asking: make(chan struct{}, 1),
		checked: map[sigma.RealmID]sigma.Incarnation{}, made: map[sigma.RealmID]time.Time{}}
	text, err := os.ReadFile(s.file)
	if os.IsNotExist(err) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s.made)
	}
	return s, sigma.Wrap("kernel.scratch", s.file, err)
}

// attach gives the root of a realm's files here.
func (s *scratch) attach(ctx context.Context, p sigma.Principal) (sigma.File, error) {
	if err := s.check(ctx, p.Realm); err != nil {
		return nil, err
	}
	return s.k.ux.Attach(ctx, p, "")
}

func (s *scratch) isChecked(realm sigma.RealmID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	life, ok := s.checked[realm]
	return ok && life == s.k.cluster.Self().Incarnation
}

// check makes sure that the files here are of the realm that there is now.
func (s *scratch) check(ctx context.Context, realm sigma.RealmID) error {
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
	life := s.k.cluster.Self().Incarnation
	infos, err := s.k.reach.Realms(ctx)
	if err != nil {
		return err
	}
	now := map[sigma.RealmID]time.Time{}
	for _, i := range infos {
		now[i.ID] = i.Created
	}
	s.mu.Lock()
	var gone []sigma.RealmID
	for r, made := range s.made {
		if at, there := now[r]; !there || !at.Equal(made) {
			gone = append(gone, r)
		}
	}
	s.mu.Unlock()
	for _, r := range gone {
		s.k.cfg.Log.Info("scratch files of a realm that was removed while this machine was away go", "realm", r)
		if err := s.k.ux.RemoveRealm(ctx, r); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return s.note(gone, realm, now[realm], life)
}

// note remembers what is so now.
func (s *scratch) note(gone []sigma.RealmID, realm sigma.RealmID, made time.Time, life sigma.Incarnation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range gone {
		delete(s.made, r)
		delete(s.checked, r)
	}
	if at, ok := s.made[realm]; !ok || !at.Equal(made) || len(gone) > 0 {
		s.made[realm] = made
		if err := s.saveLocked(); err != nil {
			delete(s.made, realm)
			return err
		}
	}
	s.checked[realm] = life
	return nil
}

// saveLocked writes the file, whole or not at all. It is small, and written when a realm's files
// are first used here.
func (s *scratch) saveLocked() error {
	text, err := json.Marshal(s.made)
	if err != nil {
		return err
	}
	err = atomicfile.Write(s.file, text)
	return sigma.Wrap("kernel.scratch", s.file, err)
}

// remove removes a realm's files.
func (s *scratch) remove(ctx context.Context, realm sigma.RealmID) error {
	if err := s.k.ux.RemoveRealm(ctx, realm); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.checked, realm)
	s.k.uxQuotas.forget(realm)
	if _, ok := s.made[realm]; !ok {
		return nil
	}
	delete(s.made, realm)
	return s.saveLocked()
}

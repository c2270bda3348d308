package s3

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/atomicfile"
	"sigmaos.dev/trees/s3/remote"
	"sigmaos.dev/trees/s3/store"
)

const (
	// storesMax bounds how many realms have a store of their own: a client with up to 64
	// connections each.
	storesMax = 1024
	// storeMax bounds one as JSON: with the certificates of an authority or two.
	storeMax = 48 << 10
	// urlMax and what else is listed bound a page of a listing.
	urlMax     = 512
	storesPage = 32
	// probeMax is how long a store may take to answer before it is set.
	probeMax = 4 * time.Second
	// lookMax is how long the stores of a list may take to answer, all at once, when somebody asks
	// how they are. sigma doctor answers within 2 s.
	lookMax = time.Second
)

// stores is where the objects of realms are. It is read when the service starts, and what is set
// counts from the next start: so no realm's objects are ever in two places at once.
type stores struct {
	dir     string // DIR/REALM, each a store.Store as JSON
	remote  *remote.Tree
	dial    remote.Dial
	created []string

	mu      sync.Mutex
	serving map[sigma.RealmID]store.Store // mu; what counts now; less those of realms that were removed
	noted   map[sigma.RealmID]store.Store // mu; what will count
	chosen  map[sigma.RealmID]bool        // mu; realms without one of their own: whether they are in the system's
	filled  map[sigma.RealmID]bool        // mu; realms elsewhere that have the buckets all have
}

func openStores(cfg Config) (*stores, error) {
	const op = "s3.New"
	s := &stores{dir: filepath.Join(cfg.Elsewhere, "stores"), dial: cfg.Dial, created: cfg.Buckets,
		serving: map[sigma.RealmID]store.Store{}, noted: map[sigma.RealmID]store.Store{},
		chosen: map[sigma.RealmID]bool{}, filled: map[sigma.RealmID]bool{}}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, sigma.Wrap(op, s.dir, err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, sigma.Wrap(op, s.dir, err)
	}
	for _, e := range entries {
		name := filepath.Join(s.dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") { // it was being written
			os.Remove(name)
			continue
		}
		text, err := os.ReadFile(name)
		var st store.Store
		if err == nil {
			err = json.Unmarshal(text, &st)
		}
		if err != nil { // the cause of a syntax error holds a part of the text
			return nil, &sigma.Error{Op: op, Path: name, Kind: sigma.KindInvalid,
				Msg:  "does not say where the objects of realm " + e.Name() + " are",
				Hint: "set it again: sigma s3 store set"}
		}
		s.serving[sigma.RealmID(e.Name())], s.noted[sigma.RealmID(e.Name())] = st, st
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s.remote, err = remote.New(remote.Config{Dir: cfg.Elsewhere, Cache: cfg.Cache, OpenMax: cfg.OpenMax,
		Check: checkEntry, Dial: cfg.Dial, Board: cfg.Board, Log: log})
	return s, err
}

// elsewhere returns the root of a realm whose objects are elsewhere; nil if they are on the local
// disk.
func (t *Tree) elsewhere(ctx context.Context, realm sigma.RealmID) (sigma.File, error) {
	s := t.stores
	if s == nil || realm == sigma.SystemRealm {
		return nil, nil
	}
	st, whole, err := t.storeOf(ctx, realm)
	if err != nil || st.URL == "" {
		return nil, err
	}
	root, err := s.remote.Attach(ctx, realm, st, whole)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	filled := s.filled[realm]
	s.mu.Unlock()
	for _, bucket := range s.created {
		if filled {
			break
		}
		err := root.Mkdir(ctx, bucket, 0o700) // a store that cannot be written to is still good to read
		filled = err == nil || sigma.KindOf(err) == sigma.KindExists
	}
	s.mu.Lock()
	s.filled[realm] = true
	s.mu.Unlock()
	return root, nil
}

// storeOf is where the objects of a realm are: in its own store, or in the system's unless it has
// objects here; the zero store.Store is the local disk.
func (t *Tree) storeOf(ctx context.Context, realm sigma.RealmID) (st store.Store, whole bool, err error) {
	s := t.stores
	s.mu.Lock()
	own, isOwn := s.serving[realm]
	all, ok := s.serving[sigma.SystemRealm]
	in, known := s.chosen[realm]
	s.mu.Unlock()
	if isOwn {
		return own, true, nil
	}
	if !ok {
		return store.Store{}, false, nil
	}
	if !known {
		// Nobody writes meanwhile: no handle of the realm here was ever given in this life. That
		// two ask at once does no harm.
		has, err := t.hasObjects(ctx, realm)
		if err != nil {
			return store.Store{}, false, err
		}
		s.mu.Lock()
		if in, known = s.chosen[realm]; !known {
			in = !has
			s.chosen[realm] = in
		}
		s.mu.Unlock()
	}
	if !in {
		return store.Store{}, false, nil
	}
	return all, false, nil
}

// hasObjects says whether a realm has anything but empty buckets on the local disk.
func (t *Tree) hasObjects(ctx context.Context, realm sigma.RealmID) (bool, error) {
	root, err := t.local.Attach(ctx, sigma.Principal{Realm: realm}, "")
	if err != nil {
		return false, err
	}
	defer root.Close()
	if err := root.Open(ctx, sigma.OpenRead); err != nil {
		return false, err
	}
	for at, more := uint64(0), true; more; {
		var entries []sigma.DirEntry
		if entries, at, more, err = root.ReadDir(ctx, at, 100); err != nil {
			return false, err
		}
		for _, e := range entries {
			if has, err := hasEntries(ctx, root, e.Name); has || err != nil {
				return has, err
			}
		}
	}
	return false, nil
}

func hasEntries(ctx context.Context, root sigma.File, name string) (bool, error) {
	b, _, err := root.Walk(ctx, []string{name})
	if sigma.KindOf(err) == sigma.KindNotFound && err != nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer b.Close()
	if err := b.Open(ctx, sigma.OpenRead); err != nil {
		return false, err
	}
	entries, _, _, err := b.ReadDir(ctx, 0, 1)
	return len(entries) > 0, err
}

// SetStore notes, for the next start, where the objects of a realm are: text is a store.Store as
// JSON, "" the local disk. The system's realm stands for all that have none of their own. A realm
// with objects on the local disk is KindNotEmpty, and a store that does not answer, or refuses, is
// that error. What is in the old store stays there.
func (t *Tree) SetStore(ctx context.Context, realm sigma.RealmID, text string) error {
	const op = "s3.SetStore"
	s := t.stores
	if s == nil {
		return sigma.Errorf(op, sigma.KindUnsupported, "objects are on the local disk only here")
	}
	if err := realm.Check(); err != nil {
		return err
	}
	name := filepath.Join(s.dir, string(realm))
	if text == "" {
		err := os.Remove(name)
		if errors.Is(err, os.ErrNotExist) {
			return &sigma.Error{Op: op, Kind: sigma.KindNotFound, Msg: "no store is set for " + whose(realm),
				Hint: "sigma s3 store ls lists them"}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.noted, realm)
		return sigma.Wrap(op, name, err)
	}
	var st store.Store
	if len(text) > storeMax || json.Unmarshal([]byte(text), &st) != nil || len(st.URL) > urlMax ||
		len(st.Region) > urlMax {
		return sigma.Errorf(op, sigma.KindInvalid,
			"a store is told in at most %d bytes, with a URL and a region of at most %d", storeMax, urlMax)
	}
	if err := st.Check(); err != nil {
		return err
	}
	if realm != sigma.SystemRealm {
		s.mu.Lock()
		_, own := s.serving[realm]
		s.mu.Unlock()
		if has, err := t.hasObjects(ctx, realm); err != nil {
			return err
		} else if has && !own {
			return &sigma.Error{Op: op, Kind: sigma.KindNotEmpty,
				Msg:  "the realm " + string(realm) + " has objects on the local disk, which would not be seen any more",
				Hint: "copy them to this host (sigma get -r /s3 DIR), remove them, set the store, and put them back"}
		}
	}
	asking, cancel := context.WithTimeout(ctx, probeMax)
	defer cancel()
	if err := remote.Probe(asking, st, s.dial, realm); err != nil {
		return err
	}
	return sigma.Wrap(op, name, s.note(realm, name, text, st))
}

func whose(realm sigma.RealmID) string {
	if realm == sigma.SystemRealm {
		return "the system"
	}
	return "the realm " + string(realm)
}

// note writes a store down, in a file that is whole or not there.
func (s *stores) note(realm sigma.RealmID, name, text string, st store.Store) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.noted[realm]; !ok && len(s.noted) >= storesMax {
		return sigma.Errorf("s3.SetStore", sigma.KindNoSpace, "%d stores are set, which is the limit", storesMax)
	}
	if err := atomicfile.Write(name, []byte(text)); err != nil {
		return err
	}
	s.noted[realm] = st
	return nil
}

// Stores lists the stores that are set, in order of realms after one, at most a page of them: fewer
// than 32 are the last. If ask is true each is asked how it is.
func (t *Tree) Stores(ctx context.Context, after sigma.RealmID, ask bool) ([]store.Info, error) {
	s := t.stores
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	var realms []sigma.RealmID
	for r := range s.noted {
		if r > after {
			realms = append(realms, r)
		}
	}
	slices.Sort(realms)
	realms = realms[:min(len(realms), storesPage)]
	list := make([]store.Info, len(realms))
	known := make([]store.Store, len(realms))
	for i, r := range realms {
		known[i] = s.noted[r]
		list[i] = store.Info{Realm: r, URL: known[i].URL, Region: known[i].Region}
	}
	s.mu.Unlock()
	if !ask {
		return list, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookMax)
	defer cancel()
	var all sync.WaitGroup
	for i := range list {
		all.Go(func() {
			list[i].State = "ok"
			var e *sigma.Error
			if err := remote.Probe(ctx, known[i], s.dial, list[i].Realm); errors.As(err, &e) {
				list[i].State, list[i].Hint = e.Error(), e.Hint
			} else if err != nil {
				list[i].State = err.Error()
			}
		})
	}
	all.Wait()
	return list, nil
}

// removeElsewhere removes what a realm has elsewhere. Of a store of its own nothing is removed but
// that we know it: it may be there for others too.
func (t *Tree) removeElsewhere(ctx context.Context, realm sigma.RealmID) error {
	s := t.stores
	if s == nil || realm == sigma.SystemRealm {
		return nil
	}
	s.mu.Lock()
	_, own := s.serving[realm]
	all, ok := s.serving[sigma.SystemRealm]
	s.mu.Unlock()
	if own {
		s.remote.Forget(realm)
	} else if ok {
		if err := s.remote.RemoveRealm(ctx, realm, all); err != nil {
			return err
		}
	}
	s.mu.Lock()
	_, noted := s.noted[realm]
	delete(s.serving, realm)
	delete(s.chosen, realm)
	delete(s.filled, realm)
	s.mu.Unlock()
	if noted {
		return t.SetStore(ctx, realm, "")
	}
	return nil
}

package named

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sigmaos.dev/sigma"
)

// A store is replaced by a snapshot when its named starts and finds the snapshot in its data directory. So it is written by the user whom its files belong to, and whoever puts the file there (sigma snapshot restore)
// need not know who that is. The store that was there is kept aside until the next time.

// Names in the data directory.
const (
	// RestoreName is a snapshot that replaces the store at the next start.
	RestoreName = "restore"
	// RestoreFreshName is one that begins another system with the same names: the record of the machines is left out, since their keys are those of an authority that is not here.
	RestoreFreshName = "restore.fresh"
	restoringDir     = "restoring"
	asideDir         = etcdDir + ".old"
)

// restorePending carries out a restore that waits in the data directory. After a crash in the middle it is done again.
func restorePending(ctx context.Context, cfg Config) error {
	const op = "named.restore"
	for _, name := range []string{RestoreName, RestoreFreshName} {
		path := filepath.Join(cfg.Dir, name)
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return sigma.Wrap(op, path, err)
		}
		defer f.Close()
		lock, err := lockDir(cfg.Dir)
		if err != nil {
			return err
		}
		defer lock.Close()
		restoring := cfg
		restoring.Dir = filepath.Join(cfg.Dir, restoringDir)
		if err := os.RemoveAll(restoring.Dir); err != nil {
			return sigma.Wrap(op, restoring.Dir, err)
		}
		keys, err := Restore(ctx, restoring, bufio.NewReader(f), nil)
		if err == nil && name == RestoreFreshName {
			err = forgetMachines(ctx, restoring)
		}
		if err == nil {
			err = exchange(cfg.Dir)
		}
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil {
			return sigma.Wrap(op, path, err)
		}
		cfg.Log.Info("the names of a snapshot were restored", "keys", keys, "fresh", name == RestoreFreshName)
	}
	return nil
}

// exchange puts the restored store in the place of the one that was there.
func exchange(dir string) error {
	store, aside := filepath.Join(dir, etcdDir), filepath.Join(dir, asideDir)
	if _, err := os.Stat(store); err == nil {
		if err := os.RemoveAll(aside); err != nil {
			return err
		}
		if err := os.Rename(store, aside); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(dir, restoringDir, etcdDir), store); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, restoringDir)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// machinesDir is where machined keeps the record of the machines, in the system realm.
const machinesDir = "machines"

// forgetMachines removes the record of the machines from a store.
func forgetMachines(ctx context.Context, cfg Config) error {
	s, err := Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	ran := make(chan struct{})
	go func() { defer close(ran); s.Run(ctx) }()
	defer func() { s.Close(); <-ran }()
	root, err := s.Attach(ctx, sigma.Principal{Realm: sigma.SystemRealm, System: true}, "")
	if sigma.KindOf(err) == sigma.KindNotFound && err != nil {
		return nil
	}
	if err != nil {
		return err
	}
	dir, _, err := root.Walk(ctx, []string{machinesDir})
	if err != nil || dir == nil {
		if err == nil || sigma.KindOf(err) == sigma.KindNotFound {
			return nil
		}
		return err
	}
	if err := dir.Open(ctx, sigma.OpenRead); err != nil {
		return err
	}
	entries, _, _, err := dir.ReadDir(ctx, 0, listMax)
	if err != nil {
		return err
	}
	dir, _, err = root.Walk(ctx, []string{machinesDir})
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.ID.Kind == sigma.KindDir {
			continue
		}
		if err := dir.Remove(ctx, e.Name); err != nil {
			return err
		}
	}
	return nil
}

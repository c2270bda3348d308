package member

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A store is replaced by a snapshot when its named starts and finds the snapshot in its data
// directory. So it is written by the user whom its files belong to, and whoever puts the file there
// (sigma snapshot restore) need not know who that is. The store that was there is kept aside until
// the next time.

// Names in the data directory.
const (
	// RestoreName is a snapshot that replaces the store at the next start.
	RestoreName = "restore"
	// RestoreFreshName is one that begins another system with the same names: the record of the
	// machines is left out, since their keys are those of an authority that is not here.
	RestoreFreshName = "restore.fresh"
	restoringDir     = "restoring"
	asideDir         = etcdDir + ".old"
)

// restorePending carries out a restore that waits in the data directory. After a crash in the
// middle it is done again.
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
		if err == nil {
			change := forgetMachines
			if name == RestoreName {
				change = func(ctx context.Context, dir sigma.File) error { return succeed(ctx, dir, cfg.Succeed) }
			}
			err = changeMachines(ctx, restoring, change)
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

// Where machined keeps the record of the machines, in the system realm.
const (
	machinesDir  = "machines"
	machinesFile = "state"
)

// changeMachines has change work in the directory of the record of the machines of a store, if
// there is one.
func changeMachines(ctx context.Context, cfg Config, change func(ctx context.Context, dir sigma.File) error) error {
	s, err := openAlone(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	ran := make(chan struct{})
	go func() { defer close(ran); s.Run(ctx) }()
	defer func() { s.Close(); <-ran }()
	root, err := s.Attach(ctx, sigma.Principal{Realm: sigma.SystemRealm, System: true}, "")
	var dir sigma.File
	if err == nil {
		dir, _, err = root.Walk(ctx, []string{machinesDir})
	}
	if err == nil && dir == nil || sigma.KindOf(err) == sigma.KindNotFound && err != nil {
		return nil
	}
	if err != nil {
		return err
	}
	return change(ctx, dir)
}

// forgetMachines removes the record of the machines.
func forgetMachines(ctx context.Context, dir sigma.File) error {
	if err := dir.Remove(ctx, machinesFile); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	return nil
}

// succeed replaces the record of the machines, if there is one.
func succeed(ctx context.Context, dir sigma.File, of func(record []byte) ([]byte, error)) error {
	if of == nil {
		return nil
	}
	got, _, err := dir.(sigma.Getter).Get(ctx, []string{machinesFile}, 0, sigmap.DataMax)
	if sigma.KindOf(err) == sigma.KindNotFound && err != nil {
		return nil
	}
	text := got.Data
	if err == nil {
		text, err = of(text)
	}
	if err == nil {
		_, _, err = dir.(sigma.Putter).Put(ctx, []string{machinesFile}, text,
			sigma.PutOptions{Perm: 0o600, IfVersion: got.ID.Version})
	}
	return err
}

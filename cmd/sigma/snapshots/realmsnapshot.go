package snapshots

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/archive"
	"sigmaos.dev/trees/resolve"
)

// restoreWorkers is how many names are put at a time: named stores those that wait together at
// once.
const restoreWorkers = 32

// restoreRealm makes a realm of an archive. One that cannot be made whole is removed again.
func (a *app) restoreRealm(ctx context.Context, file string, realm sigma.RealmID) error {
	if err := realm.Check(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	f, err := os.Open(file)
	if err != nil {
		return sigma.Wrap("sigma.snapshot", file, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return sigma.Wrap("sigma.snapshot", file, err)
	}
	names, err := archive.Check(f)
	if err != nil {
		return &sigma.Error{Op: "sigma.snapshot", Path: file, Kind: sigma.KindInvalid, Msg: err.Error(),
			Hint: "make snapshots of a realm with: sigma snapshot save --realm NAME FILE"}
	}
	c, err := a.ClientOf(ctx, sigma.SystemRealm)
	if err != nil {
		return err
	}
	if err := c.Realms().Create(ctx, realm); err != nil {
		if sigma.KindOf(err) == sigma.KindExists {
			return &sigma.Error{Op: "sigma.snapshot", Realm: realm, Kind: sigma.KindExists,
				Msg:  fmt.Sprintf("there is a realm %q already", realm),
				Hint: "restore into a realm that does not exist yet: --realm NAME"}
		}
		return err
	}
	if err := a.fillRealm(ctx, f, realm, names); err != nil {
		if rerr := c.Realms().Remove(context.WithoutCancel(ctx), realm); rerr != nil {
			a.Remark("realm %s is incomplete and could not be removed: %v", realm, rerr)
		}
		return err
	}
	return a.say(snapshotJSON{file, names, info.Size()}, "%s: %s restored into realm %s", file,
		cli.Count(int(names), "name"), realm)
}

// fillRealm reads the archive three times: for the directories, for what is in them, and for the
// directories' times, which that changed.
func (a *app) fillRealm(ctx context.Context, f *os.File, realm sigma.RealmID, names uint64) error {
	c, err := a.ClientOf(ctx, realm)
	if err != nil {
		return err
	}
	bar := a.Progress("restoring names", int64(names))
	defer bar.Done()
	each := func(workers int, do func(e archive.Entry) error) error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return eachEntry(ctx, f, workers, do)
	}
	tree := c.Tree
	err = each(1, func(e archive.Entry) error {
		if e.Kind != sigma.KindDir {
			return nil
		}
		bar.Add(1)
		if err := tree.Mkdir(ctx, "/"+e.Path, e.Perm|0o700); err != nil && sigma.KindOf(err) != sigma.KindExists {
			return err
		}
		return nil
	})
	if err == nil {
		err = each(restoreWorkers, func(e archive.Entry) error {
			if e.Kind == sigma.KindDir {
				return nil
			}
			defer bar.Add(1)
			return restoreFile(ctx, tree, e)
		})
	}
	if err == nil {
		err = each(restoreWorkers, func(e archive.Entry) error {
			if e.Kind != sigma.KindDir {
				return nil
			}
			return tree.SetStat(ctx, "/"+e.Path, sigma.StatChange{Perm: &e.Perm, Modified: &e.Modified})
		})
	}
	return err
}

func restoreFile(ctx context.Context, tree *resolve.Tree, e archive.Entry) error {
	path := "/" + e.Path
	switch e.Kind {
	case sigma.KindSymlink:
		err := tree.Symlink(ctx, string(e.Data), path)
		if sigma.KindOf(err) == sigma.KindExists && err != nil { // as /bin, which each realm has from its beginning
			if err = tree.Remove(ctx, path); err == nil {
				err = tree.Symlink(ctx, string(e.Data), path)
			}
		}
		return err
	case sigma.KindEndpoint:
		_, err := tree.Put(ctx, path, e.Data, sigma.PutOptions{Kind: sigma.KindEndpoint})
		return err
	}
	if _, err := tree.Put(ctx, path, e.Data, sigma.PutOptions{}); err != nil {
		return err
	}
	return tree.SetStat(ctx, path, sigma.StatChange{Perm: &e.Perm, Modified: &e.Modified})
}

// eachEntry calls do for the entries of an archive, by so many workers, until one fails. What lies
// below places that sigmad shows in each realm is left out.
func eachEntry(ctx context.Context, r io.Reader, workers int, do func(e archive.Entry) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	entries := make(chan archive.Entry)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for e := range entries {
				if ctx.Err() != nil {
					continue
				}
				if err := do(e); err != nil {
					cancel(sigma.Wrap("sigma.snapshot", "/"+e.Path, err))
				}
			}
		})
	}
	_, err := archive.Read(r, func(e archive.Entry) error {
		switch top, _, _ := strings.Cut(e.Path, "/"); top {
		case sigma.NameSys, sigma.NameProc, sigma.NameS3, sigma.NameDB, sigma.NameUX:
			return nil
		}
		select {
		case entries <- e:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(entries)
	group.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

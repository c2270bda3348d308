// Package files does what commands do with many files: it finds them by patterns, walks what is
// below a directory, and copies from one tree to another.
//
// It promises
//   - that a walk ends: what a tree shows is bounded in depth and in amount, as a tenant may serve
//     one that has no end;
//   - that a file that is copied appears in its place whole, with the mode it had;
//   - that a name of one tree leads nowhere else in another: names are checked, and links of this
//     host below what was named are not followed.
//
// A tree is a Realm or a Host. It assumes that whoever copies has the rights of the session and of
// the process. cmd/sigma uses it for ls, cat, put, get, cp, mv, rm and chmod.
package files

import (
	"context"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"sigmaos.dev/sigma"
)

// Tree is what files are copied from or to. Names are those of its kind: paths of a realm, or names
// below a directory of this host, in which "" is the directory itself. Methods may be called
// concurrently, but for List.
type Tree interface {
	// Lstat describes what is at name, a link as a link.
	Lstat(ctx context.Context, name string) (sigma.Stat, error)
	// List gives what is in a directory.
	List(ctx context.Context, dir string) ([]sigma.DirEntry, error)
	// Source opens a file that is to be copied.
	Source(ctx context.Context, name string) (*Source, error)
	// MakeDir makes a directory, which may be there, that this user may fill.
	MakeDir(ctx context.Context, name string, perm uint32) error
	// Store puts what s gives at name, in the place of a file that is there.
	Store(ctx context.Context, name string, s *Source, count Counter) error
	// Finish gives directories that MakeDir made the modes that keep others out until all is in
	// them.
	Finish() error
}

// links is a Tree that can have symbolic links.
type links interface {
	ReadLink(ctx context.Context, name string) (string, error)
	PutLink(ctx context.Context, target, name string) error
}

// Counter is told of bytes that were copied. It may be called concurrently.
type Counter interface{ Add(n int64) }

// parallel is how many requests are under way at once where there are many to make: enough to hide
// round trips, few beside what a session allows.
const parallel = 12

// Each runs f for 0..n-1, some at once, until one fails.
func Each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, parallel) {
		wg.Go(func() {
			for i := range next {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// Gone says whether an error is that a file is not there any more.
func Gone(err error) bool {
	k := sigma.KindOf(err)
	return err != nil && (k == sigma.KindNotFound || k == sigma.KindStale || k == sigma.KindNotDir)
}

// Walk visits a directory and those below it, each before those in it. What is removed meanwhile is
// left out.
func Walk(ctx context.Context, t Tree, dir string, visit func(dir string, entries []sigma.DirEntry) error) error {
	entries, err := t.List(ctx, dir)
	if err != nil {
		return err
	}
	var below func(dir string, entries []sigma.DirEntry) error
	below = func(dir string, entries []sigma.DirEntry) error {
		if err := visit(dir, entries); err != nil {
			return err
		}
		for _, e := range entries {
			if e.ID.Kind != sigma.KindDir {
				continue
			}
			at := path.Join(dir, e.Name)
			in, err := t.List(ctx, at)
			if Gone(err) {
				continue
			}
			if err == nil {
				err = below(at, in)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return below(dir, entries)
}

// Copy is a copy from trees to one tree: Add plans it, Run carries it out.
type Copy struct {
	To      Tree
	Bytes   int64 // as listings tell them
	Skipped int   // entries that have no content, or cannot be in To
	dirs    []copied
	files   []copied
	links   []copied
	done    atomic.Int64 // files
	bytes   atomic.Int64
}

// copied is what is copied from a name to one of To.
type copied struct {
	from     Tree
	name, to string
	perm     uint32 // of a directory
}

// Files is how many files Add planned.
func (c *Copy) Files() int { return len(c.files) }

// Dirs is how many directories Add planned.
func (c *Copy) Dirs() int { return len(c.dirs) }

// Done tells how many files were copied, and how many bytes.
func (c *Copy) Done() (files int, bytes int64) { return int(c.done.Load()), c.bytes.Load() }

// Add plans to copy what is at name and is st, with all below it, to a name of To.
func (c *Copy) Add(ctx context.Context, from Tree, name string, st sigma.Stat, to string) error {
	if st.ID.Kind != sigma.KindDir {
		return c.add(copied{from: from, name: name, to: to}, st.ID.Kind, st.Size)
	}
	return Walk(ctx, from, name, func(dir string, entries []sigma.DirEntry) error {
		perm := st.Perm
		if dir != name {
			sub, err := from.Lstat(ctx, dir)
			if Gone(err) {
				return nil
			} else if err != nil {
				return err
			}
			perm = sub.Perm
		}
		at := path.Join(to, strings.TrimPrefix(dir[len(name):], "/"))
		if _, err := sigma.ParsePath(path.Join("/", at)); err != nil {
			return err
		}
		c.dirs = append(c.dirs, copied{from, dir, at, perm&0o777 | 0o700}) // so that it can be filled
		for _, e := range entries {
			if e.ID.Kind == sigma.KindDir {
				continue
			}
			if err := c.add(copied{from: from, name: path.Join(dir, e.Name), to: path.Join(at, e.Name)}, e.ID.Kind,
				e.Size); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *Copy) add(x copied, kind sigma.FileKind, size uint64) error {
	if _, err := sigma.ParsePath(path.Join("/", x.to)); err != nil {
		return err
	}
	switch kind {
	case sigma.KindFile, sigma.KindDevice:
		c.files = append(c.files, x)
		c.Bytes += int64(size)
		return nil
	case sigma.KindSymlink:
		_, from := x.from.(links)
		if _, to := c.To.(links); from && to {
			c.links = append(c.links, x)
			return nil
		}
	}
	c.Skipped++
	return nil
}

// Run copies what was planned.
func (c *Copy) Run(ctx context.Context, count Counter) error {
	counter := counting{c, count}
	for _, d := range c.dirs {
		if err := c.To.MakeDir(ctx, d.to, d.perm); err != nil {
			return err
		}
	}
	err := Each(ctx, len(c.files), func(ctx context.Context, i int) error { return c.file(ctx, c.files[i], counter) })
	if err != nil {
		return err
	}
	for _, l := range c.links {
		target, err := l.from.(links).ReadLink(ctx, l.name)
		if err == nil {
			err = c.To.(links).PutLink(ctx, target, l.to)
		}
		if sigma.KindOf(err) == sigma.KindUnsupported && err != nil {
			c.Skipped++
		} else if err != nil {
			return err
		}
	}
	return c.To.Finish()
}

func (c *Copy) file(ctx context.Context, x copied, count Counter) error {
	s, err := x.from.Source(ctx, x.name)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := c.To.Store(ctx, x.to, s, count); err != nil {
		return err
	}
	c.done.Add(1)
	return nil
}

// counting is the Counter of a Copy.
type counting struct {
	*Copy
	all Counter
}

func (c counting) Add(n int64) {
	c.bytes.Add(n)
	c.all.Add(n)
}

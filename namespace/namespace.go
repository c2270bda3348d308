// Package namespace makes a sigma.Namespace of an attached root: it walks paths, follows symlinks, goes through endpoints to the servers behind them and
// resolves ~local and ~any (001 §3.3, 000 §4.3). Sessions to servers behind endpoints are kept and shared.
//
// It assumes that the root's server resolves what it can itself, and that Dial refuses what the program may not reach. Users: sdk; sigmad, for the programs it
// fetches.
//
// Lock: Tree.mu guards the table of mounts; it is not held while dialling.
package namespace

import (
	"context"
	"slices"
	"strings"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// hopsMax bounds links on one path, as on Linux.
const hopsMax = 40

// Config says where the tree's root is.
type Config struct {
	Root    sigma.File      // handle of the root; stays the caller's
	Machine sigma.MachineID // what ~local means; "" = nothing
	// Dial attaches to the server behind an endpoint. done is closed when that session ends. nil = endpoints are not gone through.
	Dial func(ctx context.Context, e sigma.Endpoint) (root sigma.File, done <-chan struct{}, err error)
}

// Tree is a realm's tree by paths.
type Tree struct {
	cfg Config

	mu     sync.Mutex
	mounts map[string]*mount // mu; by the endpoint's text
}

type mount struct {
	ready chan struct{} // closed when root or err is set
	root  sigma.File
	done  <-chan struct{}
	err   error
}

var _ sigma.Namespace = (*Tree)(nil)

// New makes a Tree. Nothing is started.
func New(cfg Config) *Tree { return &Tree{cfg: cfg, mounts: map[string]*mount{}} }

// cursor is a place on the way along a path: names remain to be walked from file.
type cursor struct {
	file  sigma.File
	mount string // key of the mount that file belongs to, "" = the root's server
	names []string
	path  []string // the whole path, absolute, as it is after the links so far
	hops  int
}

// at runs op at the last server of the path. op gets a handle and the names that remain; it answers with where a link stopped it.
func (t *Tree) at(ctx context.Context, path string, op func(f sigma.File, names []string) (*sigma.Stopped, error)) (*cursor, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return nil, err
	}
	c := &cursor{file: t.cfg.Root, names: names, path: names}
	for {
		stop, err := op(c.file, c.names)
		switch {
		case err == nil && stop == nil:
			return c, nil
		case err == nil:
			err = t.follow(ctx, c, stop)
		case sigma.KindOf(err) == sigma.KindNotFound || sigma.KindOf(err) == sigma.KindInvalid:
			var found bool
			if found, err = t.choose(ctx, c, err); found {
				err = nil
			}
		}
		if err != nil {
			return c, withPath(err, path)
		}
		if c.hops++; c.hops > hopsMax {
			return c, sigma.PathError("namespace.at", sigma.KindLoop, path)
		}
	}
}

// withPath makes the error speak of the path the program gave, not of what a server saw of it.
func withPath(err error, path string) error {
	e, ok := sigma.Wrap("namespace", path, err).(*sigma.Error)
	if ok {
		e.Path = path
	}
	return e
}

// follow moves the cursor through a link.
func (t *Tree) follow(ctx context.Context, c *cursor, stop *sigma.Stopped) error {
	rest := c.names[min(stop.Walked, len(c.names)):]
	if stop.Kind == sigma.KindEndpoint {
		e, err := sigma.ParseEndpoint(stop.Target)
		if err != nil {
			return err
		}
		root, err := t.mounted(ctx, stop.Target, e)
		if err != nil {
			return err
		}
		c.file, c.mount, c.names = root, stop.Target, rest
		return nil
	}
	target := stop.Target
	if !strings.HasPrefix(target, "/") {
		dir := c.path[:len(c.path)-len(rest)-1]
		target = strings.TrimSuffix(sigma.JoinPath(dir...), "/") + "/" + target
	}
	names, err := sigma.ParsePath(target)
	if err != nil {
		return err
	}
	c.path = slices.Concat(names, rest)
	c.file, c.mount, c.names = t.cfg.Root, "", c.path
	return nil
}

// mounted returns the root behind an endpoint. Concurrent first uses dial once; a session that ended is dialled again.
func (t *Tree) mounted(ctx context.Context, key string, e sigma.Endpoint) (sigma.File, error) {
	if t.cfg.Dial == nil || e.Form != sigma.FormTree {
		return nil, sigma.Errorf("namespace.mounted", sigma.KindUnsupported, "cannot walk through this endpoint")
	}
	t.mu.Lock()
	m := t.mounts[key]
	if m != nil {
		select {
		case <-m.ready:
			select {
			case <-m.done:
				m = nil
			default:
			}
		default:
		}
	}
	if m != nil {
		t.mu.Unlock()
		select {
		case <-m.ready:
			return m.root, m.err
		case <-ctx.Done():
			return nil, sigma.Wrap("namespace.mounted", "", ctx.Err())
		}
	}
	m = &mount{ready: make(chan struct{})}
	t.mounts[key] = m
	t.mu.Unlock()
	m.root, m.done, m.err = t.cfg.Dial(ctx, e)
	if m.err != nil {
		t.mu.Lock()
		delete(t.mounts, key)
		t.mu.Unlock()
	}
	close(m.ready)
	return m.root, m.err
}

// choose replaces the first ~local or ~any that the server did not resolve by an entry of its directory.
func (t *Tree) choose(ctx context.Context, c *cursor, cause error) (bool, error) {
	i := slices.IndexFunc(c.names, func(n string) bool { return n == sigma.LocalName || n == sigma.AnyName })
	if i < 0 {
		return false, cause
	}
	dir, stop, err := treekit.WalkTo(ctx, c.file, c.names[:i], true)
	if err != nil || stop != nil {
		return false, cause
	}
	defer dir.Close()
	entries, err := list(ctx, dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if t.matches(ctx, dir, e, c.names[i]) {
			j := len(c.path) - len(c.names) + i
			c.path = slices.Clone(c.path)
			c.path[j] = e.Name
			c.names = c.path[len(c.path)-len(c.names):]
			return true, nil
		}
	}
	return false, cause
}

func (t *Tree) matches(ctx context.Context, dir sigma.File, e sigma.DirEntry, want string) bool {
	if want == sigma.LocalName && sigma.MachineID(e.Name) == t.cfg.Machine && t.cfg.Machine != "" {
		return true
	}
	if e.ID.Kind != sigma.KindEndpoint {
		return want == sigma.AnyName && e.ID.Kind == sigma.KindDir
	}
	f, _, err := dir.Walk(ctx, []string{e.Name})
	if err != nil || f == nil {
		return false
	}
	defer f.Close()
	text, err := f.ReadLink(ctx)
	if err != nil {
		return false
	}
	ep, err := sigma.ParseEndpoint(text)
	if err != nil || want == sigma.LocalName && ep.Machine != t.cfg.Machine {
		return false
	}
	_, err = t.mounted(ctx, text, ep) // a dead endpoint is skipped
	return err == nil || ep.Form != sigma.FormTree
}

// walk returns a handle of the file at path, which the caller closes.
func (t *Tree) walk(ctx context.Context, path string, followLast bool) (sigma.File, *cursor, error) {
	var file sigma.File
	c, err := t.at(ctx, path, func(f sigma.File, names []string) (stop *sigma.Stopped, err error) {
		file, stop, err = treekit.WalkTo(ctx, f, names, followLast)
		return stop, err
	})
	return file, c, err
}

// parent returns a handle of the directory that holds path, and path's last name.
func (t *Tree) parent(ctx context.Context, path string) (sigma.File, string, *cursor, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return nil, "", nil, err
	}
	if len(names) == 0 {
		return nil, "", nil, &sigma.Error{Op: "namespace.parent", Path: path, Kind: sigma.KindInvalid, Msg: "the root cannot be made, moved or removed"}
	}
	dir, c, err := t.walk(ctx, sigma.JoinPath(names[:len(names)-1]...), true)
	return dir, names[len(names)-1], c, withPathOrNil(err, path)
}

func withPathOrNil(err error, path string) error {
	if err == nil {
		return nil
	}
	return withPath(err, path)
}

// list reads a whole directory.
func list(ctx context.Context, dir sigma.File) ([]sigma.DirEntry, error) {
	d, _, err := dir.Walk(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := d.Open(ctx, sigma.OpenRead); err != nil {
		return nil, err
	}
	var out []sigma.DirEntry
	for cookie, more := uint64(0), true; more; {
		var es []sigma.DirEntry
		if es, cookie, more, err = d.ReadDir(ctx, cookie, 512); err != nil {
			return nil, err
		}
		out = append(out, es...)
	}
	slices.SortFunc(out, func(a, b sigma.DirEntry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

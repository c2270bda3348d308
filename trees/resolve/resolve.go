// Package resolve makes a sigma.Namespace of an attached root: it walks paths, follows symlinks,
// goes through endpoints to the servers behind them and resolves ~local and ~any (001 §3.3, 000
// §4.3). Sessions to servers behind endpoints are kept and shared.
//
// It assumes that the root's server resolves what it can itself, and that Dial refuses what the
// program may not reach. Users: sdk; sigmad, for the programs it fetches.
//
// Locks: Tree.mu and Servers.mu, neither under the other; nothing is asked under them.
package resolve

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

const (
	// hopsMax bounds links on one path, as on Linux.
	hopsMax = 40
	// probeMax is how long a member of a directory of endpoints may take to answer before the next
	// is tried. One that lives does within a round trip.
	probeMax = time.Second
	// listMax bounds a listing, so that a server that never ends one does not fill the program's
	// memory.
	listMax = 1 << 20
	// listBytesMax bounds the names in it.
	listBytesMax = 64 << 20
	// membersMax bounds the entries among which ~any and ~local look, for the same reason: sigmad
	// too does that, on behalf of tenants.
	membersMax = 4096
)

// Config says where the tree's root is.
type Config struct {
	Root    sigma.File      // handle of the root; stays the caller's
	Done    <-chan struct{} // closed when Root's session ends, so that leases are not renewed for ever; nil = never
	Epoch   func() uint32   // counts the servers that Root's session has had, one after another; nil = it has one
	Machine sigma.MachineID // what ~local means; "" = nothing
	// Dial attaches to the server behind an endpoint. done is closed when that session ends. nil =
	// endpoints are not gone through.
	Dial func(ctx context.Context, e sigma.Endpoint) (root sigma.File, done <-chan struct{}, err error)
}

// Tree is a realm's tree by paths.
type Tree struct {
	cfg    Config
	fences atomic.Pointer[[]fencedDir] // written with mu held; not changed, but replaced
	binds  atomic.Pointer[[]bind]      // by Mount, deepest first; nil = none; written under mu

	mounts Servers[sigma.File]
	lanes  session.Lanes // number changes (once.go)

	mu sync.Mutex
	// provided are the endpoints at names of the root that the provider serves. No tenant can put
	// another server there, so that they need not be asked for at each path while the session
	// lives.
	provided map[string]string // mu
}

var _ sigma.Namespace = (*Tree)(nil)

// New makes a Tree. Nothing is started.
func New(cfg Config) *Tree {
	return &Tree{cfg: cfg, provided: map[string]string{}}
}

type noLinksKey struct{}

// WithoutLinks makes operations fail as KindPermission at a symlink that they would follow, for
// paths that must lead where they say.
func WithoutLinks(ctx context.Context) context.Context {
	return context.WithValue(ctx, noLinksKey{}, true)
}

// cursor is a place on the way along a path: names remain to be walked from file.
type cursor struct {
	file  sigma.File
	own   bool   // whether file is the cursor's to close
	mount string // key of the mount that file belongs to, "" = the root's server
	names []string
	path  []string // the whole path, absolute, as it is after the links so far; names are its end
	hops  int

	// Of the last ~any or ~local that was replaced by an entry of its directory:
	before []string        // the path as it was; nil = there was none
	member string          // the entry's path
	passed map[string]bool // entries that were tried before it, and are not to be taken again
	reason error           // why the first of them was left

	redialled bool   // a server that died was asked for once more
	epoch     uint32 // of the root's servers, when it was begun there
}

// move makes file the place from where names are walked.
func (c *cursor) move(file sigma.File, own bool, names []string) {
	if c.own {
		c.file.Close()
	}
	c.file, c.own, c.names = file, own, names
}

// at runs op at the last server of the path. op gets a handle and the names that remain; it answers
// with where a link stopped it. The cursor's file is not to be used afterwards. again says that op
// may be run again where it is not known what became of it (failover.go).
func (t *Tree) at(ctx context.Context, path string, again bool, op func(f sigma.File, names []string) (*sigma.Stopped,
	error)) (*cursor, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return nil, err
	}
	return t.atReal(ctx, path, t.real(names), again, op)
}

// atReal is at for names that no mount changes any more; path is what errors speak of.
func (t *Tree) atReal(ctx context.Context, path string, names []string, again bool,
	op func(f sigma.File, names []string) (*sigma.Stopped, error)) (*cursor, error) {
	c := &cursor{path: names}
	t.atRoot(c)
	defer func() { c.move(nil, false, c.names) }()
	for {
		stop, err := t.step(ctx, c, op)
		switch {
		case err == nil && stop == nil:
			return c, nil
		case err == nil:
			err = t.follow(ctx, c, stop)
		case sigma.KindOf(err) == sigma.KindNotFound || sigma.KindOf(err) == sigma.KindInvalid:
			err = t.choose(ctx, c, err)
		}
		if err != nil && !t.passOver(c, err, again) {
			if c.reason != nil {
				err = c.reason
			}
			return c, withPath(err, path)
		}
		if c.hops++; c.hops > hopsMax {
			return c, &sigma.Error{Op: "namespace.at", Path: path, Kind: sigma.KindLoop,
				Hint: "a link on the path leads back to itself, or there are more than 40"}
		}
	}
}

// step runs op, after going along as much of a very long path as one message does not hold.
func (t *Tree) step(ctx context.Context, c *cursor, op func(f sigma.File, names []string) (*sigma.Stopped,
	error)) (*sigma.Stopped, error) {
	for len(c.names) > sigmap.WalkMax {
		file, stop, err := treeserver.WalkTo(ctx, t.guard(ctx, c.file, c.path), c.names[:sigmap.WalkMax], true)
		if err != nil || stop != nil {
			return stop, err
		}
		c.move(file, true, c.names[sigmap.WalkMax:])
	}
	return op(t.guard(ctx, c.file, c.path), c.names)
}

// withPath makes the error speak of the path the program gave, not of what a server saw of it.
func withPath(err error, path string) error {
	err = sigma.Wrap("namespace", path, err)
	if e, ok := err.(*sigma.Error); ok {
		e.Path = path
		if path == "/" && e.Kind == sigma.KindLost && e.Msg != "" { // of the whole system, and no fault of the path
			e.Path = ""
		}
	}
	return err
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
		if c.mount == "" && len(c.path)-len(rest) == 1 && sigma.IsProvided(c.path[0]) {
			t.mu.Lock()
			t.provided[c.path[0]] = stop.Target
			t.mu.Unlock()
		}
		c.move(root, false, rest)
		c.mount = stop.Target
		return nil
	}
	if ctx.Value(noLinksKey{}) != nil {
		return sigma.Errorf("namespace.follow", sigma.KindPermission,
			"there is a symlink on the path, which is to lead to the file itself")
	}
	target := stop.Target
	if !strings.HasPrefix(target, "/") {
		at := len(c.path) - len(rest) - 1
		if at < 0 {
			return sigma.Errorf("namespace.follow", sigma.KindInvalid, "the server says that its root is a link")
		}
		dir := c.path[:at]
		target = strings.TrimSuffix(sigma.JoinPath(dir...), "/") + "/" + target
	}
	names, err := sigma.ParsePath(target)
	if err != nil {
		return err
	}
	if strings.HasPrefix(stop.Target, "/") {
		names = t.real(names)
	}
	c.path = slices.Concat(names, rest)
	if len(c.path) > sigma.PathMax {
		return sigma.Errorf("namespace.follow", sigma.KindTooBig, "links make the path longer than %d names",
			sigma.PathMax)
	}
	t.atRoot(c)
	return nil
}

// atRoot puts the cursor at the beginning of its path, or at a server that the provider has there
// if it is mounted already.
func (t *Tree) atRoot(c *cursor) {
	c.epoch = t.epoch()
	c.move(t.cfg.Root, false, c.path)
	c.mount = ""
	if len(c.path) < 2 || !sigma.IsProvided(c.path[0]) {
		return // with one name, the place itself may be meant
	}
	t.mu.Lock()
	text := t.provided[c.path[0]]
	t.mu.Unlock()
	if root, ok := t.mounts.Known(text); ok {
		c.move(root, false, c.path[1:])
		c.mount = text
	}
}

// mounted returns the root behind an endpoint.
func (t *Tree) mounted(ctx context.Context, text string, e sigma.Endpoint) (sigma.File, error) {
	if t.cfg.Dial == nil || e.Form != sigma.FormTree {
		return nil, sigma.Errorf("namespace.mounted", sigma.KindUnsupported, "cannot walk through this endpoint")
	}
	return t.mounts.Get(ctx, text, func(ctx context.Context) (sigma.File, <-chan struct{}, error) {
		return t.cfg.Dial(ctx, e)
	})
}

// choose replaces the first ~local or ~any that the server did not resolve by an entry of its
// directory; if there is none, the cause stands.
func (t *Tree) choose(ctx context.Context, c *cursor, cause error) error {
	i := slices.IndexFunc(c.names, func(n string) bool { return n == sigma.LocalName || n == sigma.AnyName })
	if i < 0 {
		return cause
	}
	dir, stop, err := treeserver.WalkTo(ctx, t.guard(ctx, c.file, c.path), c.names[:i], true)
	if err != nil || stop != nil {
		return cause
	}
	defer dir.Close()
	entries, err := list(ctx, dir, membersMax)
	if err != nil && sigma.KindOf(err) != sigma.KindTooBig {
		return err
	}
	where := len(c.path) - len(c.names) + i
	for _, e := range entries {
		member := sigma.JoinPath(c.path[:where]...) + "/" + e.Name
		if !c.passed[member] && t.matches(ctx, dir, e, c.names[i]) {
			c.before, c.member = c.path, member
			c.path = slices.Clone(c.path)
			c.names = c.path[len(c.path)-len(c.names):]
			c.names[i] = e.Name
			return nil
		}
	}
	return cause
}

func (t *Tree) matches(ctx context.Context, dir sigma.File, e sigma.DirEntry, want string) bool {
	if want == sigma.LocalName && sigma.MachineID(e.Name) == t.cfg.Machine && t.cfg.Machine != "" {
		return true
	}
	if e.ID.Kind != sigma.KindEndpoint {
		return want == sigma.AnyName && e.ID.Kind == sigma.KindDir
	}
	ctx, cancel := context.WithTimeout(ctx, probeMax) // a dead endpoint is skipped, and one whose server says nothing
	defer cancel()
	f, ids, err := dir.Walk(ctx, []string{e.Name})
	if err != nil || f == nil {
		return false
	}
	defer f.Close()
	if want == sigma.AnyName && len(ids) == 1 && ids[0].Kind == sigma.KindDir {
		return true // the server has gone through the endpoint for us, as sigmad does for a proc with a view
	}
	text, err := f.ReadLink(ctx)
	if err != nil {
		return false
	}
	ep, err := sigma.ParseEndpoint(text)
	if err != nil || want == sigma.LocalName && ep.Machine != t.cfg.Machine {
		return false
	}
	_, err = t.mounted(ctx, text, ep)
	return err == nil || ep.Form != sigma.FormTree
}

// walk returns a handle of the file at path, which the caller closes.
func (t *Tree) walk(ctx context.Context, path string, followLast bool) (sigma.File, *cursor, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return nil, nil, err
	}
	return t.walkReal(ctx, path, t.real(names), followLast)
}

func (t *Tree) walkReal(ctx context.Context, path string, names []string, followLast bool) (sigma.File, *cursor,
	error) {
	var file sigma.File
	c, err := t.atReal(ctx, path, names, true, func(f sigma.File, names []string) (stop *sigma.Stopped, err error) {
		file, stop, err = treeserver.WalkTo(ctx, f, names, followLast)
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
	if names = t.real(names); len(names) == 0 {
		return nil, "", nil, &sigma.Error{Op: "namespace.parent", Path: path, Kind: sigma.KindInvalid,
			Msg: "the root cannot be made, moved or removed"}
	}
	dir, c, err := t.walkReal(ctx, path, names[:len(names)-1], true)
	if err == nil {
		dir = t.guard(ctx, dir, append(slices.Clip(c.path), names[len(names)-1]))
	}
	return dir, names[len(names)-1], c, withPathOrNil(err, path)
}

// parentBeside is parent of a path whose directory may be that of another path, which parent has
// just found: then it is the same handle and cursor.
func (t *Tree) parentBeside(ctx context.Context, path, other string, dir sigma.File, c *cursor) (sigma.File, string,
	*cursor, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return nil, "", nil, err
	}
	names = t.real(names)
	if beside, err := sigma.ParsePath(other); err == nil && len(names) > 0 {
		beside = t.real(beside)
		if last := len(names) - 1; len(beside) == len(names) && slices.Equal(beside[:last], names[:last]) {
			return t.guard(ctx, bare(dir), append(slices.Clip(c.path), names[last])), names[last], c, nil
		}
	}
	return t.parent(ctx, path)
}

func withPathOrNil(err error, path string) error {
	if err == nil {
		return nil
	}
	return withPath(err, path)
}

// list reads a whole directory of up to most entries. Of a larger one it gives the first, and
// KindTooBig.
func list(ctx context.Context, dir sigma.File, most int) ([]sigma.DirEntry, error) {
	d, _, err := dir.Walk(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return listWith(ctx, d, most)
}

// listWith is list by a handle that is not open, and which it opens.
func listWith(ctx context.Context, d sigma.File, most int) ([]sigma.DirEntry, error) {
	if err := d.Open(ctx, sigma.OpenRead); err != nil {
		return nil, err
	}
	var out []sigma.DirEntry
	var err error
	size := 0
	for cookie, more, rounds := uint64(0), true, 0; more; rounds++ {
		var es []sigma.DirEntry
		if es, cookie, more, err = d.ReadDir(ctx, cookie, 512); err != nil {
			return nil, err
		}
		for _, e := range es {
			size += len(e.Name)
		}
		if out = append(out, es...); max(len(out), rounds) > most || size > listBytesMax {
			err = sigma.Errorf("namespace.list", sigma.KindTooBig,
				"the directory has more than %d entries, or names of more than %d bytes", most, listBytesMax)
			break
		}
	}
	slices.SortFunc(out, func(a, b sigma.DirEntry) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// MountsMax bounds the mounts of one Tree.
const MountsMax = 64

// bind says that what is below at is looked up below to.
type bind struct{ at, to []string }

// Mount implements sigma.Namespace. It is this Tree's alone: nobody is asked, and what a path leads
// to is still what the server shows to the program.
func (t *Tree) Mount(_ context.Context, path1, path2 string) error {
	const op = "resolve.Mount"
	from, err := sigma.ParsePath(path1)
	if err != nil {
		return err
	}
	at, err := sigma.ParsePath(path2)
	if err != nil {
		return err
	}
	if len(at) > 0 && (at[0] == sigma.NameSys || at[0] == sigma.NameProc) {
		return &sigma.Error{Op: op, Path: path2, Kind: sigma.KindPermission, Msg: "the place is the system's"}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	to := t.real(from)
	var binds []bind
	if old := t.binds.Load(); old != nil {
		binds = slices.DeleteFunc(slices.Clone(*old), func(b bind) bool { return slices.Equal(b.at, at) })
	}
	binds = append(binds, bind{at, to})
	if len(binds) > MountsMax {
		return sigma.Errorf(op, sigma.KindBusy, "a program can have %d mounts", MountsMax)
	}
	slices.SortFunc(binds, func(a, b bind) int { return cmp.Compare(len(b.at), len(a.at)) })
	t.binds.Store(&binds)
	return nil
}

// Unmount undoes a Mount at path2; KindNotFound if nothing is mounted there.
func (t *Tree) Unmount(path2 string) error {
	at, err := sigma.ParsePath(path2)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.binds.Load()
	if old == nil || t.unmounted(path2) == nil {
		return sigma.PathError("resolve.Unmount", sigma.KindNotFound, path2)
	}
	binds := slices.DeleteFunc(slices.Clone(*old), func(b bind) bool { return slices.Equal(b.at, at) })
	if t.binds.Store(&binds); len(binds) == 0 {
		t.binds.Store(nil)
	}
	return nil
}

// real is where names lead with the mounts: the deepest that is at or above them counts, once.
func (t *Tree) real(names []string) []string {
	binds := t.binds.Load()
	if binds == nil {
		return names
	}
	for _, b := range *binds {
		if len(names) >= len(b.at) && slices.Equal(names[:len(b.at)], b.at) {
			return slices.Concat(b.to, names[len(b.at):])
		}
	}
	return names
}

// Real is the path that leads to the same without mounts, as others know it. A path that is none
// stays as it is.
func (t *Tree) Real(path string) string {
	names, err := sigma.ParsePath(path)
	if err != nil || t.binds.Load() == nil {
		return path
	}
	return sigma.JoinPath(t.real(names)...)
}

// unmounted says that path is not itself a mount, which cannot be removed or moved.
func (t *Tree) unmounted(path string) error {
	names, err := sigma.ParsePath(path)
	if binds := t.binds.Load(); err == nil && binds != nil && slices.ContainsFunc(*binds, func(b bind) bool {
		return slices.Equal(b.at, names)
	}) {
		return &sigma.Error{Op: "resolve.Mount", Path: path, Kind: sigma.KindPermission,
			Msg: "something is mounted there", Hint: "what is mounted can be changed by its own path"}
	}
	return nil
}

// withMounts adds to a listing what is mounted in the directory.
func (t *Tree) withMounts(ctx context.Context, path string, es []sigma.DirEntry) []sigma.DirEntry {
	binds := t.binds.Load()
	names, err := sigma.ParsePath(path)
	if binds == nil || err != nil {
		return es
	}
	for _, b := range *binds {
		n := len(names)
		if len(b.at) != n+1 || !slices.Equal(b.at[:n], names) {
			continue
		}
		name := b.at[n]
		i, there := slices.BinarySearchFunc(es, name, func(e sigma.DirEntry, name string) int {
			return cmp.Compare(e.Name, name)
		})
		st, err := t.Lstat(ctx, sigma.JoinPath(b.at...))
		switch {
		case err != nil && there:
			es = slices.Delete(es, i, i+1)
		case err != nil:
		case there:
			es[i] = sigma.DirEntry{Name: name, ID: st.ID}
		default:
			es = slices.Insert(es, i, sigma.DirEntry{Name: name, ID: st.ID})
		}
	}
	return es
}

// GetAt reads up to count bytes at offset, in one round trip where the server can. The result says
// of which version they are and how large the file is. At most one message's worth is returned
// (sigmap.DataMax).
func (t *Tree) GetAt(ctx context.Context, path string, offset uint64, count int) (sigma.GetResult, error) {
	var r sigma.GetResult
	_, err := t.at(ctx, path, true, func(f sigma.File, names []string) (stop *sigma.Stopped, err error) {
		r, stop, err = treeserver.Get(ctx, f, names, offset, count)
		return stop, err
	})
	return r, err
}

// Handle returns a handle of the file at path, whose operations take a context each. The caller
// closes it.
func (t *Tree) Handle(ctx context.Context, path string) (sigma.File, error) {
	f, _, err := t.walk(ctx, path, true)
	return f, err
}

// epoch counts the servers of the root.
func (t *Tree) epoch() uint32 {
	if t.cfg.Epoch == nil {
		return 0
	}
	return t.cfg.Epoch()
}

// fenceFor is the innermost fenced directory of a path; nil if it has none.
func (t *Tree) fenceFor(ctx context.Context, path []string) (by *fencedDir) {
	p := t.fences.Load()
	if p == nil || len(*p) == 0 || ctx.Value(noFenceKey{}) != nil {
		return nil
	}
	for i := range *p {
		d := &(*p)[i]
		if n := len(d.names); (by == nil || n > len(by.names)) && n <= len(path) && slices.Equal(d.names, path[:n]) {
			by = d
		}
	}
	return by
}

// guard gives file the fence of path, for what is asked of it and of what it leads to.
func (t *Tree) guard(ctx context.Context, file sigma.File, path []string) sigma.File {
	by := t.fenceFor(ctx, path)
	if by == nil {
		return file
	}
	return by.guard(bare(file))
}

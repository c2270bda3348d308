// Package progtree is a realm's tree as the kernel sees it to fetch programs. It remembers what
// paths lead to as long as no server on the way has counted a change, so that a warm start asks
// nobody. It needs roots of servers whose walks leave a trail (Attach). Users: kernel.
package progtree

import (
	"context"
	"sync"
	"sync/atomic"

	"sigmaos.dev/kernel/binfs"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Tree is the kernel's own view of a realm, with which it fetches programs. It remembers what
// paths lead to, so that a warm start asks nobody: each server on the way counts its changes on a
// board that this process sees (changeboard), and what was found stands as long as none of the
// files on the way has changed and the sessions live. What no board covers is asked for each time.
// Safe for concurrent use.
type Tree struct {
	*resolve.Tree

	mu    sync.Mutex
	known map[string]*resolved // mu; by path
}

// knownMax bounds what is remembered of one realm; beyond it all is forgotten. A realm starts fewer
// programs at a time.
const knownMax = 1024

// New makes the tree of a realm that t shows.
func New(t *resolve.Tree) *Tree { return &Tree{Tree: t, known: map[string]*resolved{}} }

// Strict is the tree for programs of procs with views.
func (t *Tree) Strict() binfs.Tree { return strict{t} }

// source is a server on the way, over one session.
type source struct {
	view *changeboard.View // nil = it tells no changes
	done <-chan struct{}   // closed when the session has ended
}

func (s *source) live() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// resolved is what a path leads to, and what that depends on.
type resolved struct {
	stat   sigma.Stat
	marks  []mark
	opened atomic.Bool // the program was started, so that its bytes are here
}

type mark struct {
	at   *source
	mark changeboard.Mark
}

func (r *resolved) stands() bool {
	for i := range r.marks {
		if m := &r.marks[i]; !m.at.live() || !m.at.view.Same(m.mark) {
			return false
		}
	}
	return true
}

// Stat implements sigma.Namespace.
func (t *Tree) Stat(ctx context.Context, path string) (sigma.Stat, error) {
	if r := t.remembered(path); r != nil && r.stands() {
		return r.stat, nil
	}
	route := &trail{seen: map[*source]*changeboard.Snapshot{}}
	st, err := t.Tree.Stat(sigma.WithSync(context.WithValue(ctx, trailKey{}, route)),
		path) // the boards tell of changes since then, not of those before
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || route.uncovered || len(path) > sigma.NameMax { // longer ones are not worth the memory
		delete(t.known, path)
		return st, err
	}
	if len(t.known) >= knownMax {
		clear(t.known)
	}
	t.known[path] = &resolved{stat: st, marks: route.marks}
	return st, nil
}

// strict is a realm's tree for programs of procs with views: their paths contain no symlinks,
// and who makes one there later does not lead to another program. It remembers nothing.
type strict struct{ t *Tree }

// Stat implements binfs.Tree.
func (s strict) Stat(ctx context.Context, path string) (sigma.Stat, error) {
	return s.t.Tree.Stat(resolve.WithoutLinks(ctx), path)
}

// GetAt implements binfs.Tree.
func (s strict) GetAt(ctx context.Context, path string, offset uint64, count int) (sigma.GetResult, error) {
	return s.t.GetAt(resolve.WithoutLinks(ctx), path, offset, count)
}

// Handle implements binfs.Tree.
func (s strict) Handle(ctx context.Context, path string) (sigma.File, error) {
	return s.t.Handle(resolve.WithoutLinks(ctx), path)
}

// Warm reports whether the program at path can be started without asking anybody, as far as is
// known.
func (t *Tree) Warm(path string) bool {
	r := t.remembered(path)
	return r != nil && r.opened.Load() && r.stands()
}

// Opened notes that the bytes of the program at path are here.
func (t *Tree) Opened(path string) {
	if r := t.remembered(path); r != nil && !r.opened.Load() {
		r.opened.Store(true)
	}
}

func (t *Tree) remembered(path string) *resolved {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[path]
}

// trail gathers what a path depends on while it is walked, for one caller. A walk that is not
// followed has none.
type trail struct {
	seen      map[*source]*changeboard.Snapshot
	marks     []mark
	uncovered bool // by any board
}

type trailKey struct{}

func trailOf(ctx context.Context) *trail {
	t, _ := ctx.Value(trailKey{}).(*trail)
	return t
}

// begin reads the board of a server before it is first asked.
func (t *trail) begin(s *source) {
	switch {
	case t == nil:
	case s.view == nil:
		t.uncovered = true
	case t.seen[s] == nil:
		t.seen[s] = s.view.Snapshot()
	}
}

// add notes the files that a walk of that server went through.
func (t *trail) add(s *source, root uint64, ids []sigma.FileID) {
	if t == nil || s.view == nil {
		return
	}
	before := t.seen[s]
	t.marks = append(t.marks, mark{s, before.Mark(root)})
	for _, id := range ids {
		t.marks = append(t.marks, mark{s, before.Mark(id.Path)})
	}
}

// Leave notes that the path which ctx follows, if it does, goes where no board is.
func Leave(ctx context.Context) {
	if t := trailOf(ctx); t != nil {
		t.uncovered = true
	}
}

// Followed is a realm's root at a server, whose walks leave a trail.
type Followed struct {
	sigma.Stub
	source
	next sigma.File
	id   uint64
}

// RenameTarget gives the session's own handle of the root, for a rename into it.
func (f *Followed) RenameTarget(context.Context, string) (sigma.File, error) {
	return f.next, nil
}

// Attach attaches to a realm at a system server.
func Attach(ctx context.Context, s *session.Client, realm sigma.RealmID) (*Followed, error) {
	root, err := s.Attach(ctx, string(realm))
	if err != nil {
		return nil, err
	}
	st, err := root.Stat(ctx)
	if err != nil {
		return nil, err
	}
	f := &Followed{source: source{boardOf(ctx, s), s.Done()}, next: root, id: st.ID.Path}
	f.Handler = f
	return f, nil
}

// Handle implements sigma.Handler.
func (f *Followed) Handle(ctx context.Context, r sigma.Request) (sigma.Reply, error) {
	if r.Op != sigma.OpWalk {
		return treeserver.Do(ctx, f.next, r)
	}
	t := trailOf(ctx)
	t.begin(&f.source)
	a, err := treeserver.Do(ctx, f.next, r)
	if err == nil { // else it may be asked again over another session
		t.add(&f.source, f.id, a.IDs)
	}
	return a, err
}

// boardOf asks a server for its board; nil if it has none, as one in tests.
func boardOf(ctx context.Context, s *session.Client) *changeboard.View {
	root, err := s.Attach(ctx, "")
	if err != nil {
		return nil
	}
	defer root.Close()
	c, ok := root.(sigma.Caller)
	if !ok {
		return nil
	}
	_, files, err := sigmap.CallChanges.AskFiles(ctx, c, sigmap.None{})
	defer session.CloseFiles(files)
	if err != nil || len(files) != 1 {
		return nil
	}
	v, err := changeboard.Open(files[0])
	if err != nil {
		return nil
	}
	return v
}

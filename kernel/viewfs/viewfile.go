package viewfs

import (
	"context"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/session"
)

// viewFile is a file as a proc with a view sees it: a file of the realm with the rights of the
// entry by which it was reached, or a directory that is there only because entries are below it.
// Its Handle decides about all requests.
type viewFile struct {
	sigma.Stub
	next    sigma.File // a hollow where the directory is made up
	v       *Viewer
	at      []string     // where it is in the view, if entries may be below; else nil: then the handle alone counts
	entry   *view.Entry  // whose rights hold; nil of a directory that is made up
	by      sigma.ProcID // who serves next; "" = the system
	id      sigma.FileID
	list    []sigma.DirEntry // of a directory with entries below it: those, as of Open
	created bool             // by Create, for writing
}

// handle makes a handle of f that stands before file.
func handle(file sigma.File, f viewFile) *viewFile {
	f.next, f.Handler = file, &f
	return &f
}

// hollow makes the handle of a directory that is made up.
func (v *Viewer) hollow(at []string, id sigma.FileID) *viewFile {
	return handle(hollow{at: at, id: id}, viewFile{v: v, at: at, id: id})
}

// Handle implements sigma.Handler: the rights of the entry decide, and a fence is what it is in the
// realm.
func (f *viewFile) Handle(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	switch {
	case r.Op == sigma.OpRecall:
		return a, nil
	case r.Op.OfHandle():
		return treeserver.Do(ctx, f.next, r)
	case r.Op == sigma.OpCall: // no descriptors are passed on
		session.CloseFiles(r.Files)
		r.Files = nil
	case r.Op == sigma.OpCreate, r.Op == sigma.OpMkdir:
		if e := f.entryAt(r.Name); e != nil {
			return f.makeAt(ctx, e, r)
		}
	}
	if err = f.admit(&r); err != nil {
		return a, err
	}
	if r.Op == sigma.OpOpen {
		f.list = f.entries(ctx)
	}
	if ctx, err = f.v.fenced(ctx); err != nil {
		return a, err
	}
	switch r.Op {
	case sigma.OpWalk:
		a.File, a.IDs, err = f.walk(ctx, r.Names)
	case sigma.OpGet, sigma.OpPut:
		a, err = f.whole(ctx, r)
	case sigma.OpReadDir:
		a, err = f.readDir(ctx, r)
	case sigma.OpSpace: // a view does not show how much room the realm has
	case sigma.OpLease, sigma.OpRenew, sigma.OpRevoke:
		a, err = f.lease(ctx, r)
	default:
		if a, err = treeserver.Do(ctx, f.next, r); err == nil {
			err = f.show(r.Op, &a)
		}
	}
	return a, err
}

// admit says whether the view lets a request pass.
func (f *viewFile) admit(r *sigma.Request) error {
	switch r.Op {
	case sigma.OpMkdir:
		if f.covered(r.Name) {
			return sigma.PathError("kernel.view.Mkdir", sigma.KindExists, r.Name)
		}
		return f.may(r.Op, r.Name, sigma.RightWrite)
	case sigma.OpCreate, sigma.OpSymlink, sigma.OpRemove:
		return f.mayChange(r.Op, r.Name)
	case sigma.OpRename: // its directories are of the same view, but not always of the same server
		to, ok := r.Dir.(*viewFile)
		if !ok {
			return f.refuse(r.Op, r.Text)
		}
		if err := to.mayChange(r.Op, r.Text); err != nil {
			return err
		}
		r.Dir = to.next
		return f.mayChange(r.Op, r.Name)
	case sigma.OpSetStat, sigma.OpWriteAt, sigma.OpWriteAtIf:
		return f.may(r.Op, f.path(), sigma.RightWrite)
	case sigma.OpOpen:
		if r.Flags.Writes() {
			return f.may(r.Op, f.path(), sigma.RightWrite)
		}
	case sigma.OpCall:
		return f.may(r.Op, f.path(), sigma.RightCall)
	case sigma.OpPassBulk, sigma.OpPassFile:
		if f.v.cfg.Role != "" {
			return treeserver.Unsupported("passing it to a guest") // whose credential it would outlive
		}
	case sigma.OpFind:
		return treeserver.Unsupported("find")
	}
	return nil
}

// show makes of a reply what the view shows of it.
func (f *viewFile) show(op sigma.Op, a *sigma.Reply) error {
	switch op {
	case sigma.OpCreate:
		a.File = handle(a.File, viewFile{v: f.v, entry: f.entry, by: f.by, id: sigma.FileID{Kind: sigma.KindFile},
			created: true})
	case sigma.OpStat:
		if f.entry != nil && f.entry.Rights&sigma.RightWrite == 0 {
			a.Stat.Perm &^= 0o222
		}
	case sigma.OpReadLink:
		if f.id.Kind == sigma.KindEndpoint {
			(&walker{v: f.v, by: f.by}).tell(a.Text)
		}
	case sigma.OpCall:
		if f.v.cfg.Role != "" { // what a proc answers with would outlive a guest's credential
			session.CloseFiles(a.Files)
			a.Files = nil
		}
	case sigma.OpPassFile:
		if !f.passable(a.Files[0]) {
			session.CloseFiles(a.Files)
			a.Files = nil
			return f.refuse(op, f.path())
		}
	}
	return nil
}

// passable says whether a descriptor may be passed: it was opened for reading only, unless the proc
// made the file. A server of a tenant's might say so and pass another.
func (f *viewFile) passable(file *os.File) bool {
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	mode, st := 0, unix.Stat_t{}
	raw.Control(func(fd uintptr) {
		if mode, err = unix.FcntlInt(fd, unix.F_GETFL, 0); err == nil {
			err = unix.Fstat(int(fd), &st)
		}
	})
	return err == nil && (mode&unix.O_ACCMODE == unix.O_RDONLY || f.created) && mode&unix.O_PATH == 0 &&
		st.Mode&unix.S_IFMT == unix.S_IFREG
}

// hollow is a directory that is there only because entries are below it. It does not change.
type hollow struct {
	treeserver.Base
	at []string
	id sigma.FileID
}

// Stat implements sigma.File.
func (h hollow) Stat(context.Context) (sigma.Stat, error) {
	st := sigma.Stat{ID: h.id, Perm: 0o555, Modified: time.Unix(0, 0)}
	if len(h.at) > 0 {
		st.Name = h.at[len(h.at)-1]
	}
	return st, nil
}

// Open implements sigma.File.
func (h hollow) Open(context.Context, sigma.OpenFlags) error { return nil }

// ReadDir implements sigma.File.
func (h hollow) ReadDir(_ context.Context, cookie uint64, _ int) ([]sigma.DirEntry, uint64, bool, error) {
	return nil, cookie, false, nil
}

// ReadAt implements sigma.File.
func (h hollow) ReadAt(context.Context, []byte, uint64) (int, error) {
	return 0, sigma.PathError("kernel.view.ReadAt", sigma.KindIsDir, sigma.JoinPath(h.at...))
}

// ReadLink implements sigma.File.
func (h hollow) ReadLink(context.Context) (string, error) {
	return "", sigma.PathError("kernel.view.ReadLink", sigma.KindInvalid, sigma.JoinPath(h.at...))
}

// Watch implements sigma.Watcher.
func (h hollow) Watch(ctx context.Context, _ sigma.Version) (sigma.Version, error) {
	<-ctx.Done()
	return 0, sigma.Wrap("kernel.view.Watch", "", ctx.Err())
}

// Remembers implements sigma.Rememberer: what is asked of it passes on to the root of the realm,
// which does.
func (h hollow) Remembers() bool { return true }

func (f *viewFile) path() string {
	if f.at != nil {
		return sigma.JoinPath(f.at...)
	}
	return ""
}

func (f *viewFile) refuse(op sigma.Op, name string) error {
	if role := f.v.cfg.Role; role != "" {
		return &sigma.Error{Op: "kernel.view." + op.String(), Path: name, Kind: sigma.KindPermission,
			Msg:  "the credential's role " + role + " does not allow it",
			Hint: "a developer may change names and files; ask an owner of the realm"}
	}
	msg := "the proc's view does not allow it"
	if f.entry != nil {
		msg = "the proc's view gives " + f.entry.Rights.String() + " at " + sigma.JoinPath(f.entry.Path...)
	}
	return &sigma.Error{Op: "kernel.view." + op.String(), Path: name, Kind: sigma.KindPermission, Msg: msg,
		Hint: "sigma caps PID shows what a proc may reach"}
}

// may says whether the rights here include r.
func (f *viewFile) may(op sigma.Op, name string, r sigma.Rights) error {
	if f.entry != nil && f.entry.Rights&r == r {
		return nil
	}
	return f.refuse(op, name)
}

// location is what names from a file lead to, before anybody is asked: the way to it, or a place
// that is made up.
type location struct {
	at      []string // nil if nothing is below
	entry   *view.Entry
	walker  *walker // nil of a place that is made up
	created int     // of the names, those that lead through the view itself, up to the entry's place
	below   bool    // entries are below it
}

// locate finds what decides about names.
func (f *viewFile) locate(op sigma.Op, names []string) (location, error) {
	v := f.v
	if f.at == nil {
		return location{entry: f.entry, walker: &walker{v: v, f: f.next, by: f.by, names: names}}, nil
	}
	at := append(slices.Clip(f.at), names...) // not nil, also at the root
	e, rest, found := v.Table().Lookup(at)
	below := len(v.Table().Below(at)) > 0
	s := location{entry: e, below: below}
	if below || len(at) == 0 {
		s.at = at
	}
	real := found && e.Rights != sigma.RightsNone && slices.Equal(slices.Concat(e.Target, rest),
		at) // the realm's own place of that name
	if len(at) > 0 && (at[0] == sigma.NameSys || at[0] == sigma.NameProc && !real) {
		own := &view.Entry{Path: at[:1], Target: at[:1],
			Rights: sigma.RightsCall} // as the system makes it for the proc; the calls see to the rest
		return location{entry: own, walker: &walker{v: v, f: v.cfg.Root(), names: at, real: 1},
			created: max(0, 1-len(f.at))}, nil
	}
	switch {
	case found && e.Rights != sigma.RightsNone && e == f.entry:
		s.walker = &walker{v: v, f: f.next, by: f.by, names: names}
	case found && e.Rights != sigma.RightsNone:
		s.walker = &walker{v: v, f: v.cfg.Root(), names: slices.Concat(e.Target, rest), real: len(e.Target)}
		s.created = max(0, len(names)-len(rest))
	case below, len(at) == 0:
		s.entry, s.created = nil, len(names)
	default:
		return s, sigma.PathError("kernel.view."+op.String(), sigma.KindNotFound, sigma.JoinPath(at...))
	}
	return s, nil
}

// madeIDs are the ids of the names that lead through the view itself.
func (f *viewFile) madeIDs(names []string) (ids []sigma.FileID) {
	for i := range names {
		ids = append(ids, madeID(slices.Concat(f.at, names[:i+1])))
	}
	return ids
}

// atDir reports whether a walk came to a directory, as a place above entries is.
func (w *walker) atDir(file sigma.File, err error) bool {
	last := w.entry
	if n := len(w.ids); n > 0 {
		last = w.ids[n-1]
	}
	return err == nil && file != nil && (len(w.ids) == 0 && last == sigma.FileID{} || last.Kind == sigma.KindDir)
}

func madeID(at []string) sigma.FileID {
	return sigma.FileID{Kind: sigma.KindDir, Path: PathID("view:" + sigma.JoinPath(at...))}
}

// walk is File.Walk. Trees behind endpoints are gone through.
func (f *viewFile) walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	s, err := f.locate(sigma.OpWalk, names)
	if err != nil {
		return f.partly(names, err)
	}
	if s.walker == nil {
		return f.v.hollow(s.at, madeID(s.at)), f.madeIDs(names), nil
	}
	file, err := s.walker.walk(ctx)
	if s.below && !s.walker.atDir(file, err) {
		if file != nil {
			file.Close()
		}
		// nothing is there but what leads to entries below
		return f.v.hollow(s.at, madeID(s.at)), f.madeIDs(names), nil
	}
	if err != nil {
		return f.partly(names, err)
	}
	ids := s.walker.ids
	if s.created > 0 {
		ids = append(append(f.madeIDs(names[:s.created-1]), s.walker.entry), ids...)
		if len(s.entry.Target) == 0 {
			ids[s.created-1] = madeID(slices.Concat(f.at, names[:s.created]))
		}
	}
	if file == nil {
		return nil, ids[:min(len(ids), len(names))], nil
	}
	id := f.id
	if len(names) > 0 && len(ids) > 0 {
		id = ids[len(ids)-1]
	}
	return handle(file, viewFile{v: f.v, at: s.at, entry: s.entry, by: s.walker.by, id: id}), ids, nil
}

// partly makes of a missing name what a walk that went on for a while says.
func (f *viewFile) partly(names []string, err error) (sigma.File, []sigma.FileID, error) {
	if f.at == nil || sigma.KindOf(err) != sigma.KindNotFound {
		return nil, nil, err
	}
	for n := len(names) - 1; n > 0; n-- {
		if at := slices.Concat(f.at, names[:n]); len(f.v.Table().Below(at)) > 0 {
			return nil, f.madeIDs(names[:n]), nil
		} else if e, rest, ok := f.v.Table().Lookup(at); ok && len(rest) == 0 && e.Rights != sigma.RightsNone {
			return nil, f.madeIDs(names[:n]), nil
		}
	}
	return nil, nil, err
}

// entries lists what the view has in the directory, which is opened.
func (f *viewFile) entries(ctx context.Context) (list []sigma.DirEntry) {
	if f.at == nil || f.id.Kind != sigma.KindDir {
		return nil
	}
	for _, n := range f.shown() {
		id := madeID(slices.Concat(f.at, []string{n}))
		if file, ids, err := f.Walk(ctx, []string{n}); err == nil && len(ids) == 1 {
			id = ids[0]
			if file != nil {
				file.Close()
			}
		}
		list = append(list, sigma.DirEntry{Name: n, ID: id, Next: uint64(len(list) + 1)})
	}
	return list
}

// shown are the names of entries here, and at the root those of the system, without those that
// hide.
func (f *viewFile) shown() []string {
	names := slices.DeleteFunc(f.v.Table().Below(f.at), func(n string) bool { return f.hidden(n) })
	if len(f.at) == 0 {
		names = append(names, sigma.NameProc, sigma.NameSys)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (f *viewFile) hidden(name string) bool {
	at := slices.Concat(f.at, []string{name})
	e, rest, ok := f.v.Table().Lookup(at)
	return ok && len(rest) == 0 && e.Rights == sigma.RightsNone && len(f.v.Table().Below(at)) == 0
}

// covered reports whether a name here is not inner's.
func (f *viewFile) covered(name string) bool {
	if f.at == nil {
		return false
	}
	return slices.Contains(f.v.Table().Below(f.at), name) || len(f.at) == 0 &&
		(name == sigma.NameProc || name == sigma.NameSys)
}

// viewCookies marks cookies of the part of a listing that is inner's, which comes after the view's
// own.
const viewCookies = 1 << 62

// readDir lists what the view has here, as of Open, and then what is there.
func (f *viewFile) readDir(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	if f.at == nil {
		return treeserver.Do(ctx, f.next, r)
	}
	cookie := r.Offset
	if own := uint64(len(f.list)); cookie < own {
		to := min(cookie+uint64(max(r.Count, 1)), own)
		return sigma.Reply{Entries: slices.Clone(f.list[cookie:to]), Next: to, More: to < own || f.entry != nil}, nil
	}
	if cookie&viewCookies == 0 {
		cookie = viewCookies // the view's part is done
	}
	r.Offset = cookie &^ viewCookies
	a, err = treeserver.Do(ctx, f.next, r)
	a.Entries = slices.DeleteFunc(a.Entries, func(e sigma.DirEntry) bool { return f.covered(e.Name) })
	for i := range a.Entries {
		if a.Entries[i].Next != 0 {
			a.Entries[i].Next |= viewCookies
		}
	}
	a.Next |= viewCookies
	return a, err
}

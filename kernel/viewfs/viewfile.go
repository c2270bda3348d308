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
// entry by which it was reached, or a directory that is there only because entries are below it. It
// is its own Gate.
type viewFile struct {
	treeserver.PassingForward // to a hollow where the directory is made up

	v       *Viewer
	at      []string     // where it is in the view, if entries may be below; else nil: then the handle alone counts
	entry   *view.Entry  // whose rights hold; nil of a directory that is made up
	by      sigma.ProcID // who serves File; "" = the system
	id      sigma.FileID
	list    []sigma.DirEntry // of a directory with entries below it: those, as of Open
	created bool             // by Create, for writing
}

var (
	_ sigma.Leaser     = (*viewFile)(nil)
	_ sigma.FilePasser = (*viewFile)(nil)
)

// handle makes a handle of f that stands before file.
func handle(file sigma.File, f viewFile) *viewFile {
	f.PassingForward = treeserver.Passing(file, &f)
	return &f
}

// hollow makes the handle of a directory that is made up.
func (v *Viewer) hollow(at []string, id sigma.FileID) *viewFile {
	return handle(hollow{at: at, id: id}, viewFile{v: v, at: at, id: id})
}

// Enter implements treeserver.Gate: the rights of the entry decide, and a fence is what it is in
// the realm.
func (f *viewFile) Enter(ctx context.Context, op treeserver.Op, name string) (context.Context, func(error) error,
	error) {
	var err error
	switch op {
	case treeserver.OpCreate, treeserver.OpMkdir, treeserver.OpSymlink, treeserver.OpRemove, treeserver.OpRename:
		err = f.mayChange(op, name)
	case treeserver.OpSetStat, treeserver.OpWriteAt:
		err = f.may(op, f.path(), sigma.RightWrite)
	case treeserver.OpCall:
		err = f.may(op, f.path(), sigma.RightCall)
	case treeserver.OpPassBulk, treeserver.OpPassFile:
		if f.v.cfg.Role != "" {
			err = treeserver.Unsupported("passing it to a guest") // whose credential it would outlive
		}
	}
	if err == nil {
		ctx, err = f.v.fenced(ctx)
	}
	return ctx, treeserver.Admit, err
}

// Beyond implements treeserver.Gate, of what Create made.
func (f *viewFile) Beyond(file sigma.File) sigma.File {
	id := sigma.FileID{Kind: sigma.KindFile}
	return handle(file, viewFile{v: f.v, entry: f.entry, by: f.by, id: id, created: true})
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

func (f *viewFile) refuse(op treeserver.Op, name string) error {
	if role := f.v.cfg.Role; role != "" {
		return &sigma.Error{Op: "kernel.view." + string(op), Path: name, Kind: sigma.KindPermission,
			Msg:  "the credential's role " + role + " does not allow it",
			Hint: "a developer may change names and files; ask an owner of the realm"}
	}
	msg := "the proc's view does not allow it"
	if f.entry != nil {
		msg = "the proc's view gives " + f.entry.Rights.String() + " at " + sigma.JoinPath(f.entry.Path...)
	}
	return &sigma.Error{Op: "kernel.view." + string(op), Path: name, Kind: sigma.KindPermission, Msg: msg,
		Hint: "sigma caps PID shows what a proc may reach"}
}

// may says whether the rights here include r.
func (f *viewFile) may(op treeserver.Op, name string, r sigma.Rights) error {
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
func (f *viewFile) locate(op string, names []string) (location, error) {
	v := f.v
	if f.at == nil {
		return location{entry: f.entry, walker: &walker{v: v, f: f.File, by: f.by, names: names}}, nil
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
		s.walker = &walker{v: v, f: f.File, by: f.by, names: names}
	case found && e.Rights != sigma.RightsNone:
		s.walker = &walker{v: v, f: v.cfg.Root(), names: slices.Concat(e.Target, rest), real: len(e.Target)}
		s.created = max(0, len(names)-len(rest))
	case below, len(at) == 0:
		s.entry, s.created = nil, len(names)
	default:
		return s, sigma.PathError("kernel.view."+op, sigma.KindNotFound, sigma.JoinPath(at...))
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

// Walk implements sigma.File. Trees behind endpoints are gone through.
func (f *viewFile) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	s, err := f.locate("Walk", names)
	if err != nil {
		return f.partly(names, err)
	}
	if s.walker == nil {
		return f.v.hollow(s.at, madeID(s.at)), f.madeIDs(names), nil
	}
	ctx, err = f.v.fenced(ctx)
	if err != nil {
		return nil, nil, err
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

// Stat implements sigma.File.
func (f *viewFile) Stat(ctx context.Context) (sigma.Stat, error) {
	st, err := f.Forward.Stat(ctx)
	if f.entry != nil && f.entry.Rights&sigma.RightWrite == 0 {
		st.Perm &^= 0o222
	}
	return st, err
}

// Open implements sigma.File.
func (f *viewFile) Open(ctx context.Context, flags sigma.OpenFlags) error {
	if flags.Writes() {
		if err := f.may("Open", f.path(), sigma.RightWrite); err != nil {
			return err
		}
	}
	f.list = nil
	if f.at != nil && f.id.Kind == sigma.KindDir {
		for _, n := range f.shown() {
			id := madeID(slices.Concat(f.at, []string{n}))
			if file, ids, err := f.Walk(ctx, []string{n}); err == nil && len(ids) == 1 {
				id = ids[0]
				if file != nil {
					file.Close()
				}
			}
			f.list = append(f.list, sigma.DirEntry{Name: n, ID: id, Next: uint64(len(f.list) + 1)})
		}
	}
	return f.Forward.Open(ctx, flags)
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

// ReadDir implements sigma.File.
func (f *viewFile) ReadDir(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, uint64, bool, error) {
	ctx, _, err := f.Enter(ctx, treeserver.OpReadDir, "")
	if err != nil {
		return nil, cookie, false, err
	}
	if f.at == nil {
		return f.File.ReadDir(ctx, cookie, n)
	}
	if own := uint64(len(f.list)); cookie < own {
		to := min(cookie+uint64(max(n, 1)), own)
		return slices.Clone(f.list[cookie:to]), to, to < own || f.entry != nil, nil
	}
	if cookie&viewCookies == 0 {
		cookie = viewCookies // the view's part is done
	}
	es, next, more, err := f.File.ReadDir(ctx, cookie&^viewCookies, n)
	es = slices.DeleteFunc(es, func(e sigma.DirEntry) bool { return f.covered(e.Name) })
	for i := range es {
		if es[i].Next != 0 {
			es[i].Next = es[i].Next | viewCookies
		}
	}
	return es, next | viewCookies, more, err
}

// ReadLink implements sigma.File. Reading an endpoint allows to dial it.
func (f *viewFile) ReadLink(ctx context.Context) (string, error) {
	text, err := f.Forward.ReadLink(ctx)
	if err == nil && f.id.Kind == sigma.KindEndpoint {
		(&walker{v: f.v, by: f.by}).tell(text)
	}
	return text, err
}

// Call implements sigma.Caller. It passes no descriptors on.
func (f *viewFile) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	session.CloseFiles(files)
	reply, back, err := f.Forward.Call(ctx, method, payload, nil)
	if f.v.cfg.Role != "" { // what a proc answers with would outlive a guest's credential
		session.CloseFiles(back)
		back = nil
	}
	return reply, back, err
}

// Space implements sigma.Spacious: a view does not show how much room the realm has.
func (f *viewFile) Space(context.Context) (room sigma.Space, err error) { return room, nil }

// PassFile implements sigma.FilePasser. What is passed was opened for reading only, unless the proc
// made the file; a server of a tenant's might say so and pass another.
func (f *viewFile) PassFile(ctx context.Context) (*os.File, error) {
	file, err := f.PassingForward.PassFile(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	mode, st := unix.O_RDWR, unix.Stat_t{}
	if err == nil {
		raw.Control(func(fd uintptr) {
			if mode, err = unix.FcntlInt(fd, unix.F_GETFL, 0); err == nil {
				err = unix.Fstat(int(fd), &st)
			}
		})
	}
	if err != nil || mode&unix.O_ACCMODE != unix.O_RDONLY && !f.created || mode&unix.O_PATH != 0 ||
		st.Mode&unix.S_IFMT != unix.S_IFREG {
		file.Close()
		return nil, f.refuse("PassFile", f.path())
	}
	return file, nil
}

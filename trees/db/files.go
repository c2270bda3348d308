package db

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// root is the directory of a realm's databases.
type root struct {
	treeserver.Base
	t        *Tree
	provider bool
	list     []sigma.DirEntry // as it was at Open
}

var (
	_ sigma.File   = (*root)(nil)
	_ sigma.Caller = (*root)(nil)
)

func (d *root) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		return &root{t: d.t, provider: d.provider}, nil, nil
	}
	of := d.t.find(names[0])
	if of == nil {
		return nil, nil, sigma.PathError("db.Walk", sigma.KindNotFound, names[0])
	}
	f, ids, err := (&folder{d: of}).Walk(ctx, names[1:])
	if f == nil {
		err = nil // the directory was reached
	}
	return f, append([]sigma.FileID{of.dirID()}, ids...), err
}

func (d *root) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir, Path: 1}, Perm: 0o777, Modified: time.Unix(0, 0)}, nil
}

func (d *root) Open(_ context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("db.Open", sigma.KindIsDir, "/")
	}
	d.list = nil
	for i, name := range d.t.names() {
		if of := d.t.find(name); of != nil {
			d.list = append(d.list, sigma.DirEntry{Name: name, ID: of.dirID(), Next: uint64(i) + 1})
		}
	}
	return nil
}

func (d *root) ReadDir(_ context.Context, cookie uint64, most int) ([]sigma.DirEntry, uint64, bool, error) {
	return page(d.list, cookie, most)
}

// page gives entries of a list after a cookie, which each has.
func page(list []sigma.DirEntry, cookie uint64, most int) ([]sigma.DirEntry, uint64, bool, error) {
	from := 0
	for from < len(list) && list[from].Next <= cookie {
		from++
	}
	to := min(len(list), from+max(most, 1))
	next := cookie
	if to > from {
		next = list[to-1].Next
	}
	return list[from:to:to], next, to < len(list), nil
}

// Mkdir makes a database of SQLite.
func (d *root) Mkdir(_ context.Context, name string, _ uint32) error {
	return d.t.create(name, definition{})
}

// Remove removes a database with all that is in it.
func (d *root) Remove(ctx context.Context, name string) error {
	return d.t.remove(ctx, name, d.provider)
}

// Call implements sigma.Caller.
func (d *root) Call(_ context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	const op = "db.Call"
	for _, f := range files {
		f.Close()
	}
	switch {
	case method != query.CallCreate:
		return nil, nil, treeserver.NoMethod("/db", method)
	case !d.provider:
		return nil, nil, &sigma.Error{Op: op, Kind: sigma.KindPermission,
			Msg:  "databases with a URL are made by the provider",
			Hint: "sigma sql create NAME --url URL; one of SQLite is made with mkdir"}
	}
	var r query.CreateRequest
	if err := json.Unmarshal(payload, &r); err != nil {
		return nil, nil, sigma.Errorf(op, sigma.KindInvalid, "the request is no JSON")
	}
	if r.URL != "" {
		if _, err := query.CheckURL(r.URL); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, d.t.create(r.Name, definition{URL: r.URL})
}

// folder is the directory of a database.
type folder struct {
	treeserver.Base
	d *database
}

func (d *database) dirID() sigma.FileID { return sigma.FileID{Kind: sigma.KindDir, Path: d.id} }
func (d *database) infoID() sigma.FileID {
	return sigma.FileID{Kind: sigma.KindDevice, Path: d.id + 1}
}
func (d *database) sessionID() sigma.FileID {
	return sigma.FileID{Kind: sigma.KindDevice, Path: d.id + 2}
}

func (f *folder) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		return &folder{d: f.d}, nil, nil
	}
	var file sigma.File
	var id sigma.FileID
	switch names[0] {
	case query.InfoFile:
		id = f.d.infoID()
		file = &treeserver.Blob{ID: id, Name: query.InfoFile, Perm: 0o444, Content: func(context.Context) ([]byte,
			error) {
			text, err := json.Marshal(f.d.info())
			return append(text, '\n'), err
		}}
	case query.SessionFile:
		id = f.d.sessionID()
		file = &sessionFile{d: f.d}
	default:
		return nil, nil, sigma.PathError("db.Walk", sigma.KindNotFound, names[0])
	}
	if len(names) > 1 {
		return nil, []sigma.FileID{id}, nil
	}
	return file, []sigma.FileID{id}, nil
}

func (f *folder) Stat(context.Context) (sigma.Stat, error) {
	st := sigma.Stat{ID: f.d.dirID(), Name: f.d.name, Perm: 0o555, Modified: time.Unix(0, 0)}
	if info, err := os.Stat(filepath.Join(f.d.dir, dataFile)); err == nil {
		st.Modified = info.ModTime()
	}
	return st, nil
}

func (f *folder) Open(_ context.Context, flags sigma.OpenFlags) error {
	if flags.Writes() {
		return sigma.PathError("db.Open", sigma.KindIsDir, f.d.name)
	}
	return nil
}

func (f *folder) ReadDir(_ context.Context, cookie uint64, most int) ([]sigma.DirEntry, uint64, bool, error) {
	return page([]sigma.DirEntry{{Name: query.InfoFile, ID: f.d.infoID(), Next: 1},
		{Name: query.SessionFile, ID: f.d.sessionID(), Next: 2}}, cookie, most)
}

// sessionFile is the file of which each handle that is open is a session.
type sessionFile struct {
	treeserver.Base
	d *database
	s *session // nil = it is not open
}

var _ sigma.Caller = (*sessionFile)(nil)

func (f *sessionFile) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("db.Walk", sigma.KindNotDir, query.SessionFile)
	}
	return &sessionFile{d: f.d}, nil, nil
}

func (f *sessionFile) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: f.d.sessionID(), Name: query.SessionFile, Perm: 0o666, Modified: time.Unix(0, 0)}, nil
}

// SetStat takes a truncation, as a shell does that writes to the file, for what it is: nothing.
func (f *sessionFile) SetStat(_ context.Context, c sigma.StatChange) error {
	if c.Perm != nil || c.Modified != nil || c.Size != nil && *c.Size != 0 {
		return treeserver.Unsupported("setstat")
	}
	return nil
}

func (f *sessionFile) Open(context.Context, sigma.OpenFlags) (err error) {
	f.s, err = f.d.begin()
	return err
}

func (f *sessionFile) opened() (*session, error) {
	if f.s == nil {
		return nil, sigma.Errorf("db.session", sigma.KindInvalid, "the file is not open")
	}
	return f.s, nil
}

func (f *sessionFile) ReadAt(ctx context.Context, p []byte, _ uint64) (int, error) {
	s, err := f.opened()
	if err != nil {
		return 0, err
	}
	return s.read(ctx, p)
}

func (f *sessionFile) WriteAt(ctx context.Context, p []byte, _ uint64) (int, error) {
	s, err := f.opened()
	if err != nil {
		return 0, err
	}
	return s.write(ctx, p)
}

// Call implements sigma.Caller.
func (f *sessionFile) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	for _, file := range files {
		file.Close()
	}
	if method != query.CallRun {
		return nil, nil, treeserver.NoMethod(query.SessionFile, method)
	}
	s, err := f.opened()
	if err != nil {
		return nil, nil, err
	}
	reply, err := s.run(ctx, payload, replyMax)
	return reply, nil, err
}

// replyMax is what one answer to a call carries.
const replyMax = sigmap.DataMax

func (f *sessionFile) Close() {
	if f.s != nil {
		f.s.close()
		f.s = nil
	}
}

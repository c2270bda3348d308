// Package farfile shows files of other machines, as their sigmads show them to programs here:
// scratch storage and /proc. Everything of a file goes over the link in messages or a direct
// connection; file descriptors do not. It has no lock. Users: kernel.
package farfile

import (
	"context"
	"os"
	"slices"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/progtree"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/link"
	"sigmaos.dev/treekit"

	"sigmaos.dev/sigma"
)

// farMax is how long a program waits for a session with another machine: as long as it takes to
// find out that one is lost.
const farMax = 2 * time.Second

// Far is what leads to other machines.
type Far struct {
	Cluster *cluster.Cluster
	Reach   *reach.Reach
	Connect *connect.Connect
}

// Place is a directory of another machine, as its sigmad shows it to one program here.
type Place struct {
	x       *Far
	machine sigma.MachineID
	realm   sigma.RealmID
	root    progtree.Root
	names   []string // of the place, from the root
	seed    uint64   // of ids
	path    string
}

// At gives a place of a realm at machine m, as p's program sees it; nil if there is no such
// machine.
func (x *Far) At(ctx context.Context, p sigma.Principal, realm sigma.RealmID, m sigma.MachineID,
	names ...string) (*Place, error) {
	const op = "kernel.farAt"
	path := sigma.JoinPath(names...)
	known, ok := x.Cluster.Member(m)
	switch {
	case !ok:
		return nil, nil
	case known.Lost:
		return nil, &sigma.Error{Op: op, Path: path, Kind: sigma.KindUnavailable,
			Msg: "machine " + string(m) + " is lost", Hint: "sigma machine ls shows the machines"}
	}
	within, cancel := context.WithTimeout(ctx, farMax)
	defer cancel()
	f, _, err := x.Reach.AttachAt(within, m, p, realm)
	if err != nil && ctx.Err() == nil && within.Err() != nil {
		return nil, sigma.Errorf(op, sigma.KindUnavailable, "machine %s does not answer", m)
	}
	if err != nil {
		return nil, err
	}
	all, ok := f.(progtree.Root)
	if !ok {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "the session's root is no remote file")
	}
	return &Place{x: x, machine: m, realm: realm, root: all, names: names,
		seed: viewfs.PathID(path + "@" + string(m)), path: path}, nil
}

// fail makes an error speak of the machine, if it is about that.
func (p *Place) fail(err error) error {
	if sigma.KindOf(err) != sigma.KindLost || err == nil {
		return err
	}
	msg := "the connection with machine " + string(p.machine) + " was lost"
	if m, ok := p.x.Cluster.Member(p.machine); ok && m.Lost {
		msg = "machine " + string(p.machine) + " was lost"
	}
	return &sigma.Error{Op: "kernel.far", Path: p.path, Kind: sigma.KindLost, Msg: msg, Err: err}
}

// id makes an id of the other machine's one of ours: there, another file may have the same.
func (p *Place) id(id sigma.FileID) sigma.FileID {
	h := (id.Path ^ p.seed) * 0x9e3779b97f4a7c15
	id.Path = (h^h>>32)*0xd6e8feb86659fd93 | 1<<63
	return id
}

// ids drops those of the way to the place, and makes the others ours.
func (p *Place) ids(ids []sigma.FileID) []sigma.FileID {
	ids = ids[min(len(p.names)-1, len(ids)):]
	for i := range ids {
		ids[i] = p.id(ids[i])
	}
	return ids
}

func (p *Place) way(names []string) []string { return slices.Concat(p.names, names) }

// Walk goes on at the place. The ids begin with that of the place itself.
func (p *Place) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	f, ids, err := p.root.Walk(ctx, p.way(names))
	if ids = p.ids(ids); err == nil && len(ids) == 0 {
		err = sigma.PathError("kernel.far", sigma.KindNotFound, p.path)
	}
	if f == nil || err != nil {
		return nil, ids, p.fail(err)
	}
	return p.file(f), ids, nil
}

func (p *Place) file(f sigma.File) sigma.File {
	if all, ok := f.(progtree.Root); ok {
		return &File{p, all}
	}
	return f
}

func (p *Place) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	g, stop, err := p.root.Get(ctx, p.way(names), offset, count)
	if stop != nil {
		stop.Walked -= len(p.names) - 1
	}
	g.ID = p.id(g.ID)
	return g, stop, p.fail(err)
}

func (p *Place) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	id, stop, err := p.root.Put(ctx, p.way(names), data, o)
	if stop != nil {
		stop.Walked -= len(p.names) - 1
	}
	return p.id(id), stop, p.fail(err)
}

// File is a file of another machine. Everything of it goes over the link in messages; file
// descriptors do not, so it passes none.
type File struct {
	at   *Place
	file progtree.Root
}

var (
	_ sigma.File    = (*File)(nil)
	_ sigma.Getter  = (*File)(nil)
	_ sigma.Putter  = (*File)(nil)
	_ sigma.Watcher = (*File)(nil)

	_ sigma.Publisher   = (*File)(nil)
	_ sigma.BulkPasser  = (*File)(nil)
	_ sigma.Conditional = (*File)(nil)
)

// Walk implements sigma.File.
func (f *File) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	file, ids, err := f.file.Walk(ctx, names)
	for i := range ids {
		ids[i] = f.at.id(ids[i])
	}
	if file == nil || err != nil {
		return nil, ids, f.at.fail(err)
	}
	return f.at.file(file), ids, nil
}

// Stat implements sigma.File.
func (f *File) Stat(ctx context.Context) (sigma.Stat, error) {
	st, err := f.file.Stat(ctx)
	st.ID = f.at.id(st.ID)
	return st, f.at.fail(err)
}

// SetStat implements sigma.File.
func (f *File) SetStat(ctx context.Context, c sigma.StatChange) error {
	return f.at.fail(f.file.SetStat(ctx, c))
}

// Open implements sigma.File.
func (f *File) Open(ctx context.Context, flags sigma.OpenFlags) error {
	return f.at.fail(f.file.Open(ctx, flags))
}

// Create implements sigma.File.
func (f *File) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	file, err := f.file.Create(ctx, name, flags, perm)
	if err != nil {
		return nil, f.at.fail(err)
	}
	return f.at.file(file), nil
}

// ReadAtIf implements sigma.Conditional.
func (f *File) ReadAtIf(ctx context.Context, b []byte, offset uint64, v sigma.Version) (int, error) {
	n, err := f.file.ReadAtIf(ctx, b, offset, v)
	return n, f.at.fail(err)
}

// WriteAtIf implements sigma.Conditional.
func (f *File) WriteAtIf(ctx context.Context, b []byte, offset uint64, v sigma.Version) (int, sigma.Version, error) {
	n, now, err := f.file.WriteAtIf(ctx, b, offset, v)
	return n, now, f.at.fail(err)
}

// ReadAt implements sigma.File.
func (f *File) ReadAt(ctx context.Context, b []byte, offset uint64) (int, error) {
	n, err := f.file.ReadAt(ctx, b, offset)
	return n, f.at.fail(err)
}

// WriteAt implements sigma.File.
func (f *File) WriteAt(ctx context.Context, b []byte, offset uint64) (int, error) {
	n, err := f.file.WriteAt(ctx, b, offset)
	return n, f.at.fail(err)
}

// ReadDir implements sigma.File.
func (f *File) ReadDir(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, uint64, bool, error) {
	es, next, more, err := f.file.ReadDir(ctx, cookie, n)
	for i := range es {
		es[i].ID = f.at.id(es[i].ID)
	}
	return es, next, more, f.at.fail(err)
}

// Mkdir implements sigma.File.
func (f *File) Mkdir(ctx context.Context, name string, perm uint32) error {
	return f.at.fail(f.file.Mkdir(ctx, name, perm))
}

// Symlink implements sigma.File.
func (f *File) Symlink(ctx context.Context, name, target string) error {
	return f.at.fail(f.file.Symlink(ctx, name, target))
}

// ReadLink implements sigma.File.
func (f *File) ReadLink(ctx context.Context) (string, error) {
	s, err := f.file.ReadLink(ctx)
	return s, f.at.fail(err)
}

// Remove implements sigma.File.
func (f *File) Remove(ctx context.Context, name string) error {
	return f.at.fail(f.file.Remove(ctx, name))
}

// Rename implements sigma.File, within the machine.
func (f *File) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	to, ok := newDir.(*File)
	if !ok || to.at.machine != f.at.machine {
		return &sigma.Error{Op: "kernel.far", Kind: sigma.KindUnsupported, Msg: "a rename cannot go to another machine",
			Hint: "copy the file, then remove it"}
	}
	return f.at.fail(f.file.Rename(ctx, name, to.file, newName))
}

// Sync implements sigma.File.
func (f *File) Sync(ctx context.Context) error { return f.at.fail(f.file.Sync(ctx)) }

// Publish implements sigma.Publisher.
func (f *File) Publish(ctx context.Context) error { return f.at.fail(f.file.Publish(ctx)) }

// Close implements sigma.File.
func (f *File) Close() { f.file.Close() }

// Get implements sigma.Getter.
func (f *File) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	g, stop, err := f.file.Get(ctx, names, offset, count)
	g.ID = f.at.id(g.ID)
	return g, stop, f.at.fail(err)
}

// Put implements sigma.Putter.
func (f *File) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	id, stop, err := f.file.Put(ctx, names, data, o)
	return f.at.id(id), stop, f.at.fail(err)
}

// Watch implements sigma.Watcher.
func (f *File) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	v, err := f.file.Watch(ctx, since)
	return v, f.at.fail(err)
}

// PassBulk implements sigma.BulkPasser: what is passed leads to the file's machine.
func (f *File) PassBulk(ctx context.Context) (*os.File, error) {
	r, ok := f.file.(interface {
		BulkTicket(ctx context.Context) ([]byte, error)
	})
	if !ok {
		return nil, treekit.Unsupported("a stream")
	}
	ctx, cancel := context.WithTimeout(ctx, farMax)
	defer cancel()
	name, err := r.BulkTicket(ctx)
	if err != nil {
		return nil, f.at.fail(err)
	}
	who := sigma.Principal{Realm: f.at.realm, System: true}
	conn, err := f.at.x.Connect.DialDirect(ctx, who, f.at.machine, link.Target{Kind: link.ToService,
		Name: connect.Files})
	if err != nil { // by messages it goes another way
		return nil, &sigma.Error{Op: "kernel.bulk", Path: f.at.path, Kind: sigma.KindUnsupported,
			Msg: "there is no direct connection with machine " + string(f.at.machine), Err: err}
	}
	if _, err := conn.Write(name); err != nil {
		conn.Close()
		return nil, treekit.Unsupported("a stream")
	}
	return connect.FileOf(conn)
}

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
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/progtree"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/trees/treeserver"

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
	leave   func(error) error // fail
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
	at := &Place{x: x, machine: m, realm: realm, root: all, names: names,
		seed: viewfs.PathID(path + "@" + string(m)), path: path}
	at.leave = at.fail
	return at, nil
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

func (p *Place) route(names []string) []string { return slices.Concat(p.names, names) }

// Walk goes on at the place. The ids begin with that of the place itself.
func (p *Place) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	f, ids, err := p.root.Walk(ctx, p.route(names))
	if ids = p.ids(ids); err == nil && len(ids) == 0 {
		err = sigma.PathError("kernel.far", sigma.KindNotFound, p.path)
	}
	if f == nil || err != nil {
		return nil, ids, p.fail(err)
	}
	return p.Beyond(f), ids, nil
}

func (p *Place) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	g, stop, err := p.root.Get(ctx, p.route(names), offset, count)
	if stop != nil {
		stop.Walked -= len(p.names) - 1
	}
	g.ID = p.id(g.ID)
	return g, stop, p.fail(err)
}

func (p *Place) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	id, stop, err := p.root.Put(ctx, p.route(names), data, o)
	if stop != nil {
		stop.Walked -= len(p.names) - 1
	}
	return p.id(id), stop, p.fail(err)
}

// File is a file of another machine. Its Gate is the Place by which it was reached. Everything of
// it goes over the link in messages; file descriptors do not, so it passes none.
type File struct{ treeserver.Forward }

// Enter implements treeserver.Gate: errors speak of the machine.
func (p *Place) Enter(ctx context.Context, op treeserver.Op, _ string) (context.Context, func(error) error, error) {
	if op == treeserver.OpCall {
		return nil, nil, treeserver.Unsupported("call")
	}
	return ctx, p.leave, nil
}

// Beyond implements treeserver.Gate.
func (p *Place) Beyond(f sigma.File) sigma.File { return &File{treeserver.Forward{File: f, Gate: p}} }

func (f *File) at() *Place { return f.Gate.(*Place) }

// Walk implements sigma.File.
func (f *File) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	file, ids, err := f.Forward.Walk(ctx, names)
	for i := range ids {
		ids[i] = f.at().id(ids[i])
	}
	return file, ids, err
}

// Stat implements sigma.File.
func (f *File) Stat(ctx context.Context) (sigma.Stat, error) {
	st, err := f.Forward.Stat(ctx)
	st.ID = f.at().id(st.ID)
	return st, err
}

// ReadDir implements sigma.File.
func (f *File) ReadDir(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, uint64, bool, error) {
	es, next, more, err := f.Forward.ReadDir(ctx, cookie, n)
	for i := range es {
		es[i].ID = f.at().id(es[i].ID)
	}
	return es, next, more, err
}

// Rename implements sigma.File, within the machine.
func (f *File) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	to, ok := newDir.(*File)
	if !ok || to.at().machine != f.at().machine {
		return &sigma.Error{Op: "kernel.far", Kind: sigma.KindUnsupported, Msg: "a rename cannot go to another machine",
			Hint: "copy the file, then remove it"}
	}
	return f.Forward.Rename(ctx, name, to, newName)
}

// Get implements sigma.Getter.
func (f *File) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	g, stop, err := f.Forward.Get(ctx, names, offset, count)
	g.ID = f.at().id(g.ID)
	return g, stop, err
}

// Put implements sigma.Putter.
func (f *File) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	id, stop, err := f.Forward.Put(ctx, names, data, o)
	return f.at().id(id), stop, err
}

// Remembers implements sigma.Rememberer: the numbers of changes are not sent on.
func (f *File) Remembers() bool { return false }

// FileID implements sigma.Identified.
func (f *File) FileID() sigma.FileID { return f.at().id(f.Forward.FileID()) }

// PassBulk implements sigma.BulkPasser: what is passed leads to the file's machine.
func (f *File) PassBulk(ctx context.Context) (*os.File, error) {
	p := f.at()
	r, ok := f.File.(interface {
		BulkTicket(ctx context.Context) ([]byte, error)
	})
	if !ok {
		return nil, treeserver.Unsupported("a stream")
	}
	ctx, cancel := context.WithTimeout(ctx, farMax)
	defer cancel()
	name, err := r.BulkTicket(ctx)
	if err != nil {
		return nil, p.fail(err)
	}
	who := sigma.Principal{Realm: p.realm, System: true}
	conn, err := p.x.Connect.DialDirect(ctx, who, p.machine, link.Target{Kind: link.ToService,
		Name: connect.Files})
	if err != nil { // by messages it goes another way
		return nil, &sigma.Error{Op: "kernel.bulk", Path: p.path, Kind: sigma.KindUnsupported,
			Msg: "there is no direct connection with machine " + string(p.machine), Err: err}
	}
	if _, err := conn.Write(name); err != nil {
		conn.Close()
		return nil, treeserver.Unsupported("a stream")
	}
	return connect.FileOf(conn)
}

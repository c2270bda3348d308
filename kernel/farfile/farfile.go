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
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"

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

// Place is a directory of another machine, as its sigmad shows it to one program here. It is there
// to be walked from, and for Get and Put.
type Place struct {
	sigma.Stub
	x       *Far
	machine sigma.MachineID
	realm   sigma.RealmID
	root    sigma.File
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
	at := &Place{x: x, machine: m, realm: realm, root: f, names: names,
		seed: viewfs.PathID(path + "@" + string(m)), path: path}
	at.Handler = at
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

// ours makes what the other machine answered ours: its ids, its files and its errors. skip is how
// many names were put before those that were asked for.
func (p *Place) ours(a sigma.Reply, err error, skip int) (sigma.Reply, error) {
	a.IDs = a.IDs[min(skip, len(a.IDs)):]
	for i := range a.IDs {
		a.IDs[i] = p.id(a.IDs[i])
	}
	for i := range a.Entries {
		a.Entries[i].ID = p.id(a.Entries[i].ID)
	}
	a.ID, a.Stat.ID = p.id(a.ID), p.id(a.Stat.ID)
	if a.Stop != nil {
		a.Stop.Walked -= skip
	}
	if a.File != nil {
		f := &file{at: p, next: a.File}
		f.Handler = f
		a.File = f
	}
	return a, p.fail(err)
}

// Handle implements sigma.Handler: names go on at the place. The ids of a walk begin with that of
// the place itself.
func (p *Place) Handle(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	switch r.Op {
	case sigma.OpWalk, sigma.OpGet, sigma.OpPut:
		r.Names = slices.Concat(p.names, r.Names)
		a, err = treeserver.Do(ctx, p.root, r)
		if a, err = p.ours(a, err, len(p.names)-1); r.Op == sigma.OpWalk && err == nil && len(a.IDs) == 0 {
			err = sigma.PathError("kernel.far", sigma.KindNotFound, p.path)
		}
		return a, err
	}
	return a, treeserver.Unsupported(r.Op.String())
}

// file is a file of another machine. Everything of it goes over the link in messages, or a stream;
// file descriptors do not, so it passes none.
type file struct {
	sigma.Stub
	at   *Place // by which it was reached
	next sigma.File
}

// Handle implements sigma.Handler.
func (f *file) Handle(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	switch r.Op {
	case sigma.OpRecall, sigma.OpRemembers, sigma.OpStreams: // the numbers of changes are not sent on
		return a, nil
	case sigma.OpCall, sigma.OpPassFile, sigma.OpFind, sigma.OpLease, sigma.OpRenew, sigma.OpRevoke:
		session.CloseFiles(r.Files)
		return a, treeserver.Unsupported(r.Op.String())
	case sigma.OpPassBulk:
		return f.stream(ctx, r)
	case sigma.OpRename:
		to, ok := r.Dir.(*file)
		if !ok || to.at.machine != f.at.machine {
			return a, &sigma.Error{Op: "kernel.far", Kind: sigma.KindUnsupported,
				Msg: "a rename cannot go to another machine", Hint: "copy the file, then remove it"}
		}
		r.Dir = to.next
	}
	a, err = treeserver.Do(ctx, f.next, r)
	return f.at.ours(a, err, 0)
}

// stream passes a connection that leads to the file's machine.
func (f *file) stream(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	p := f.at
	ctx, cancel := context.WithTimeout(ctx, farMax)
	defer cancel()
	ticket, err := treeserver.Do(ctx, f.next, r)
	session.CloseFiles(ticket.Files)
	switch {
	case err != nil:
		return a, p.fail(err)
	case len(ticket.Data) == 0:
		return a, treeserver.Unsupported("a stream")
	}
	who := sigma.Principal{Realm: p.realm, System: true}
	conn, err := p.x.Connect.DialDirect(ctx, who, p.machine, link.Target{Kind: link.ToService,
		Name: connect.Files})
	if err != nil { // by messages it goes another way
		return a, &sigma.Error{Op: "kernel.bulk", Path: p.path, Kind: sigma.KindUnsupported,
			Msg: "there is no direct connection with machine " + string(p.machine), Err: err}
	}
	if _, err := conn.Write(ticket.Data); err != nil {
		conn.Close()
		return a, treeserver.Unsupported("a stream")
	}
	socket, err := connect.FileOf(conn)
	if err != nil {
		return a, err
	}
	return sigma.Reply{Files: []*os.File{socket}}, nil
}

// Package uxfs is /ux: the scratch storage of each machine that is alive (001 §3.3). That of this
// machine is served here, that of others by their sigmads, one hop away. It has no lock. Users:
// kernel/rootfs.
package uxfs

import (
	"context"
	"slices"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/farfile"
	"sigmaos.dev/kernel/quotas"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// FS is where scratch storage is.
type FS struct {
	Machine sigma.MachineID
	Cluster *cluster.Cluster
	Quotas  *quotas.Quotas
	Far     *farfile.Far
}

// dir is /ux. ~any means this machine's storage: it is as good as any, and nearest.
type dir struct {
	sigma.Stub
	list computed.Dir
	x    *FS
	s    sessions.Scope
}

// Dir is /ux as a session has it.
func (x *FS) Dir(s sessions.Scope) sigma.File {
	d := &dir{x: x, s: s}
	d.Handler = d
	d.list = computed.Dir{Path: "/" + sigma.NameUX, Names: d.names, Child: d.child}
	return d
}

func (d *dir) names(context.Context) (names []string, err error) {
	if d.s.Far {
		return []string{string(d.x.Machine)}, nil
	}
	for _, m := range d.x.Cluster.Alive() {
		names = append(names, string(m))
	}
	return names, nil
}

func (d *dir) child(ctx context.Context, name string) (sigma.File, error) {
	if d.s.Realm != sigma.SystemRealm && d.isLocal(name) {
		return d.x.Quotas.Scratch.Attach(ctx, sigma.Principal{Realm: d.s.Realm, Proc: d.s.Principal.Proc,
			Machine: d.x.Machine})
	}
	at, err := d.far(ctx, name)
	if err != nil {
		return nil, err
	}
	if at == nil {
		return nil, sigma.PathError("kernel.ux", sigma.KindNotFound, sigma.JoinPath(sigma.NameUX, name))
	}
	f, _, err := at.Walk(ctx, nil)
	return f, err
}

func (d *dir) isLocal(name string) bool {
	return name == sigma.LocalName || name == sigma.AnyName || name == string(d.x.Machine)
}

// far gives where another machine's scratch storage is, nil if there is no such machine.
func (d *dir) far(ctx context.Context, name string) (*farfile.Place, error) {
	m := sigma.MachineID(name)
	if d.s.Far || d.s.Realm == sigma.SystemRealm || m.Check() != nil || d.isLocal(name) {
		return nil, nil
	}
	return d.x.Far.At(ctx, d.s.Principal, d.s.Realm, m, sigma.NameUX, name)
}

// Handle implements sigma.Handler. What has a path is one hop, however long the path is.
func (d *dir) Handle(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	switch n := len(r.Names); {
	case r.Op == sigma.OpOpen:
		return a, d.open(ctx, r.Flags)
	case r.Op == sigma.OpWalk && n == 0:
		a.File = d.x.Dir(d.s)
		return a, nil
	case r.Op == sigma.OpGet && n == 0:
		return a, sigma.PathError("kernel.ux.Get", sigma.KindIsDir, d.list.Path)
	case r.Op == sigma.OpPut && n < 2:
		return a, d.list.ReadOnly()
	case r.Op != sigma.OpWalk && r.Op != sigma.OpGet && r.Op != sigma.OpPut:
		return treeserver.Do(ctx, &d.list, r)
	}
	at, err := d.far(ctx, r.Names[0])
	switch {
	case err != nil:
		return a, err
	case at != nil:
		r.Names = r.Names[1:]
		return at.Handle(ctx, r)
	case r.Op == sigma.OpWalk:
		return treeserver.Do(ctx, &d.list, r)
	}
	f, err := d.child(ctx, r.Names[0])
	if err != nil {
		return a, err
	}
	return computed.On(ctx, f, r)
}

// open lists who there is. No other machine is asked.
func (d *dir) open(ctx context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("kernel.ux.Open", sigma.KindIsDir, d.list.Path)
	}
	names, err := d.names(ctx)
	if err != nil || d.s.Realm == sigma.SystemRealm {
		return err
	}
	d.list.Listed = make([]sigma.DirEntry, len(names))
	slices.Sort(names)
	for i, n := range names {
		d.list.Listed[i] = sigma.DirEntry{Name: n, ID: sigma.FileID{Kind: sigma.KindDir,
			Path: viewfs.PathID(sigma.JoinPath(sigma.NameUX, n))}, Next: uint64(i + 1)}
	}
	return nil
}

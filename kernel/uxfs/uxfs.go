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
	computed.Dir
	x *FS
	s sessions.Scope
}

// Dir is /ux as a session has it.
func (x *FS) Dir(s sessions.Scope) sigma.File {
	d := &dir{x: x, s: s}
	d.Dir = computed.Dir{Path: "/" + sigma.NameUX, Names: d.names, Child: d.child}
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

// Walk implements sigma.File: one hop, however long the path is.
func (d *dir) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		c := *d
		c.Listed = nil
		return &c, nil, nil
	}
	at, err := d.far(ctx, names[0])
	switch {
	case err != nil:
		return nil, nil, err
	case at != nil:
		return at.Walk(ctx, names[1:])
	}
	return d.Dir.Walk(ctx, names)
}

// Open implements sigma.File. No other machine is asked to list who there is.
func (d *dir) Open(ctx context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("kernel.ux.Open", sigma.KindIsDir, d.Path)
	}
	names, err := d.names(ctx)
	if err != nil || d.s.Realm == sigma.SystemRealm {
		return err
	}
	d.Listed = make([]sigma.DirEntry, len(names))
	slices.Sort(names)
	for i, n := range names {
		d.Listed[i] = sigma.DirEntry{Name: n, ID: sigma.FileID{Kind: sigma.KindDir,
			Path: viewfs.PathID(sigma.JoinPath(sigma.NameUX, n))}, Next: uint64(i + 1)}
	}
	return nil
}

// Get implements sigma.Getter.
func (d *dir) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	if len(names) == 0 {
		return sigma.GetResult{}, nil, sigma.PathError("kernel.ux.Get", sigma.KindIsDir, d.Path)
	}
	at, err := d.far(ctx, names[0])
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	if at != nil {
		return at.Get(ctx, names[1:], offset, count)
	}
	f, err := d.child(ctx, names[0])
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	return computed.GetOn(ctx, f, names[1:], offset, count)
}

// Put implements sigma.Putter.
func (d *dir) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped,
	error) {
	if len(names) < 2 {
		return sigma.FileID{}, nil, d.ReadOnly()
	}
	at, err := d.far(ctx, names[0])
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	if at != nil {
		return at.Put(ctx, names[1:], data, o)
	}
	f, err := d.child(ctx, names[0])
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	return computed.PutOn(ctx, f, names[1:], data, o)
}

package kernel

import (
	"context"
	"slices"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/farfile"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// uxDir is /ux: the scratch storage of each machine that is alive (001 §3.3). That of this machine
// is served here, that of others by their sigmads, one hop away. ~any means this one's: it is as
// good as any, and nearest.
type uxDir struct {
	computed.Dir
	r *root
}

func (r *root) uxDir() sigma.File {
	k := r.tree.k
	d := &uxDir{r: r}
	d.Dir = computed.Dir{Path: "/" + sigma.NameUX,
		Names: func(context.Context) (names []string, err error) {
			if r.tree.far {
				return []string{string(k.cfg.Machine)}, nil
			}
			for _, m := range k.cluster.Alive() {
				names = append(names, string(m))
			}
			return names, nil
		},
		Child: func(ctx context.Context, name string) (sigma.File, error) {
			switch {
			case r.realm == sigma.SystemRealm:
			case r.isLocal(name):
				return k.quotas.Scratch.Attach(ctx, sigma.Principal{Realm: r.realm, Proc: r.tree.principal.Proc,
					Machine: k.cfg.Machine})
			default:
				at, err := r.farUX(ctx, name)
				if err != nil {
					return nil, err
				}
				if at != nil {
					f, _, err := at.Walk(ctx, nil)
					return f, err
				}
			}
			return nil, sigma.PathError("kernel.ux", sigma.KindNotFound, sigma.JoinPath(sigma.NameUX, name))
		}}
	return d
}

func (r *root) isLocal(name string) bool {
	return name == sigma.LocalName || name == sigma.AnyName || name == string(r.tree.k.cfg.Machine)
}

// farUX gives where another machine's scratch storage is, nil if there is no such machine.
func (r *root) farUX(ctx context.Context, name string) (*farfile.Place, error) {
	m := sigma.MachineID(name)
	if r.tree.far || r.realm == sigma.SystemRealm || m.Check() != nil || r.isLocal(name) {
		return nil, nil
	}
	return r.farAt(ctx, m, sigma.NameUX, name)
}

// farAt gives a place of machine m; nil if there is no such machine.
func (r *root) farAt(ctx context.Context, m sigma.MachineID, names ...string) (*farfile.Place, error) {
	return r.tree.k.far.At(ctx, r.tree.principal, r.realm, m, names...)
}

// Walk implements sigma.File: one hop, however long the path is.
func (d *uxDir) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		c := *d
		c.Listed = nil
		return &c, nil, nil
	}
	at, err := d.r.farUX(ctx, names[0])
	switch {
	case err != nil:
		return nil, nil, err
	case at != nil:
		return at.Walk(ctx, names[1:])
	}
	return d.Dir.Walk(ctx, names)
}

// Open implements sigma.File. No other machine is asked to list who there is.
func (d *uxDir) Open(ctx context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("kernel.ux.Open", sigma.KindIsDir, d.Path)
	}
	names, err := d.Names(ctx)
	if err != nil || d.r.realm == sigma.SystemRealm {
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
func (d *uxDir) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	if len(names) == 0 {
		return sigma.GetResult{}, nil, sigma.PathError("kernel.ux.Get", sigma.KindIsDir, d.Path)
	}
	at, err := d.r.farUX(ctx, names[0])
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	if at != nil {
		return at.Get(ctx, names[1:], offset, count)
	}
	f, err := d.Child(ctx, names[0])
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	defer f.Close()
	g, stop, err := treekit.Get(ctx, f, names[1:], offset, count)
	if stop != nil {
		stop.Walked++
	}
	return g, stop, err
}

// Put implements sigma.Putter.
func (d *uxDir) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped,
	error) {
	if len(names) < 2 {
		return sigma.FileID{}, nil, d.ReadOnly()
	}
	at, err := d.r.farUX(ctx, names[0])
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	if at != nil {
		return at.Put(ctx, names[1:], data, o)
	}
	f, err := d.Child(ctx, names[0])
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	defer f.Close()
	id, stop, err := treekit.Put(ctx, f, names[1:], data, o)
	if stop != nil {
		stop.Walked++
	}
	return id, stop, err
}

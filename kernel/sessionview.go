package kernel

import (
	"context"
	"fmt"
	"os"
	"slices"

	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/session"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/treekit"
	"sigmaos.dev/view"
)

// newProcTree makes what a proc's session serves.
func (k *Kernel) newProcTree(who sigma.Principal, v *view.Table, kin []sigma.ProcID) *tree {
	t := &tree{k: k, principal: who}
	if v != nil {
		t.view = t.viewer(viewfs.Config{Table: v, Kin: kin})
	}
	return t
}

// serveProc is runner.Config's.
func (k *Kernel) serveProc(ctx context.Context, conn session.Conn, who sigma.Principal, v *view.Table,
	kin []sigma.ProcID, adopted bool) {
	k.serveAs(ctx, conn, k.newProcTree(who, v, kin), adopted)
}

// settle replaces the symlinks on a path of the spawner's by what they lead to, so that what is
// kept of it means the same for ever: whoever makes a link there later opens no way. What is not
// there yet, and what is behind endpoints, stays as it is.
func (t *tree) settle(ctx context.Context, realm sigma.RealmID, path string) (string, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return "", err
	}
	var f sigma.File = &root{tree: t, realm: realm}
	if t.view != nil {
		f = t.view.Root()
	}
	for range viewfs.HopsMost {
		n := min(len(names),
			sigmap.WalkMax) // a longer one is settled at its beginning; links further on will be refused
		file, stop, err := treekit.WalkTo(ctx, f, names[:n], true)
		if err == nil && file != nil {
			file.Close()
		}
		switch kind := sigma.KindOf(err); {
		case err != nil && kind != sigma.KindNotFound && kind != sigma.KindNotDir && kind != sigma.KindPermission:
			return "", err
		case err != nil || stop == nil || stop.Kind != sigma.KindSymlink:
			return sigma.JoinPath(names...), nil
		}
		target := stop.Target
		if len(target) == 0 || target[0] != '/' {
			dir := sigma.JoinPath(names[:max(stop.Walked-1, 0)]...)
			if dir != "/" {
				dir += "/"
			}
			target = dir + target
		}
		to, err := sigma.ParsePath(target)
		if err != nil {
			return "", err
		}
		if names = slices.Concat(to, names[stop.Walked:]); len(names) > sigma.PathMax {
			break
		}
	}
	return "", sigma.PathError("kernel.settle", sigma.KindLoop, path)
}

// viewsOf makes the tables of what is to be spawned, and makes programs of a proc that has a view
// paths of the realm. nil = none has a view. The descriptors' own are taken out: they are the
// tables' now.
func (r *root) viewsOf(ctx context.Context, ds []sigma.Descriptor) ([]*view.Table, error) {
	var own *view.Table
	if v := r.tree.view; v != nil &&
		r.tree.granted == nil { // a guest that may spawn sees all of the realm, and so does what it spawns
		own = v.Table()
	} else if !slices.ContainsFunc(ds, func(d sigma.Descriptor) bool { return d.View != nil }) {
		return nil, nil
	}
	out := make([]*view.Table, len(ds))
	for i := range ds {
		d := &ds[i]
		if own != nil {
			if err := r.placeProgram(ctx, d, own); err != nil {
				return nil, err
			}
		}
		if d.View == nil {
			out[i] = own
			continue
		}
		for j := range d.View {
			e := &d.View[j]
			target, err := r.tree.settle(ctx, r.realm, e.Target)
			if err != nil {
				return nil, sigma.Wrap("kernel.Spawn", e.Path, err)
			}
			e.Target = target
		}
		t, err := view.Make(d.View, own)
		if err != nil {
			return nil, err
		}
		d.View = nil
		out[i] = t
		size := t.Size()
		for _, list := range [][]string{d.Args, d.Env} {
			for _, s := range list {
				size += len(s) + 5
			}
		}
		if size > sigma.ArgsMax {
			return nil, sigma.Errorf("kernel.Spawn", sigma.KindTooBig,
				"arguments, environment and view have %d bytes, %d are allowed", size, sigma.ArgsMax)
		}
	}
	return out, nil
}

// placeProgram finds the program in the spawner's view, and makes its path one of the realm without
// links.
func (r *root) placeProgram(ctx context.Context, d *sigma.Descriptor, own *view.Table) error {
	path, err := r.tree.settle(ctx, r.realm, d.Program)
	if err != nil {
		return err
	}
	names, err := sigma.ParsePath(path)
	if err != nil {
		return err
	}
	e, rest, ok := own.Lookup(names)
	if !ok || e.Rights&sigma.RightRead == 0 {
		return &sigma.Error{Op: "kernel.Spawn", Path: d.Program, Kind: sigma.KindPermission,
			Msg:  "the spawner's view does not show the program",
			Hint: "give the spawner an entry for the directory of the program"}
	}
	if d.Name == "" && len(names) > 0 {
		d.Name = fmt.Sprintf("%.64s", names[len(names)-1])
	}
	d.Program = sigma.JoinPath(slices.Concat(e.Target, rest)...)
	return nil
}

// viewer makes the viewer of the session: cfg says what it sees.
func (t *tree) viewer(cfg viewfs.Config) *viewfs.Viewer {
	cfg.Who = t.principal
	cfg.Root = func() viewfs.Realm { return &root{tree: t, realm: t.principal.Realm} }
	cfg.Dial = func(ctx context.Context, e sigma.Endpoint) (*os.File, error) {
		socket, _, err := t.k.connect.DialEndpoint(ctx, t.principal, e)
		return socket, err
	}
	cfg.Holds = func(id sigma.LeaseID) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		_, ok := t.leases[id]
		return ok
	}
	return viewfs.New(cfg)
}

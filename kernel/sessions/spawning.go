package sessions

import (
	"context"
	"fmt"
	"slices"

	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/sigmap"
)

// settle replaces the symlinks on a path of the spawner's by what they lead to, so that what is
// kept of it means the same for ever: whoever makes a link there later opens no way. What is not
// there yet, and what is behind endpoints, stays as it is.
func (s Scope) settle(ctx context.Context, path string) (string, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return "", err
	}
	var f sigma.File = s.x.cfg.Root(s)
	if s.View != nil {
		f = s.View.Root()
	}
	for range viewfs.HopsMost {
		n := min(len(names),
			sigmap.WalkMax) // a longer one is settled at its beginning; links further on will be refused
		file, stop, err := treeserver.WalkTo(ctx, f, names[:n], true)
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

// ViewsOf makes the tables of what is to be spawned, and makes programs of a proc that has a view
// paths of the realm. nil = none has a view. The descriptors' own are taken out: they are the
// tables' now.
func (s Scope) ViewsOf(ctx context.Context, ds []sigma.Descriptor) ([]*view.Table, error) {
	var own *view.Table
	if s.View != nil &&
		s.Granted == nil { // a guest that may spawn sees all of the realm, and so does what it spawns
		own = s.View.Table()
	} else if !slices.ContainsFunc(ds, func(d sigma.Descriptor) bool { return d.View != nil }) {
		return nil, nil
	}
	out := make([]*view.Table, len(ds))
	for i := range ds {
		d := &ds[i]
		if own != nil {
			if err := s.placeProgram(ctx, d, own); err != nil {
				return nil, err
			}
		}
		if d.View == nil {
			out[i] = own
			continue
		}
		for j := range d.View {
			e := &d.View[j]
			target, err := s.settle(ctx, e.Target)
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
			for _, text := range list {
				size += len(text) + 5
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
func (s Scope) placeProgram(ctx context.Context, d *sigma.Descriptor, own *view.Table) error {
	path, err := s.settle(ctx, d.Program)
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

// Kin are the ancestors with views of what the session's proc spawns: itself, if it has a view, and
// its own.
func (s *Session) Kin() []sigma.ProcID {
	if s.View == nil || s.Granted != nil {
		return nil
	}
	kin := append([]sigma.ProcID{s.Principal.Proc}, s.View.Kin()...)
	return kin[:min(len(kin), schedd.KinMax)]
}

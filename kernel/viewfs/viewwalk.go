package viewfs

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// walker is a walk for a proc with a view: names from a file, of which the first lead to the place
// of an entry and the others are the proc's own. On the first no symlink is followed; one on the
// others is the proc's to follow, in its view.
type walker struct {
	v     *Viewer
	f     sigma.File // the file from which names are walked
	own   bool       // whether f is to be closed
	by    sigma.ProcID
	names []string
	real  int // of names, those to the entry's place
	done  int // names of the proc's own that are behind f
	hops  int

	entry sigma.FileID   // of the entry's place, once it was reached
	ids   []sigma.FileID // of the proc's own names
}

func (w *walker) move(f sigma.File, own bool, names []string) {
	if w.own {
		w.f.Close()
	}
	w.f, w.own, w.names = f, own, names
}

// passed takes note of the ids of a walk's first names.
func (w *walker) passed(ids []sigma.FileID) {
	for i, id := range ids {
		switch {
		case i+1 == w.real:
			w.entry = id
		case i+1 > w.real:
			w.ids = append(w.ids, id)
		}
	}
}

// run runs op where the names that are left are all of one server, after going through the
// endpoints of trees that stop it. A stop that is left is the proc's to follow: it tells how many
// of the proc's own names were walked.
func (w *walker) run(ctx context.Context,
	op func(f sigma.File, names []string) (*sigma.Stopped, error)) (*sigma.Stopped, error) {
	defer func() { w.move(nil, false, nil) }()
	for {
		stop, err := w.step(ctx, op)
		if err != nil || stop == nil {
			return nil, err
		}
		if stop.Walked > len(w.names) {
			return nil, sigma.Errorf("kernel.view", sigma.KindInvalid,
				"a server says that it walked further than it was asked to")
		}
		if stop.Kind == sigma.KindSymlink {
			if stop.Walked <= w.real && w.real > 0 {
				return nil, &sigma.Error{Op: "kernel.view", Kind: sigma.KindPermission,
					Msg:  "there is a symlink where an entry of the view leads",
					Hint: "entries lead to what is there itself"}
			}
			return &sigma.Stopped{Walked: w.done + stop.Walked - w.real, Kind: stop.Kind, Target: stop.Target}, nil
		}
		e, err := sigma.ParseEndpoint(stop.Target)
		switch {
		case err != nil:
			return nil, err
		case e.Form != sigma.FormTree && stop.Walked < w.real:
			return nil, sigma.Errorf("kernel.view", sigma.KindNotDir,
				"there is an endpoint where an entry of the view leads")
		case e.Form != sigma.FormTree:
			w.tell(stop.Target)
			return &sigma.Stopped{Walked: w.done + stop.Walked - w.real, Kind: stop.Kind, Target: stop.Target}, nil
		}
		if err := w.enter(ctx, stop); err != nil {
			return nil, err
		}
	}
}

// tell lets the proc dial an endpoint, unless the proc itself says that it is one.
func (w *walker) tell(text string) {
	if w.by == "" || w.by != w.v.cfg.Who.Proc {
		w.v.note(text)
	}
}

// step runs op, after going along as much of a long way as one message does not hold.
func (w *walker) step(ctx context.Context,
	op func(f sigma.File, names []string) (*sigma.Stopped, error)) (*sigma.Stopped, error) {
	for len(w.names) > sigmap.WalkMax {
		f, ids, stop, err := walkStop(ctx, w.f, w.names[:sigmap.WalkMax], true)
		w.passed(ids)
		if err == nil && f == nil && stop == nil {
			err = notThere(ids, w.names)
		}
		if err != nil || stop != nil {
			return stop, err
		}
		if w.real < sigmap.WalkMax {
			w.done += sigmap.WalkMax - w.real
		}
		w.real = max(0, w.real-sigmap.WalkMax)
		w.move(f, true, w.names[sigmap.WalkMax:])
	}
	return op(w.f, w.names)
}

// enter goes on in the tree behind an endpoint.
func (w *walker) enter(ctx context.Context, stop *sigma.Stopped) error {
	if w.hops++; w.hops > HopsMost {
		return sigma.Errorf("kernel.view", sigma.KindLoop, "there are more than %d endpoints on the path", HopsMost)
	}
	e, err := w.v.enter(ctx, stop.Target)
	if err != nil {
		return err
	}
	if n := stop.Walked; n > w.real {
		w.done += n - w.real
		if len(w.ids) > 0 {
			w.ids[len(w.ids)-1] = e.id
		}
	} else {
		w.entry = e.id
	}
	w.real = max(0, w.real-stop.Walked)
	w.by = e.by
	w.move(e.root, false, w.names[stop.Walked:])
	return nil
}

// walk is the way of a file's Walk. A symlink at the end of the proc's own names is what was walked
// to. f is nil if it stopped before: at a symlink, an endpoint that is no tree, or at a missing
// name, whose reason is the error if nothing was reached.
func (w *walker) walk(ctx context.Context) (f sigma.File, err error) {
	stop, err := w.run(ctx, func(from sigma.File, names []string) (*sigma.Stopped, error) {
		file, ids, stop, err := walkStop(ctx, from, names, len(names) <= w.real)
		w.passed(ids)
		if err == nil && stop == nil && file == nil {
			if err = notThere(ids, names); len(ids) > w.real {
				err = nil // who asked is told how far it went
			}
		}
		if stop != nil && stop.Kind == sigma.KindEndpoint &&
			stop.Walked == len(names) { // one that is no tree is what was walked to
			if e, perr := sigma.ParseEndpoint(stop.Target); perr != nil || e.Form != sigma.FormTree {
				f, _, err = from.Walk(ctx, names)
				return nil, err
			}
		}
		f = file
		return stop, err
	})
	if stop != nil {
		return nil, nil
	}
	return f, err
}

// walkStop walks names and says which endpoint stopped it, and which symlink if that is not the
// last name, or last.
func walkStop(ctx context.Context, f sigma.File, names []string, last bool) (sigma.File, []sigma.FileID, *sigma.Stopped,
	error) {
	file, ids, err := f.Walk(ctx, names)
	n := len(ids)
	if err != nil || n == 0 {
		return file, ids, nil, err
	}
	kind := ids[n-1].Kind
	if kind != sigma.KindEndpoint && (kind != sigma.KindSymlink || file != nil && !last) {
		return file, ids, nil, nil
	}
	stop, err := treeserver.StopAt(ctx, f, names, file, ids)
	return nil, ids, stop, err
}

func notThere(ids []sigma.FileID, names []string) error {
	if n := len(ids); n > 0 && ids[n-1].Kind != sigma.KindDir {
		return sigma.PathError("kernel.view", sigma.KindNotDir, sigma.JoinPath(names...))
	}
	return sigma.PathError("kernel.view", sigma.KindNotFound, sigma.JoinPath(names...))
}

// whole carries out Get and Put of what the names lead to.
func (w *walker) whole(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	a.Stop, err = w.run(ctx, func(f sigma.File, names []string) (_ *sigma.Stopped, err error) {
		r.Names = names
		a, err = treeserver.Do(ctx, f, r)
		return a.Stop, err
	})
	return a, err
}

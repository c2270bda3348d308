package kernel

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/treekit"
	"sigmaos.dev/view"
)

// Limits of one proc that has a view. What it reaches beyond its machine's own places is reached by sigmad for it.
const (
	enteredMost = 16   // trees behind endpoints that sigmad has entered for it
	readMost    = 1024 // endpoints that it has read and may dial; of more, all are forgotten and have to be read again
	enterMost   = 5 * time.Second
	hopsMost    = 40 // endpoints on one path, as for links
)

// viewer is the session of a proc that does not see all of its realm: what decides about each of its requests (docs/reference/views.md). The files that it hands out are viewFiles, so that the rights of an entry go
// with whatever is reached by it. Of symlinks it tells the client, who goes on at the root of its own view; through trees behind endpoints it walks itself.
//
// A proc that sees all has none, and pays nothing for those that have.
type viewer struct {
	tree  *tree
	table *view.Table
	kin   []sigma.ProcID // ancestors with views

	mu      sync.Mutex
	read    map[string]bool     // mu; texts of stream endpoints
	entered map[string]*entered // mu; by the endpoint's text
	over    bool                // mu
}

// entered is the tree behind an endpoint.
type entered struct {
	ready  chan struct{} // closed when what follows is set
	client *session.Client
	root   sigma.File
	id     sigma.FileID
	by     sigma.ProcID // who serves it; "" = the system
	err    error
}

// newProcTree makes what a proc's session serves.
func newProcTree(c *child) *tree {
	t := &tree{k: c.k, principal: c.who}
	if c.view != nil {
		t.view = &viewer{tree: t, table: c.view, kin: c.kin, read: map[string]bool{}, entered: map[string]*entered{}}
	}
	return t
}

// base is the root of the realm, as who sees all has it. Its calls know of the view.
func (v *viewer) base() *root { return &root{tree: v.tree, realm: v.tree.principal.Realm} }

// root is what the proc's paths start at.
func (v *viewer) root() sigma.File {
	return &viewFile{v: v, at: []string{}, id: sigma.FileID{Kind: sigma.KindDir, Path: idOf("/")}}
}

// note lets the proc dial an endpoint whose text it was told.
func (v *viewer) note(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.read) >= readMost {
		clear(v.read)
	}
	v.read[text] = true
}

// knows reports whether the proc made the endpoint or was told of it by its view.
func (v *viewer) knows(e sigma.Endpoint) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return e.Proc == v.tree.principal.Proc || v.read[e.String()]
}

// mayDial says whether the proc may connect to an endpoint.
func (v *viewer) mayDial(e sigma.Endpoint) error {
	const op = "kernel.Dial"
	switch {
	case e.Form == sigma.FormTree:
		return &sigma.Error{Op: op, Kind: sigma.KindPermission, Msg: "a proc with a view does not dial trees", Hint: "walk through the endpoint's file"}
	case !v.knows(e):
		return &sigma.Error{Op: op, Kind: sigma.KindPermission, Msg: "the endpoint was not read in this proc's view", Hint: "read its file first, also after a restart of sigmad"}
	}
	return nil
}

// enter gives the root of the tree behind an endpoint. Sessions are kept until they end, or the proc's does.
func (v *viewer) enter(ctx context.Context, text string) (*entered, error) {
	const op = "kernel.view"
	ep, err := sigma.ParseEndpoint(text)
	if err != nil {
		return nil, err
	}
	for {
		v.mu.Lock()
		if v.over {
			v.mu.Unlock()
			return nil, sigma.Errorf(op, sigma.KindLost, "the session has ended")
		}
		e := v.entered[text]
		if e == nil || e.ended() {
			break
		}
		v.mu.Unlock()
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil, sigma.Wrap(op, "", ctx.Err())
		}
		if kind := sigma.KindOf(e.err); e.err == nil || kind != sigma.KindCanceled && kind != sigma.KindTimeout {
			return e, e.err
		} // else somebody else gave up
	}
	for key, e := range v.entered {
		if e.ended() {
			delete(v.entered, key)
		}
	}
	if len(v.entered) >= enteredMost {
		v.mu.Unlock()
		return nil, sigma.Errorf(op, sigma.KindBusy, "the proc walks through %d endpoints at a time; more are not allowed with a view", enteredMost)
	}
	e := &entered{ready: make(chan struct{})}
	if ep.Realm != sigma.SystemRealm {
		e.by = ep.Proc
	}
	v.entered[text] = e
	v.mu.Unlock()
	e.client, e.root, e.id, e.err = v.attach(ctx, ep)
	v.mu.Lock()
	if e.err != nil {
		delete(v.entered, text)
	}
	over := v.over
	v.mu.Unlock()
	close(e.ready)
	if over && e.client != nil {
		e.client.Close()
	}
	return e, e.err
}

// attach is what the proc would do itself if it could dial trees: it is who the server sees.
func (v *viewer) attach(ctx context.Context, e sigma.Endpoint) (*session.Client, sigma.File, sigma.FileID, error) {
	ctx, cancel := context.WithTimeout(ctx, enterMost)
	defer cancel()
	fail := func(err error) (*session.Client, sigma.File, sigma.FileID, error) {
		if ctx.Err() == context.DeadlineExceeded {
			err = sigma.Errorf("kernel.view", sigma.KindUnavailable, "the server behind an endpoint of the path does not answer")
		}
		return nil, nil, sigma.FileID{}, err
	}
	socket, _, err := v.tree.k.dialEndpoint(ctx, v.tree.principal, e)
	if err != nil {
		return fail(err)
	}
	conn, err := session.FromFile(socket)
	if err != nil {
		return fail(err)
	}
	c, err := session.Dial(ctx, conn)
	if err != nil {
		return fail(err)
	}
	root, err := c.Attach(ctx, "")
	if err == nil {
		var st sigma.Stat
		if st, err = root.Stat(ctx); err == nil {
			return c, root, st.ID, nil
		}
	}
	c.Close()
	return fail(err)
}

// ended says whether the tree was lost. One that is being entered was not.
func (e *entered) ended() bool {
	select {
	case <-e.ready:
	default:
		return false
	}
	if e.client == nil {
		return true
	}
	select {
	case <-e.client.Done():
		return true
	default:
		return false
	}
}

// release ends what sigmad entered for the proc.
func (v *viewer) release() {
	v.mu.Lock()
	v.over = true
	all := v.entered
	v.entered = map[string]*entered{}
	v.mu.Unlock()
	for _, e := range all {
		select {
		case <-e.ready:
			if e.client != nil {
				e.client.Close()
			}
		default: // enter sees that it is over
		}
	}
}

// settle replaces the symlinks on a path of the spawner's by what they lead to, so that what is kept of it means the same for ever: whoever makes a link there later opens no way. What is not there
// yet, and what is behind endpoints, stays as it is.
func (t *tree) settle(ctx context.Context, realm sigma.RealmID, path string) (string, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return "", err
	}
	var f sigma.File = &root{tree: t, realm: realm}
	if t.view != nil {
		f = t.view.root()
	}
	for range hopsMost {
		n := min(len(names), sigmap.WalkMax) // a longer one is settled at its beginning; links further on will be refused
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

// viewsOf makes the tables of what is to be spawned, and makes programs of a proc that has a view paths of the realm. nil = none has a view. The descriptors' own are taken out: they are the tables' now.
func (r *root) viewsOf(ctx context.Context, ds []sigma.Descriptor) ([]*view.Table, error) {
	var own *view.Table
	if v := r.tree.view; v != nil && r.tree.granted == nil { // a guest that may spawn sees all of the realm, and so does what it spawns
		own = v.table
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
			return nil, sigma.Errorf("kernel.Spawn", sigma.KindTooBig, "arguments, environment and view have %d bytes, %d are allowed", size, sigma.ArgsMax)
		}
	}
	return out, nil
}

// placeProgram finds the program in the spawner's view, and makes its path one of the realm without links.
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
		return &sigma.Error{Op: "kernel.Spawn", Path: d.Program, Kind: sigma.KindPermission, Msg: "the spawner's view does not show the program", Hint: "give the spawner an entry for the directory of the program"}
	}
	if d.Name == "" && len(names) > 0 {
		d.Name = fmt.Sprintf("%.64s", names[len(names)-1])
	}
	d.Program = sigma.JoinPath(slices.Concat(e.Target, rest)...)
	return nil
}

package resolve

import (
	"context"
	"slices"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// Through is what is at a path and below as a tree of files that knows no endpoints: behind one
// that a tree is served at, that tree's root stands in its place. It is for those who know files
// only, as Linux and plain 9P2000.L clients do; links stay links, which such clients follow
// themselves. A name that a client asks for and that only a machine can make sense of (~local,
// ~any) leads where it leads for this program.
type Through struct {
	Tree *Tree
	At   string // the path of the root
	// Objects are names at the realm's root behind which files are published when they are closed:
	// Publish waits until an object is visible, or tells its writer why not.
	Objects []string
}

var _ sigma.Tree = Through{}

// Attach gives the root. Whoever asks acts as the program whose Tree it is: what p and name say
// counts for nothing.
func (t Through) Attach(ctx context.Context, _ sigma.Principal, _ string) (sigma.File, error) {
	names, err := sigma.ParsePath(t.At)
	if err != nil {
		return nil, err
	}
	f, err := t.Tree.Handle(ctx, t.At)
	if err != nil {
		return nil, err
	}
	return t.handle(f, names, ""), nil
}

// handle makes a handle of such a file.
func (t *Through) handle(file sigma.File, path []string, server string) *passing {
	f := &passing{next: file, t: t, path: path, server: server}
	f.Handler = f
	return f
}

// passing is a handle of such a file. What is to reach its server only, such as passing a
// descriptor, is asked of Unwrap.
type passing struct {
	sigma.Stub
	next   sigma.File
	t      *Through
	path   []string // by which it was walked to
	server string   // the path of the last endpoint on the way; "" = the root's server
}

// Unwrap gives the handle that the server of the file gave.
func (f *passing) Unwrap() sigma.File { return f.next }

// Server says which server's the file is: two files with one FileID.Path of one server are the
// same.
func (f *passing) Server() string { return f.server }

// Handle implements sigma.Handler. Get and Put of a path go through endpoints, as walks do.
func (f *passing) Handle(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	switch r.Op {
	case sigma.OpWalk:
		a.File, a.IDs, err = f.walk(ctx, r.Names)
		return a, err
	case sigma.OpGet, sigma.OpPut:
		if len(r.Names) > 0 {
			return treeserver.Plainly(ctx, f, r)
		}
	case sigma.OpRename:
		if to, ok := r.Dir.(*passing); ok {
			r.Dir = bare(to.next)
		}
	case sigma.OpPublish:
		if len(f.path) == 0 || !slices.Contains(f.t.Objects, f.path[0]) {
			return a, nil
		}
		r.Op = sigma.OpSync
	case sigma.OpRecall, sigma.OpRemembers, sigma.OpStreams:
		return a, nil
	case sigma.OpReadAtIf, sigma.OpWriteAtIf, sigma.OpWatch, sigma.OpCall, sigma.OpPassFile, sigma.OpPassBulk,
		sigma.OpLease, sigma.OpRenew, sigma.OpRevoke, sigma.OpFind:
		session.CloseFiles(r.Files)
		return a, treeserver.Unsupported(r.Op.String())
	}
	a, err = treeserver.Do(ctx, f.next, r)
	if a.File != nil {
		a.File = f.t.handle(a.File, append(slices.Clip(f.path), r.Name), f.server)
	}
	for i := range a.Entries { // what is behind an endpoint looks like a directory
		if e := &a.Entries[i]; e.ID.Kind == sigma.KindEndpoint && f.leadsOn(ctx, e.Name) {
			e.ID.Kind = sigma.KindDir
		}
	}
	return a, err
}

func (f *passing) walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	got, ids, err := f.next.Walk(ctx, names)
	n := len(ids)
	met := err == nil && n > 0 && ids[n-1].Kind == sigma.KindEndpoint
	choice := (err == nil && got == nil || sigma.KindOf(err) == sigma.KindNotFound) && !met && n < len(names) &&
		(names[n] == sigma.LocalName || names[n] == sigma.AnyName)
	switch {
	case choice:
		n++
		ids = append(ids, sigma.FileID{})
	case !met && got == nil:
		return nil, ids, err
	case !met:
		return f.t.handle(got, slices.Concat(f.path, names), f.server), ids, nil
	}
	at := slices.Concat(f.path, names[:n])
	next, herr := f.t.Tree.Handle(ctx, sigma.JoinPath(at...))
	if herr != nil {
		if met && got != nil &&
			sigma.KindOf(herr) == sigma.KindUnsupported { // nothing is served there that one could walk to
			return f.t.handle(got, at, f.server), ids, nil
		}
		if got != nil {
			got.Close()
		}
		return nil, nil, herr
	}
	if got != nil {
		got.Close()
	}
	to := f.t.handle(next, at, sigma.JoinPath(at...))
	if choice {
		to.server = f.server
	}
	st, err := next.Stat(ctx)
	if err != nil {
		next.Close()
		return nil, nil, err
	}
	ids[n-1] = st.ID
	if n == len(names) {
		return to, ids, nil
	}
	defer to.Close()
	last, rest, err := to.Walk(ctx, names[n:])
	if err != nil && len(rest) == 0 && sigma.KindOf(err) == sigma.KindNotFound {
		err = nil // as a walk says that it came this far
	}
	return last, append(ids, rest...), err
}

// leadsOn says whether an endpoint is one of a tree, whose server need not be there.
func (f *passing) leadsOn(ctx context.Context, name string) bool {
	link, _, err := f.next.Walk(ctx, []string{name})
	if err != nil || link == nil {
		return false
	}
	defer link.Close()
	text, err := link.ReadLink(ctx)
	if err != nil {
		return false
	}
	e, err := sigma.ParseEndpoint(text)
	return err == nil && e.Form == sigma.FormTree
}

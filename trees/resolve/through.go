package resolve

import (
	"context"
	"slices"

	"sigmaos.dev/sigma"
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
	return &passing{File: f, t: &t, path: names}, nil
}

// passing is a handle of such a file. What it does not have of its own, such as passing a
// descriptor, is asked of File.
type passing struct {
	sigma.File
	t      *Through
	path   []string // by which it was walked to
	server string   // the path of the last endpoint on the way; "" = the root's server
}

// Unwrap gives the handle that the server of the file gave.
func (f *passing) Unwrap() sigma.File { return f.File }

// Server says which server's the file is: two files with one FileID.Path of one server are the
// same.
func (f *passing) Server() string { return f.server }

// Walk implements sigma.File.
func (f *passing) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	got, ids, err := f.File.Walk(ctx, names)
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
		return &passing{File: got, t: f.t, path: slices.Concat(f.path, names), server: f.server}, ids, nil
	}
	at := slices.Concat(f.path, names[:n])
	next, herr := f.t.Tree.Handle(ctx, sigma.JoinPath(at...))
	if herr != nil {
		if met && got != nil &&
			sigma.KindOf(herr) == sigma.KindUnsupported { // nothing is served there that one could walk to
			return &passing{File: got, t: f.t, path: at, server: f.server}, ids, nil
		}
		if got != nil {
			got.Close()
		}
		return nil, nil, herr
	}
	if got != nil {
		got.Close()
	}
	to := &passing{File: next, t: f.t, path: at, server: sigma.JoinPath(at...)}
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

// Create implements sigma.File.
func (f *passing) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	created, err := f.File.Create(ctx, name, flags, perm)
	if err != nil {
		return nil, err
	}
	return &passing{File: created, t: f.t, path: append(slices.Clip(f.path), name), server: f.server}, nil
}

// Rename implements sigma.File.
func (f *passing) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	if to, ok := newDir.(*passing); ok {
		newDir = to.File
	}
	return f.File.Rename(ctx, name, newDir, newName)
}

// ReadDir implements sigma.File: what is behind an endpoint looks like a directory.
func (f *passing) ReadDir(ctx context.Context, cookie uint64, most int) ([]sigma.DirEntry, uint64, bool, error) {
	es, next, more, err := f.File.ReadDir(ctx, cookie, most)
	for i := range es {
		if es[i].ID.Kind == sigma.KindEndpoint && f.leadsOn(ctx, es[i].Name) {
			es[i].ID.Kind = sigma.KindDir
		}
	}
	return es, next, more, err
}

// leadsOn says whether an endpoint is one of a tree, whose server need not be there.
func (f *passing) leadsOn(ctx context.Context, name string) bool {
	link, _, err := f.File.Walk(ctx, []string{name})
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

// FileID implements sigma.Identified, where the server's handle does.
func (f *passing) FileID() sigma.FileID {
	if i, ok := f.File.(sigma.Identified); ok {
		return i.FileID()
	}
	return sigma.FileID{}
}

// Space implements sigma.Spacious.
func (f *passing) Space(ctx context.Context) (sigma.Space, error) {
	if s, ok := f.File.(sigma.Spacious); ok {
		return s.Space(ctx)
	}
	return sigma.Space{}, nil
}

// Publish implements sigma.Publisher.
func (f *passing) Publish(ctx context.Context) error {
	if len(f.path) > 0 && slices.Contains(f.t.Objects, f.path[0]) {
		return f.File.Sync(ctx)
	}
	return nil
}

package tree

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
)

// A watcher finds out what happened by comparing what it sees with what it saw. The protocol tells
// that something has changed, never what, and tells it also if it happened before it was asked: so
// nothing is missed but what was undone between two looks. Handles are watched, not paths: versions
// of one file can be compared, those of two files of one name cannot.

// childrenMax is how many files of a directory are watched one by one, each with a request under
// way.
const childrenMax = 128

// lookEvery is how often is looked at what its server cannot watch, and how long a failure is
// waited over.
const lookEvery = 500 * time.Millisecond

// watched is the tree that is looked at.
type watched interface {
	sigma.Namespace
	Handle(ctx context.Context, path string) (sigma.File, error)
}

// Watcher watches one path.
type Watcher struct {
	Tree   watched
	Path   string
	single bool // a directory is watched as a file: for itself
	Emit   func(Event) error

	file sigma.File // what is at path now; nil = nothing
	st   sigma.Stat
	// where path lies, since a handle follows its file to another name; nil if it cannot be watched
	dir     sigma.File
	since   sigma.Version             // of dir
	entries map[string]sigma.DirEntry // of a directory
}

func (w *Watcher) Close() {
	if w.file != nil {
		w.file.Close()
	}
	if w.dir != nil {
		w.dir.Close()
	}
	w.file, w.dir, w.entries = nil, nil, nil
}

func (w *Watcher) isDir() bool { return w.st.ID.Kind == sigma.KindDir && !w.single }

// Look takes note of what is there. It is no error if that is nothing.
func (w *Watcher) Look(ctx context.Context) error {
	w.Close()
	if dir, st, err := statHandle(ctx, w.Tree, path.Dir(w.Path)); err == nil && w.Path != "/" {
		w.dir, w.since = dir, st.ID.Version
	}
	f, st, err := statHandle(ctx, w.Tree, w.Path)
	if files.Gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	w.file, w.st = f, st
	if w.isDir() {
		return w.list(ctx)
	}
	return nil
}

func statHandle(ctx context.Context, tree watched, path string) (sigma.File, sigma.Stat, error) {
	f, err := tree.Handle(ctx, path)
	if err != nil {
		return nil, sigma.Stat{}, err
	}
	st, err := f.Stat(ctx)
	if err != nil {
		f.Close()
	}
	return f, st, err
}

func (w *Watcher) list(ctx context.Context) error {
	es, err := w.Tree.ReadDir(ctx, w.Path)
	if err != nil && !files.Gone(err) {
		return err
	}
	w.entries = make(map[string]sigma.DirEntry, len(es))
	for _, e := range es {
		w.entries[e.Name] = e
	}
	for _, e := range w.children() {
		if e.ID.Version == 0 { // its server would have had to look
			st, err := w.Tree.Lstat(ctx, path.Join(w.Path, e.Name))
			if err == nil && st.ID.Path == e.ID.Path {
				e.ID.Version, e.Size = st.ID.Version, st.Size
				w.entries[e.Name] = e
			}
		}
	}
	return nil
}

// listed is what was seen, as ls prints it.
func (w *Watcher) listed() listed {
	if w.file == nil {
		return listed{}
	}
	if !w.isDir() {
		f := FileJSON{Path: w.Path, Name: path.Base(w.Path)}
		f.fill(w.st)
		return listed{files: []FileJSON{f}}
	}
	l := listed{dir: w.Path}
	for _, e := range w.entries {
		l.files = append(l.files, entryJSON(w.Path, e))
	}
	slices.SortFunc(l.files, func(a, b FileJSON) int { return strings.Compare(a.Name, b.Name) })
	return l
}

// Run tells what changes until ctx ends or something fails.
func (w *Watcher) Run(ctx context.Context) error {
	idle := time.Duration(0) // a server whose versions contradict each other is not asked without end
	for ctx.Err() == nil {
		if err := w.wait(ctx); err != nil {
			return err
		}
		if idle > 0 && datadir.Pause(ctx, idle) != nil {
			break
		}
		had, before, entries := w.file != nil, w.st, w.entries
		if err := w.Look(ctx); err != nil {
			if !mayPass(err) {
				return err
			}
			w.st, w.entries = before, entries
			if datadir.Pause(ctx, lookEvery) != nil {
				break
			}
			continue
		}
		events := w.differences(had, before, entries)
		if idle = min(max(2*idle, 10*time.Millisecond), lookEvery); len(events) > 0 {
			idle = 0
		}
		for _, e := range events {
			e.Time = time.Now()
			if err := w.Emit(e); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// differences tells what happened between two looks.
func (w *Watcher) differences(had bool, before sigma.Stat, entries map[string]sigma.DirEntry) []Event {
	now := w.file != nil
	own := Event{Path: w.Path, Kind: w.st.ID.Kind.String(), Size: w.st.Size, Version: uint64(w.st.ID.Version)}
	switch {
	case !had && !now:
		return nil
	case !now:
		return []Event{{Event: Removed, Path: w.Path, Kind: before.ID.Kind.String()}}
	case !had:
		own.Event = Created
		return append([]Event{own}, differ(w.Path, nil, w.entries)...)
	case w.isDir():
		return differ(w.Path, entries, w.entries)
	case before.ID.Path != w.st.ID.Path || before.ID.Version != w.st.ID.Version:
		own.Event = Changed
		return []Event{own}
	}
	return nil
}

// differ compares two listings of a directory. What went under one name and came under another is
// renamed.
func differ(dir string, before, now map[string]sigma.DirEntry) (events []Event) {
	event := func(what string, e sigma.DirEntry) Event {
		return Event{Event: what, Path: path.Join(dir, e.Name), Kind: e.ID.Kind.String(), Size: e.Size,
			Version: uint64(e.ID.Version)}
	}
	went := map[uint64]string{}
	for name, e := range before {
		if n, ok := now[name]; !ok || n.ID.Path != e.ID.Path {
			went[e.ID.Path] = name
		}
	}
	for name, e := range now {
		b, had := before[name]
		from, renamed := went[e.ID.Path]
		switch {
		case renamed && (!had || b.ID.Path != e.ID.Path):
			x := event(Renamed, e)
			x.From = path.Join(dir, from)
			events = append(events, x)
			if _, again := now[from]; !again {
				delete(before, from)
			}
		case !had:
			events = append(events, event(Created, e))
		case b.ID.Path != e.ID.Path || e.ID.Kind == sigma.KindFile && b.ID.Version != e.ID.Version:
			events = append(events, event(Changed, e))
		}
	}
	for name, e := range before {
		if _, ok := now[name]; !ok {
			events = append(events, Event{Event: Removed, Path: path.Join(dir, e.Name),
				Kind: e.ID.Kind.String()})
		}
	}
	slices.SortFunc(events, func(a, b Event) int { return strings.Compare(a.Path, b.Path) })
	return events
}

// wait returns when something may have changed.
func (w *Watcher) wait(until context.Context) error {
	ctx, cancel := context.WithCancel(until)
	defer cancel()
	if w.file == nil {
		err := w.Tree.WaitFor(ctx, w.Path)
		if k := sigma.KindOf(err); err != nil && ctx.Err() == nil && (k == sigma.KindUnsupported || mayPass(err)) {
			return datadir.Pause(until, lookEvery)
		}
		return err
	}
	var looks []func() error
	looks = append(looks, func() error { return watchHandle(ctx, w.file, w.st.ID.Version) })
	if w.dir != nil {
		looks = append(looks, func() error { return watchQuietly(ctx, w.dir, w.since) })
	}
	for _, e := range w.children() {
		looks = append(looks, func() error { return w.watchChild(ctx, e) })
	}
	results := make(chan error, len(looks))
	for _, look := range looks {
		go func() { results <- look() }()
	}
	err := <-results
	cancel()
	for range len(looks) - 1 {
		<-results
	}
	switch {
	case err == nil || files.Gone(err):
		return nil
	case mayPass(err) && until.Err() == nil:
		return datadir.Pause(until, lookEvery)
	}
	return err
}

// children gives the files of a directory that are watched too.
func (w *Watcher) children() (files []sigma.DirEntry) {
	for _, e := range w.entries {
		if e.ID.Kind == sigma.KindFile {
			files = append(files, e)
		}
	}
	if len(files) > childrenMax {
		return nil
	}
	return files
}

// watchChild returns when the file of an entry has changed since it was listed. One that its server
// cannot watch never does.
func (w *Watcher) watchChild(ctx context.Context, e sigma.DirEntry) error {
	f, err := w.Tree.Handle(ctx, path.Join(w.Path, e.Name))
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(ctx); err != nil || st.ID.Path != e.ID.Path {
		return err
	}
	return watchQuietly(ctx, f, e.ID.Version)
}

// watchQuietly is a watch that never returns where there cannot be one.
func watchQuietly(ctx context.Context, f sigma.File, since sigma.Version) error {
	if x, ok := f.(sigma.Watcher); ok {
		if _, err := x.Watch(ctx, since); err == nil || sigma.KindOf(err) != sigma.KindUnsupported {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// watchHandle returns when a file's version is beyond since, or soon if its server cannot tell.
func watchHandle(ctx context.Context, f sigma.File, since sigma.Version) error {
	if x, ok := f.(sigma.Watcher); ok {
		if _, err := x.Watch(ctx, since); err == nil || sigma.KindOf(err) != sigma.KindUnsupported {
			return err
		}
	}
	return datadir.Pause(ctx, lookEvery)
}

// mayPass says whether err may be over soon.
func mayPass(err error) bool {
	k := sigma.KindOf(err)
	return k == sigma.KindUnavailable || k == sigma.KindBusy || k == sigma.KindLost || k == sigma.KindTimeout
}

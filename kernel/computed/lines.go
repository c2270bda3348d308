package computed

import (
	"context"
	"os"
	"sync"
	"time"

	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// Lines is a file of lines that are made while it is read, a page at a time, so that one of a
// hundred thousand costs a handle no more memory than one of ten. What comes and goes meanwhile may
// be in it or not; what is there all the time is in it once.
type Lines[C any] struct {
	treeserver.Callable // answers calls too if it has a Handle
	perm                uint32
	// page gives the lines after a cursor, and whether there are more. The first cursor is C's zero
	// value.
	Page func(ctx context.Context, after C) (text []byte, last C, more bool, err error)

	mu     sync.Mutex
	text   []byte // mu; the last page
	from   uint64 // mu; where it begins
	cursor C      // mu; where it ends
	over   bool   // mu; there are no more
}

// LinesFile makes a file of /sys or /proc.
func LinesFile[C any](path, name string, perm uint32, page func(ctx context.Context, after C) ([]byte, C, bool,
	error)) *Lines[C] {
	return &Lines[C]{Callable: treeserver.Callable{Name: name, ID: viewfs.PathID(path)}, perm: perm, Page: page}
}

// File is linesFile of one page.
func File(path, name string, perm uint32, text func(context.Context) ([]byte, error)) *Lines[struct{}] {
	return LinesFile(path, name, perm, func(ctx context.Context, _ struct{}) ([]byte, struct{}, bool, error) {
		b, err := text(ctx)
		return b, struct{}{}, false, err
	})
}

// Answering makes the file answer the calls of c too.
func (l *Lines[C]) Answering(c sigma.File) *Lines[C] {
	l.Callable.Handle, l.Callable.Prompt = c.(*treeserver.Callable).Handle, c.(*treeserver.Callable).Prompt
	l.perm |= 0o200
	return l
}

// Call implements sigma.Caller where the file has calls.
func (l *Lines[C]) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	if l.Handle == nil {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, treeserver.Unsupported("call")
	}
	return l.Callable.Call(ctx, method, payload, files)
}

// Walk clones only.
func (l *Lines[C]) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("kernel.lines.Walk", sigma.KindNotDir, l.Name)
	}
	return &Lines[C]{Callable: l.Callable, perm: l.perm, Page: l.Page}, nil, nil
}

// Stat describes the file; how long it is is not known before it was read.
func (l *Lines[C]) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDevice, Path: l.ID}, Name: l.Name, Perm: l.perm,
		Modified: time.Unix(0, 0)}, nil
}

// Open implements sigma.File.
func (l *Lines[C]) Open(_ context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("kernel.lines.Open", sigma.KindPermission, l.Name)
	}
	return nil
}

// ReadAt reads on from page to page. Who goes back begins anew.
func (l *Lines[C]) ReadAt(ctx context.Context, p []byte, offset uint64) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < l.from {
		var first C
		l.text, l.from, l.cursor, l.over = nil, 0, first, false
	}
	for n < len(p) {
		at := offset + uint64(n)
		if end := l.from + uint64(len(l.text)); at < end {
			n += copy(p[n:], l.text[at-l.from:])
			continue
		} else if l.over || at > end && ctx.Err() != nil {
			break
		} else if err := ctx.Err(); err != nil {
			return n, sigma.Wrap("kernel.lines.ReadAt", l.Name, err)
		}
		text, last, more, err := l.Page(ctx, l.cursor)
		if err != nil {
			return n, err
		}
		l.from += uint64(len(l.text))
		l.text, l.cursor, l.over = text, last, !more
	}
	return n, nil
}

// Calls makes a file of /sys that answers calls.
func Calls[Who any](name string, who Who, methods sigmap.Handlers[Who]) *treeserver.Callable {
	return treeserver.Methods(name, viewfs.PathID("/sys/"+name), who, methods)
}

// Sys makes a file of /sys of one page.
func Sys(name string, text func(context.Context) ([]byte, error)) *Lines[struct{}] {
	return File("/sys/"+name, name, 0o444, text)
}

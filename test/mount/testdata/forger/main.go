// Command forger is a proc that serves trees as an attacker would: each argument is PATH=KIND:TEXT,
// where KIND and TEXT say what is there. It says that files are the same that are not, shows
// directories without end, and modes that let everybody do all.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	lease, _, err := c.Lease(ctx, 10*time.Second)
	if err != nil {
		return err
	}
	ended := make(chan error)
	for _, arg := range args {
		path, what, _ := strings.Cut(arg, "=")
		kind, text, _ := strings.Cut(what, ":")
		show, err := kinds[kind](text)
		if err != nil {
			return err
		}
		l, err := c.Listen(ctx, sigma.FormTree)
		if err != nil {
			return err
		}
		if err := c.Publish(ctx, path, l.Endpoint(), lease); err != nil {
			return err
		}
		go func() { ended <- c.ServeTree(ctx, l, forged{show: show}) }()
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	return <-ended
}

// shower tells what is at a place, or that nothing is.
type shower = func(at []string) (lie, bool)

var kinds = map[string]func(text string) (shower, error){
	"links": func(text string) (shower, error) {
		target, err := strconv.Unquote(text)
		return links(target), err
	},
	"turns": func(text string) (shower, error) {
		n, err := strconv.Atoi(text)
		return turns(uint64(n)), err
	},
	"modes": func(string) (shower, error) { return modes, nil },
}

// deep is a place that many directories are above.
var deep = strings.Split("1/2/3/4/5/6/7/8/9/10/11", "/")

// links shows one FileID for a link in the root and for the same one deep below, whose target it
// is; beside each is a file.
func links(target string) func(at []string) (lie, bool) {
	return func(at []string) (lie, bool) {
		down := 0
		for down < min(len(at), len(deep)) && at[down] == deep[down] {
			down++
		}
		dir := lie{kind: sigma.KindDir, id: 100 + uint64(down), perm: 0o755, names: []string{"link", "file"}}
		switch rest := at[down:]; {
		case len(rest) == 0 && down < len(deep):
			dir.names = append(dir.names, deep[down])
			return dir, true
		case len(rest) == 0:
			return dir, true
		case len(rest) == 1 && rest[0] == "file":
			return lie{kind: sigma.KindFile, id: 8, perm: 0o644, data: "the realm's"}, true
		case len(rest) == 1 && rest[0] == "link":
			return lie{kind: sigma.KindSymlink, id: 7, perm: 0o777, target: target}, true
		}
		return lie{}, false
	}
}

// turns shows directories without end, one below the other, of n FileIDs in turns: with 1 each is
// its own child. 0 = each has its own.
func turns(n uint64) shower {
	return func(at []string) (lie, bool) {
		for i, name := range at {
			if name == "file" && i == len(at)-1 {
				return lie{kind: sigma.KindFile, id: 4, perm: 0o644, data: "text"}, true
			}
			if name != "d" {
				return lie{}, false
			}
		}
		id := uint64(len(at))
		if n > 0 {
			id %= n
		}
		return lie{kind: sigma.KindDir, id: 5 + id, perm: 0o755, names: []string{"d", "file"}}, true
	}
}

// modes shows a directory and a file with all bits.
func modes(at []string) (lie, bool) {
	if len(at) == 0 {
		return lie{kind: sigma.KindDir, id: 1, perm: 0o7777, names: []string{"file"}}, true
	}
	return lie{kind: sigma.KindFile, id: 2, perm: 0o7777}, len(at) == 1 && at[0] == "file"
}

// forged is a file of a tree whose server says what it likes: which file is where is told by show
// alone.
type forged struct {
	sigma.File // nil: what is not below panics, and ends the attacker's session
	at         []string
	show       func(at []string) (lie, bool)
}

// lie is what the server says of a place.
type lie struct {
	kind   sigma.FileKind
	id     uint64
	perm   uint32
	target string
	names  []string
	data   string
}

func (f forged) said() lie { l, _ := f.show(f.at); return l }

func (f forged) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return f, nil }

func (f forged) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	ids := []sigma.FileID{}
	for i, n := range names {
		at := append(append([]string{}, f.at...), names[:i+1]...)
		l, ok := f.show(at)
		if !ok {
			if i == 0 {
				return nil, nil, sigma.PathError("forged.Walk", sigma.KindNotFound, n)
			}
			return nil, ids, nil
		}
		ids = append(ids, sigma.FileID{Kind: l.kind, Path: l.id, Version: 1})
		if i+1 < len(names) && l.kind != sigma.KindDir {
			return nil, ids, nil
		}
	}
	return forged{at: append(append([]string{}, f.at...), names...), show: f.show}, ids, nil
}

func (f forged) Stat(context.Context) (sigma.Stat, error) {
	l := f.said()
	return sigma.Stat{ID: sigma.FileID{Kind: l.kind, Path: l.id, Version: 1}, Perm: l.perm, Size: uint64(len(l.data)),
		Modified: time.Unix(1, 0)}, nil
}

func (f forged) Open(context.Context, sigma.OpenFlags) error { return nil }
func (f forged) ReadLink(context.Context) (string, error)    { return f.said().target, nil }
func (f forged) Close()                                      {}
func (f forged) ReadAt(_ context.Context, p []byte, off uint64) (int, error) {
	return copy(p, f.said().data[min(off, uint64(len(f.said().data))):]), nil
}

func (f forged) ReadDir(_ context.Context, cookie uint64, most int) (es []sigma.DirEntry, next uint64, more bool,
	err error) {
	names := f.said().names
	for next = cookie; next < uint64(len(names)) && len(es) < most; next++ {
		l, _ := f.show(append(append([]string{}, f.at...), names[next]))
		es = append(es, sigma.DirEntry{Name: names[next], ID: sigma.FileID{Kind: l.kind, Path: l.id, Version: 1},
			Next: next + 1})
	}
	return es, next, next < uint64(len(names)), nil
}

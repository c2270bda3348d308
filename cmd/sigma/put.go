package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/hostdir"
	"sigmaos.dev/sigma"
)

// bucketsDir is where buckets are.
const bucketsDir = "/s3"

func newPutCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "put [-r] LOCAL... PATH",
		Short: "Store local files in the realm",
		Long: `Store a local file at a realm path, or, if PATH ends with / or is a directory, below it
with its own name; "-" is standard input. With -r, store what is in a local directory at
PATH (or, if PATH ends with /, at PATH/NAME), making directories as needed. What is
there under the same name is replaced, each file atomically; other files stay. Symbolic
links and devices of the local directory are skipped and counted.

A bucket has to exist: make it with "sigma mkdir /s3/NAME".`,
		Example: `  sudo sigma mkdir /s3/in
  sudo sigma put a.txt /s3/in/
  sudo sigma mkdir /s3/in
  sudo sigma put -r texts /s3/in/texts
  date | sudo sigma put - /s3/in/now`,
		Args: between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.put(cmd.Context(), args, moving{recursive: recursive})
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "store directories")
	return cmd
}

// item is one local file to store.
type item struct {
	dir           *hostdir.Dir // below which local is; nil = local is what the user named
	local, remote string
	size          int64
	perm          uint32
}

// plan is what a put has to do.
type plan struct {
	base    string            // of a get: the local directory below which all is
	open    []*hostdir.Dir    // of a put: the local directories that it reads
	dirs    []string          // to make, parents first
	perms   map[string]uint32 // of dirs
	files   []item
	bytes   int64
	skipped int // what has no content of its own
	extent  extent
}

// moving says how files are stored and fetched.
type moving struct {
	recursive bool
	below     bool // a directory goes below one that is there, as cp has it, not over it
}

func (a *app) put(ctx context.Context, args []string, o moving) error {
	typed := args[len(args)-1]
	to, err := plainPath(typed)
	if err != nil {
		return err
	}
	for _, local := range args[:len(args)-1] {
		if st, err := os.Stat(local); local != "-" && err != nil {
			return localError(err)
		} else if local != "-" && st.IsDir() && !o.recursive {
			return &sigma.Error{Op: "sigma.put", Path: local, Kind: sigma.KindIsDir, Hint: "store all of it with: sigma put -r " + local + " " + typed}
		} else if local != "-" && !st.IsDir() && !st.Mode().IsRegular() {
			return &sigma.Error{Op: "sigma.put", Path: local, Kind: sigma.KindInvalid, Msg: "is neither a file nor a directory", Hint: "store what can be read from it with: sigma put - PATH < " + local}
		}
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := checkBucket(ctx, c, to); err != nil {
		return err
	}
	st, err := c.Stat(ctx, to)
	isDir := err == nil && st.ID.Kind == sigma.KindDir
	switch {
	case err != nil && sigma.KindOf(err) != sigma.KindNotFound:
		return err
	case len(args) > 2 && !isDir:
		return &sigma.Error{Op: "sigma.put", Path: to, Kind: sigma.KindNotDir, Msg: "is not a directory, and there are several files to store", Hint: "make it with: sigma mkdir -p " + to}
	}
	var p plan
	defer func() {
		for _, d := range p.open {
			d.Close()
		}
	}()
	for _, local := range args[:len(args)-1] {
		if local == "-" {
			if isDir || strings.HasSuffix(typed, "/") {
				return usageError(nil, "write for example: sigma put - "+path.Join(to, "NAME"), "standard input needs a whole path")
			}
			return a.putStream(ctx, c, to)
		}
		if err := p.add(local, destination(local, to, typed, isDir, o.below)); err != nil {
			return err
		}
	}
	return a.carryOut(ctx, c, p)
}

// putStream stores standard input.
func (a *app) putStream(ctx context.Context, c sigma.Namespace, to string) error {
	start, title := time.Now(), "put "+path.Base(to)
	bar := &counted{progress: a.progressBytes(title, 0)}
	err := a.explainPut(upload(ctx, c, a.in, to, 0o644, bar), to)
	bar.Done()
	if err != nil {
		return err
	}
	return a.sayMoved("stored", plan{files: make([]item, 1)}, bar.n.Load(), time.Since(start))
}

// destination is where a local file or directory goes.
func destination(local, to, typed string, isDir, below bool) string {
	st, err := os.Stat(local)
	into := strings.HasSuffix(typed, "/") || err == nil && (below || !st.IsDir()) && isDir
	if !into {
		return to
	}
	abs, err := filepath.Abs(local) // "." and ".." have names too
	if err != nil {
		abs = local
	}
	return path.Join(to, filepath.Base(abs))
}

// addDir plans to make a directory.
func (p *plan) addDir(at string, perm uint32) {
	if p.perms == nil {
		p.perms = map[string]uint32{}
	}
	p.dirs = append(p.dirs, at)
	p.perms[at] = perm&0o777 | 0o700 // so that it can be filled
}

// add plans to store local, a file or directory, at remote.
func (p *plan) add(local, remote string) error {
	root, err := filepath.EvalSymlinks(local) // what the user named is meant, also through a link
	if err != nil {
		return localError(err)
	}
	st, err := os.Stat(root)
	if err != nil {
		return localError(err)
	}
	if !st.IsDir() {
		p.addFile(item{nil, root, remote, st.Size(), uint32(st.Mode().Perm())})
		return nil
	}
	d, err := hostdir.Open(root)
	if err != nil {
		return localError(err)
	}
	p.open = append(p.open, d)
	return localError(d.Walk(".", func(name string, st fs.FileInfo) error {
		at := path.Join(remote, filepath.ToSlash(name))
		if _, err := sigma.ParsePath(at); err != nil {
			return err
		}
		switch {
		case st.IsDir():
			p.addDir(at, uint32(st.Mode().Perm()))
		case st.Mode().IsRegular():
			p.addFile(item{d, name, at, st.Size(), uint32(st.Mode().Perm())})
		default:
			p.skipped++
		}
		return nil
	}))
}

func (p *plan) addFile(it item) {
	p.files = append(p.files, it)
	p.bytes += it.size
}

func (a *app) carryOut(ctx context.Context, c sigma.Namespace, p plan) error {
	start := time.Now()
	for i, dir := range p.dirs {
		make := c.Mkdir
		if i == 0 {
			make = c.MkdirAll
		}
		if err := make(ctx, dir, p.perms[dir]); err != nil && sigma.KindOf(err) != sigma.KindExists {
			return err
		}
	}
	bar := a.progressBytes(fmt.Sprintf("put %d files", len(p.files)), p.bytes)
	var stored atomic.Int64
	err := each(ctx, len(p.files), func(ctx context.Context, i int) error {
		err := putFile(ctx, c, p.files[i], bar)
		if err == nil {
			stored.Add(1)
		}
		return a.explainPut(err, p.files[i].remote)
	})
	bar.Done()
	if p.skipped > 0 {
		a.remark("skipped %d symbolic links and devices", p.skipped)
	}
	if err != nil {
		if n := stored.Load(); n > 0 {
			a.remark("%d of %d files were stored", n, len(p.files))
		}
		return err
	}
	return a.sayMoved("stored", p, p.bytes, time.Since(start))
}

// movedJSON is what put, get and cp print with --json.
type movedJSON struct {
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"`
	Skipped int     `json:"skipped"`
	Seconds float64 `json:"seconds"`
}

// sayMoved tells what was done: as JSON, or to people if it was more than they named.
func (a *app) sayMoved(what string, p plan, bytes int64, took time.Duration) error {
	files := len(p.files)
	switch {
	case a.json:
		return a.printJSON(movedJSON{files, bytes, p.skipped, took.Seconds()})
	case len(p.dirs) == 0:
		return nil
	}
	rate := sigma.Bytes(float64(bytes) / max(took.Seconds(), 1e-6))
	a.remark("%s %s, %v in %v (%v/s)", what, count(files, "file"), sigma.Bytes(bytes), took.Round(time.Millisecond), rate)
	return nil
}

func putFile(ctx context.Context, c sigma.Namespace, it item, bar progress) error {
	dir, name := it.dir, it.local
	if dir == nil {
		var err error
		if dir, err = hostdir.Open(filepath.Dir(it.local)); err != nil {
			return localError(err)
		}
		defer dir.Close()
		name = filepath.Base(it.local)
	}
	f, err := dir.OpenFile(name)
	if err != nil {
		return localError(err)
	}
	defer f.Close()
	return upload(ctx, c, f, it.remote, it.perm, bar)
}

// explainPut adds what to do about the usual reasons.
func (a *app) explainPut(err error, to string) error {
	var e *sigma.Error
	if errors.As(err, &e) && e.Hint == "" {
		explained := *e
		switch e.Kind {
		case sigma.KindNotFound:
			explained.Hint = "make the directory with: sigma mkdir -p " + path.Dir(to)
		case sigma.KindIsDir:
			explained.Hint = "to store below it, write " + to + "/"
		}
		return &explained
	}
	return err
}

// checkBucket says how to make the bucket of a path if it is missing.
func checkBucket(ctx context.Context, c sigma.Namespace, p string) error {
	names, _ := sigma.ParsePath(p)
	if len(names) < 2 || "/"+names[0] != bucketsDir {
		return nil
	}
	bucket := sigma.JoinPath(names[:2]...)
	_, err := c.Stat(ctx, bucket)
	if err == nil || sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	if _, err := c.Stat(ctx, bucketsDir); err != nil {
		return err
	}
	if len(names) == 2 {
		return &sigma.Error{Op: "sigma.checkBucket", Path: p, Kind: sigma.KindNotFound, Msg: fmt.Sprintf("there is no bucket %q", names[1]), Hint: "make it with: sigma mkdir " + bucket + "; files are stored in buckets: " + bucket + "/NAME"}
	}
	return &sigma.Error{Op: "sigma.checkBucket", Path: p, Kind: sigma.KindNotFound, Msg: fmt.Sprintf("there is no bucket %q", names[1]), Hint: "make it with: sigma mkdir " + bucket}
}

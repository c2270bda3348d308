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
	"syscall"
	"time"

	"github.com/spf13/cobra"

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
		RunE: func(cmd *cobra.Command, args []string) error { return a.put(cmd.Context(), args, recursive) },
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "store directories")
	return cmd
}

// item is one local file to store.
type item struct {
	local, remote string
	size          int64
	perm          uint32
}

// plan is what a put has to do.
type plan struct {
	dirs    []string // to make, parents first
	files   []item
	bytes   int64
	skipped int // symlinks, devices
}

func (a *app) put(ctx context.Context, args []string, recursive bool) error {
	typed := args[len(args)-1]
	to, err := cleanPath(typed)
	if err != nil {
		return err
	}
	for _, local := range args[:len(args)-1] {
		if st, err := os.Stat(local); local != "-" && err != nil {
			return localError(err)
		} else if local != "-" && st.IsDir() && !recursive {
			return &sigma.Error{Op: "sigma.put", Path: local, Kind: sigma.KindIsDir, Hint: "store all of it with: sigma put -r " + local + " " + typed}
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
	for _, local := range args[:len(args)-1] {
		if local == "-" {
			if isDir || strings.HasSuffix(typed, "/") {
				return usageError(nil, "write for example: sigma put - "+path.Join(to, "NAME"), "standard input needs a whole path")
			}
			return a.explainPut(upload(ctx, c, a.in, to, 0o644, nothing{}), to)
		}
		if err := p.add(local, destination(local, to, typed, isDir)); err != nil {
			return err
		}
	}
	return a.carryOut(ctx, c, p)
}

// destination is where a local file or directory goes.
func destination(local, to, typed string, isDir bool) string {
	st, err := os.Stat(local)
	into := strings.HasSuffix(typed, "/") || err == nil && !st.IsDir() && isDir
	if !into {
		return to
	}
	abs, err := filepath.Abs(local) // "." and ".." have names too
	if err != nil {
		abs = local
	}
	return path.Join(to, filepath.Base(abs))
}

// add plans to store local, a file or directory, at remote.
func (p *plan) add(local, remote string) error {
	root, err := filepath.EvalSymlinks(local) // what the user named is meant, also through a link
	if err != nil {
		return localError(err)
	}
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return localError(err)
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		at := path.Join(remote, filepath.ToSlash(rel))
		if _, err := sigma.ParsePath(at); err != nil {
			return err
		}
		switch {
		case d.IsDir():
			p.dirs = append(p.dirs, at)
			return nil
		case !d.Type().IsRegular():
			p.skipped++
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return localError(err)
		}
		p.files = append(p.files, item{name, at, st.Size(), uint32(st.Mode().Perm())})
		p.bytes += st.Size()
		return nil
	})
}

func (a *app) carryOut(ctx context.Context, c sigma.Namespace, p plan) error {
	start := time.Now()
	for i, dir := range p.dirs {
		make := c.Mkdir
		if i == 0 {
			make = c.MkdirAll
		}
		if err := make(ctx, dir, 0o755); err != nil && sigma.KindOf(err) != sigma.KindExists {
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
	if len(p.dirs) > 0 {
		a.sayMoved("stored", len(p.files), p.bytes, time.Since(start))
	}
	return nil
}

func (a *app) sayMoved(what string, files int, bytes int64, took time.Duration) {
	rate := sigma.Bytes(float64(bytes) / max(took.Seconds(), 1e-6))
	a.remark("%s %d files, %v in %v (%v/s)", what, files, sigma.Bytes(bytes), took.Round(time.Millisecond), rate)
}

func putFile(ctx context.Context, c sigma.Namespace, it item, bar progress) error {
	f, err := os.OpenFile(it.local, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0) // it may have been replaced since it was planned
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

func newGetCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "get [-r] PATH [LOCAL]",
		Short: "Fetch files of the realm",
		Long: `Fetch a file of the realm into a local file, or, if LOCAL ends with / or is a directory
(default: this one), below it with its own name. With -r, fetch what is in a directory
into the directory LOCAL (or, if LOCAL ends with / or is not given, LOCAL/NAME), making
directories as needed. Local files of the same name are replaced; each is whole or as it
was. Links and files without content are skipped and counted.`,
		Example: `  sudo sigma get /s3/in/a.txt
  sudo sigma get -r /s3/out results`,
		Args: between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			local := "./"
			if len(args) > 1 {
				local = args[1]
			}
			return a.get(cmd.Context(), args[0], local, recursive)
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "fetch directories")
	return cmd
}

func (a *app) get(ctx context.Context, from, to string, recursive bool) error {
	if to == "" {
		return usageError(nil, "write . for this directory", "the local name is empty")
	}
	from, err := cleanPath(from)
	if err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Stat(ctx, from)
	if err != nil {
		return err
	}
	isDir := st.ID.Kind == sigma.KindDir
	if st.ID.Kind == sigma.KindCallable {
		return noContent(from)
	}
	if isDir && !recursive {
		return &sigma.Error{Op: "sigma.get", Path: from, Kind: sigma.KindIsDir, Hint: "fetch all of it with: sigma get -r " + from}
	}
	local, err := os.Stat(to)
	if into := strings.HasSuffix(to, "/") || err == nil && local.IsDir() && !isDir; into && from != "/" {
		to = filepath.Join(to, path.Base(from))
	}
	if !isDir {
		bar := a.progressBytes("get "+path.Base(from), int64(st.Size))
		defer bar.Done()
		return getFile(ctx, c, item{local: to, remote: from, perm: st.Perm}, bar)
	}
	var p plan
	if err := p.fetch(ctx, c, from, to); err != nil {
		return err
	}
	start := time.Now()
	for _, dir := range p.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return localError(err)
		}
	}
	bar := &counted{progress: a.progressBytes(fmt.Sprintf("get %d files", len(p.files)), p.bytes)} // a listing may not tell sizes
	err = each(ctx, len(p.files), func(ctx context.Context, i int) error { return getFile(ctx, c, p.files[i], bar) })
	bar.Done()
	if p.skipped > 0 {
		a.remark("skipped %d links and files without content", p.skipped)
	}
	if err == nil {
		a.sayMoved("fetched", len(p.files), bar.n.Load(), time.Since(start))
	}
	return err
}

// counted is a progress that can be asked.
type counted struct {
	progress
	n atomic.Int64
}

func (c *counted) Add(n int64) {
	c.n.Add(n)
	c.progress.Add(n)
}

// fetch plans to fetch the directory remote into local. Names are checked, as a tree may be served by a tenant who would like them to lead elsewhere.
func (p *plan) fetch(ctx context.Context, c sigma.Namespace, remote, local string) error {
	entries, err := c.ReadDir(ctx, remote)
	if err != nil {
		return err
	}
	p.dirs = append(p.dirs, local)
	for _, e := range entries {
		if err := sigma.CheckName(e.Name); err != nil {
			return sigma.Wrap("sigma.fetch", remote, err)
		}
		at, to := path.Join(remote, e.Name), filepath.Join(local, e.Name)
		switch e.ID.Kind {
		case sigma.KindDir:
			if err := p.fetch(ctx, c, at, to); err != nil {
				return err
			}
		case sigma.KindFile, sigma.KindDevice:
			p.files = append(p.files, item{local: to, remote: at, size: int64(e.Size), perm: 0o644})
			p.bytes += int64(e.Size)
		default:
			p.skipped++
		}
	}
	return nil
}

// getFile fetches one file next to its place and moves it there when it is whole.
func getFile(ctx context.Context, c sigma.Namespace, it item, bar progress) error {
	if st, err := os.Stat(it.local); err == nil && st.IsDir() {
		return &sigma.Error{Op: "sigma.get", Path: it.local, Kind: sigma.KindIsDir, Msg: "is a directory on this machine", Hint: "give another local name"}
	}
	f, err := os.CreateTemp(filepath.Dir(it.local), ".sigma-get-*~")
	if err != nil {
		return localError(err)
	}
	if err = fetch(ctx, c, it.remote, f, bar); err == nil {
		err = f.Chmod(fs.FileMode(it.perm&0o777) | 0o600)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), it.local)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return localError(err)
}

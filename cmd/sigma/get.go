package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
)

func newGetCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "get [-r] [--stale] PATH... [LOCAL]",
		Short: "Fetch files of the realm",
		Long: `Fetch a file of the realm into a local file, or, if LOCAL ends with / or is a directory
(default: this one), below it with its own name; "-" is standard output. With -r, fetch what
is in a directory into the directory LOCAL (or, if LOCAL ends with /, is not given, or there
are several PATHs, LOCAL/NAME), making directories as needed. Modes are kept. Local files of
the same name are replaced; each is whole or as it was. Links and files without content are
skipped and counted.`,
		Example: `  sudo sigma get /s3/in/a.txt
  sudo sigma get '/s3/in/*.txt' texts/
  sudo sigma get -r /s3/out results
  sudo sigma get /s3/in/a.txt - | wc`,
		Args: between(1, -1),
	}
	a.reading(cmd, func(ctx context.Context, args []string, _ *sigma.Age) error {
		local, last := "./", len(args)-1
		if last > 0 {
			args, local = args[:last], args[last]
		}
		return a.get(ctx, args, local, moving{recursive: recursive})
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "fetch directories")
	return cmd
}

func (a *app) get(ctx context.Context, from []string, to string, o moving) error {
	if to == "" {
		return usageError(nil, "write . for this directory", "the local name is empty")
	}
	if err := cleanPaths(from); err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if from, err = expand(ctx, c, from); err != nil {
		return err
	}
	if to == "-" {
		for _, f := range from {
			if err := download(ctx, c, f, a.out, nothing{}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(from) > 1 {
		if st, err := os.Stat(to); err == nil && !st.IsDir() || err != nil && !strings.HasSuffix(to, "/") {
			return &sigma.Error{Op: "sigma.get", Path: to, Kind: sigma.KindNotDir, Msg: "is not a directory on this machine, and there are several files to fetch", Hint: "make it, or write a / after its name"}
		}
		o.below = true
	}
	var p plan
	for _, f := range from {
		if err := p.fetchOne(ctx, c, f, to, o); err != nil {
			return err
		}
	}
	return a.fetchAll(ctx, c, p, len(from) > 1)
}

// fetchOne plans to fetch what the user named.
func (p *plan) fetchOne(ctx context.Context, c sigma.Namespace, from, to string, o moving) error {
	st, err := c.Stat(ctx, from)
	if err != nil {
		return err
	}
	isDir := st.ID.Kind == sigma.KindDir
	if st.ID.Kind == sigma.KindCallable {
		return noContent(from)
	}
	if isDir && !o.recursive {
		return &sigma.Error{Op: "sigma.get", Path: from, Kind: sigma.KindIsDir, Hint: "fetch all of it with: sigma get -r " + from}
	}
	local, err := os.Stat(to)
	if into := strings.HasSuffix(to, "/") || err == nil && local.IsDir() && (o.below || !isDir); into && from != "/" {
		to = filepath.Join(to, path.Base(from))
	}
	if isDir {
		return p.fetch(ctx, c, from, to, st.Perm)
	}
	p.files = append(p.files, item{local: to, remote: from, size: int64(st.Size)})
	p.bytes += int64(st.Size)
	return nil
}

// fetchAll carries a plan out; several says that more than one was named, for which a directory may have to be made.
func (a *app) fetchAll(ctx context.Context, c sigma.Namespace, p plan, several bool) error {
	start := time.Now()
	for _, dir := range p.dirs {
		if err := makeLocalDir(dir, p.perms[dir]); err != nil {
			return localError(err)
		}
	}
	if several && len(p.files) > 0 {
		if err := os.MkdirAll(filepath.Dir(p.files[0].local), 0o755); err != nil {
			return localError(err)
		}
	}
	title := fmt.Sprintf("get %d files", len(p.files))
	if len(p.files) == 1 {
		title = "get " + path.Base(p.files[0].remote)
	}
	bar := &counted{progress: a.progressBytes(title, p.bytes)} // a listing may not tell sizes
	err := each(ctx, len(p.files), func(ctx context.Context, i int) error { return getFile(ctx, c, p.files[i], bar) })
	bar.Done()
	if p.skipped > 0 {
		a.remark("skipped %d links and files without content", p.skipped)
	}
	if err != nil {
		return err
	}
	return a.sayMoved("fetched", p, bar.n.Load(), time.Since(start))
}

// makeLocalDir makes a directory and those on the way. One that is there stays as it is.
func makeLocalDir(dir string, perm uint32) error {
	if st, err := os.Stat(dir); err == nil && st.IsDir() {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, fs.FileMode(perm))
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
func (p *plan) fetch(ctx context.Context, c sigma.Namespace, remote, local string, perm uint32) error {
	entries, err := c.ReadDir(ctx, remote)
	if err != nil {
		return err
	}
	p.addDir(local, perm)
	for _, e := range entries {
		if err := sigma.CheckName(e.Name); err != nil {
			return sigma.Wrap("sigma.fetch", remote, err)
		}
		at, to := path.Join(remote, e.Name), filepath.Join(local, e.Name)
		switch e.ID.Kind {
		case sigma.KindDir:
			st, err := c.Lstat(ctx, at)
			if gone(err) {
				continue // removed since it was listed
			}
			if err == nil {
				err = p.fetch(ctx, c, at, to, st.Perm)
			}
			if err != nil {
				return err
			}
		case sigma.KindFile, sigma.KindDevice:
			p.files = append(p.files, item{local: to, remote: at, size: int64(e.Size)})
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
	perm, err := fetch(ctx, c, it.remote, f, bar)
	if err == nil {
		err = f.Chmod(fs.FileMode(perm&0o777) | 0o600)
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

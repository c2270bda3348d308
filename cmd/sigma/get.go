package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/hostdir"
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
are several PATHs, LOCAL/NAME), making directories as needed. Modes are kept, but nobody else
gets the right to write; new directories are this user's alone until all is there. Local
files of the same name are replaced; each is whole or as it was. Links and files without
content are skipped and counted, and links below LOCAL on this machine are not followed.`,
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
			if err := download(ctx, c, f, raw(a.out), nothing{}); err != nil {
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
	there := err == nil && local.IsDir()
	into := strings.HasSuffix(to, "/") || there && (o.below || !isDir)
	at := filepath.Base(to)
	switch p.base = to; {
	case into && from != "/":
		at = path.Base(from)
	case into, there:
		at = "."
	default:
		p.base = filepath.Dir(to)
	}
	if isDir {
		return p.fetch(ctx, c, from, at, st.Perm)
	}
	p.files = append(p.files, item{local: at, remote: from, size: int64(st.Size)})
	p.bytes += int64(st.Size)
	return nil
}

// fetchAll carries a plan out; several says that more than one was named, for which a directory may have to be made.
func (a *app) fetchAll(ctx context.Context, c sigma.Namespace, p plan, several bool) error {
	start := time.Now()
	if several || len(p.dirs) > 0 {
		if err := os.MkdirAll(p.base, 0o755); err != nil {
			return localError(err)
		}
	}
	to, err := hostdir.Open(p.base)
	if err != nil {
		return localError(err)
	}
	defer to.Close()
	made := make([]fs.FileInfo, len(p.dirs))
	for i, dir := range p.dirs {
		if made[i], err = to.Mkdir(dir); err != nil {
			return localError(err)
		}
	}
	title := fmt.Sprintf("get %d files", len(p.files))
	if len(p.files) == 1 {
		title = "get " + path.Base(p.files[0].remote)
	}
	bar := &counted{progress: a.progressBytes(title, p.bytes)} // a listing may not tell sizes
	err = each(ctx, len(p.files), func(ctx context.Context, i int) error { return localError(getFile(ctx, c, to, p.files[i], bar)) })
	bar.Done()
	for i, dir := range slices.Backward(p.dirs) {
		if err == nil && made[i] != nil {
			err = localError(to.Finish(dir, made[i], ownMode(p.perms[dir])))
		}
	}
	if p.skipped > 0 {
		a.remark("skipped %d links and files without content", p.skipped)
	}
	if err != nil {
		return err
	}
	return a.sayMoved("fetched", p, bar.n.Load(), time.Since(start))
}

// ownMode is the mode that a local file gets of a tenant's: nobody but its owner writes.
func ownMode(perm uint32) fs.FileMode { return fs.FileMode(perm & 0o755) }

// counted is a progress that can be asked.
type counted struct {
	progress
	n atomic.Int64
}

func (c *counted) Add(n int64) {
	c.n.Add(n)
	c.progress.Add(n)
}

// fetch plans to fetch the directory remote into local.
func (p *plan) fetch(ctx context.Context, c sigma.Namespace, remote, local string, perm uint32) error {
	entries, err := p.extent.readDir(ctx, c, remote)
	if err != nil {
		return err
	}
	p.addDir(local, perm)
	for _, e := range entries {
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

// getFile fetches one file next to its place below to and puts it there when it is whole.
func getFile(ctx context.Context, c sigma.Namespace, to *hostdir.Dir, it item, bar progress) error {
	if st, err := to.Stat(it.local); err == nil && st.IsDir() {
		return &sigma.Error{Op: "sigma.get", Path: it.local, Kind: sigma.KindIsDir, Msg: "is a directory on this machine", Hint: "give another local name"}
	}
	f, err := to.Create(it.local, 0o600)
	if err != nil {
		return err
	}
	defer f.Drop()
	perm, err := fetch(ctx, c, it.remote, f.File, bar)
	if err == nil {
		err = f.Chmod(ownMode(perm) | 0o600)
	}
	if err == nil {
		err = f.Commit()
	}
	return err
}

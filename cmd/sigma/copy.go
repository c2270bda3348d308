package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
)

// hostPrefix marks paths of this host where paths of the realm are meant otherwise.
const hostPrefix = "file:"

func newCpCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "cp [-r] FROM... TO",
		Short: "Copy files within the realm, from and to this host",
		Long: `Copy files. A path with a slash in front is the realm's; any other, such as a.txt, ./texts
or ../texts, is this host's, and so is file:/tmp/a.txt; "-" is standard input or output. What
is copied goes below TO with its name if TO is a directory or ends with /; it may come from
another server than it goes to (from /s3 to /ux, say).

With -r, copy directories with all that is in them. Modes are kept. Links within the realm
are copied as links; endpoints, callable files, and links and devices of this host are
skipped and counted. What is there under the same name is replaced, each file atomically.`,
		Example: `  sudo sigma cp /s3/in/a.txt /s3/in/b.txt
  sudo sigma cp -r /s3/in /ux/~local/in
  sudo sigma cp a.txt b.txt /s3/in/
  sudo sigma cp '/s3/in/*.txt' ./texts/`,
		Args: between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.cp(cmd.Context(), args, moving{recursive: recursive, below: true})
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also directories")
	return cmd
}

// hostPath says whether a word of cp names a file of this host, and which.
func hostPath(word string) (name string, host bool) {
	if rest, ok := strings.CutPrefix(word, hostPrefix); ok {
		if strings.HasPrefix(rest, "//") { // a URL without a host
			rest = "/" + strings.TrimLeft(rest, "/")
		}
		return rest, true
	}
	return word, !strings.HasPrefix(word, "/")
}

func (a *app) cp(ctx context.Context, args []string, o moving) error {
	from, to := slices.Clone(args[:len(args)-1]), args[len(args)-1]
	to, toHost := hostPath(to)
	hosts := 0
	for i, f := range from {
		name, host := hostPath(f)
		if name == "" {
			return usageError(nil, "write . for this directory", "a name is empty")
		}
		if from[i] = name; host {
			hosts++
		}
	}
	switch {
	case to == "":
		return usageError(nil, "write . for this directory", "a name is empty")
	case hosts == len(from) && toHost:
		return usageError(nil, "realm paths begin with /, as in /s3/in/a.txt; between files of this host use cp(1)", "cp: all of these are files of this host")
	case hosts == len(from):
		return a.put(ctx, append(from, to), o)
	case hosts > 0:
		return usageError(nil, "copy them one after the other", "cp: some of these are files of this host and some are the realm's")
	case toHost:
		return a.get(ctx, from, to, o)
	}
	err := a.copyWithin(ctx, from, to, o)
	if sigma.KindOf(err) == sigma.KindNotFound && sigma.HintOf(err) == "" && len(from) == 1 {
		if _, serr := os.Stat(from[0]); serr == nil {
			return &sigma.Error{Op: "sigma.cp", Path: from[0], Kind: sigma.KindNotFound, Msg: "the realm has no such file, but this host has", Hint: "this host's is written file:" + from[0]}
		}
	}
	return err
}

// copyWithin copies within the realm.
func (a *app) copyWithin(ctx context.Context, from []string, typed string, o moving) error {
	to, err := plainPath(typed)
	if err == nil {
		err = cleanPaths(from)
	}
	if err != nil {
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
	below, err := isDirectory(ctx, c, to)
	if err != nil {
		return err
	}
	if !below && len(from) > 1 {
		return notDirectory("sigma.cp", to)
	}
	below = below || strings.HasSuffix(typed, "/")
	var p duplication
	for _, f := range from {
		at := to
		if below {
			at = path.Join(to, path.Base(f))
		}
		if err := p.add(ctx, c, f, at, o.recursive); err != nil {
			return err
		}
	}
	return a.duplicate(ctx, c, &p)
}

func isDirectory(ctx context.Context, c sigma.Namespace, p string) (bool, error) {
	st, err := c.Stat(ctx, p)
	if gone(err) {
		return false, nil
	}
	return err == nil && st.ID.Kind == sigma.KindDir, err
}

func notDirectory(op, p string) error {
	return &sigma.Error{Op: op, Path: p, Kind: sigma.KindNotDir, Msg: "is not a directory", Hint: "make it with: sigma mkdir -p " + p}
}

// duplication is what a copy within the realm has to do.
type duplication struct {
	plan         // files: local is the path to copy to, remote the one to copy from
	links []item // symlinks, likewise
}

// add plans to copy what the user named.
func (p *duplication) add(ctx context.Context, c sigma.Namespace, from, to string, recursive bool) error {
	st, err := c.Stat(ctx, from)
	if err != nil {
		return err
	}
	if err := checkApart(ctx, c, from, to); err != nil {
		return err
	}
	switch {
	case st.ID.Kind == sigma.KindDir && !recursive:
		return &sigma.Error{Op: "sigma.cp", Path: from, Kind: sigma.KindIsDir, Hint: "copy it with all that is in it: sigma cp -r " + from + " " + to}
	case st.ID.Kind == sigma.KindDir:
		return p.copyDir(ctx, c, from, to, st.Perm)
	case st.ID.Kind == sigma.KindCallable:
		return noContent(from)
	}
	p.files = append(p.files, item{local: to, remote: from, size: int64(st.Size)})
	p.bytes += int64(st.Size)
	return nil
}

// checkApart refuses to copy a file on itself and a directory into itself.
func checkApart(ctx context.Context, c sigma.Namespace, from, to string) error {
	if abs, err := c.AbsPath(ctx, from); err == nil {
		from = abs
	}
	at := to
	if dir, err := c.AbsPath(ctx, path.Dir(to)); err == nil {
		at = path.Join(dir, path.Base(to))
	}
	switch {
	case at == from:
		return &sigma.Error{Op: "sigma.cp", Path: to, Kind: sigma.KindInvalid, Msg: "is the file that is to be copied"}
	case strings.HasPrefix(at, strings.TrimSuffix(from, "/")+"/"):
		return &sigma.Error{Op: "sigma.cp", Path: to, Kind: sigma.KindInvalid, Msg: "lies in the directory that is to be copied, " + from}
	}
	return nil
}

func (p *duplication) copyDir(ctx context.Context, c sigma.Namespace, from, to string, perm uint32) error {
	entries, err := p.extent.readDir(ctx, c, from)
	if err != nil {
		return err
	}
	p.plan.addDir(to, perm)
	for _, e := range entries {
		x := item{local: path.Join(to, e.Name), remote: path.Join(from, e.Name), size: int64(e.Size)}
		switch e.ID.Kind {
		case sigma.KindDir:
			st, err := c.Lstat(ctx, x.remote)
			if gone(err) {
				continue // removed since it was listed
			}
			if err == nil {
				err = p.copyDir(ctx, c, x.remote, x.local, st.Perm)
			}
			if err != nil {
				return err
			}
		case sigma.KindSymlink:
			p.links = append(p.links, x)
		case sigma.KindFile, sigma.KindDevice:
			p.files = append(p.files, x)
			p.bytes += x.size
		default:
			p.skipped++
		}
	}
	return nil
}

// duplicate carries a plan out.
func (a *app) duplicate(ctx context.Context, c sigma.Namespace, p *duplication) error {
	start := time.Now()
	for i, dir := range p.dirs {
		make := c.Mkdir
		if i == 0 {
			make = c.MkdirAll
		}
		if err := make(ctx, dir, p.perms[dir]); err != nil && sigma.KindOf(err) != sigma.KindExists {
			return a.explainPut(err, dir)
		}
	}
	bar := &counted{progress: a.progressBytes(fmt.Sprintf("copy %d files", len(p.files)), p.bytes)}
	err := each(ctx, len(p.files), func(ctx context.Context, i int) error {
		return a.explainPut(copyFile(ctx, c, p.files[i], bar), p.files[i].local)
	})
	bar.Done()
	if err != nil {
		return err
	}
	for _, l := range p.links {
		if err := copyLink(ctx, c, l); sigma.KindOf(err) == sigma.KindUnsupported && err != nil {
			p.skipped++
		} else if err != nil {
			return err
		}
	}
	if p.skipped > 0 {
		a.remark("skipped %d endpoints, callable files, and links where none can be", p.skipped)
	}
	return a.sayMoved("copied", p.plan, bar.n.Load(), time.Since(start))
}

func copyFile(ctx context.Context, c sigma.Namespace, it item, bar progress) error {
	s, err := openSource(ctx, c, it.remote)
	if err != nil {
		return err
	}
	defer s.Close()
	return upload(ctx, c, s.reader(), it.local, s.perm, bar)
}

func copyLink(ctx context.Context, c sigma.Namespace, it item) error {
	target, err := c.ReadLink(ctx, it.remote)
	if err != nil {
		return err
	}
	return putLink(ctx, c, target, it.local)
}

// putLink makes a symbolic link in the place of what is there.
func putLink(ctx context.Context, c sigma.Namespace, target, at string) error {
	_, err := c.Put(ctx, at, []byte(target), sigma.PutOptions{Kind: sigma.KindSymlink, Perm: 0o777})
	return err
}

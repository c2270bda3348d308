package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
)

// parallel is how many requests are under way at once where there are many to make: enough to hide round trips, few beside what a session allows.
const parallel = 12

// fileJSON is a file as ls and stat print it. ls without -l fills in what a listing tells.
type fileJSON struct {
	Path      string     `json:"path"`
	Name      string     `json:"name"`
	Kind      string     `json:"kind"`
	Size      uint64     `json:"size"`
	Version   uint64     `json:"version"`
	Perm      string     `json:"perm,omitempty"`
	Modified  *time.Time `json:"modified,omitempty"`
	Owner     string     `json:"owner,omitempty"`
	Ephemeral bool       `json:"ephemeral,omitempty"`
	Target    string     `json:"target,omitempty"` // of a symlink or endpoint
	target    error
}

func (f *fileJSON) fill(st sigma.Stat) {
	f.Kind, f.Size, f.Version = st.ID.Kind.String(), st.Size, uint64(st.ID.Version)
	f.Perm, f.Owner, f.Ephemeral = fmt.Sprintf("%04o", st.Perm), st.Owner, st.Ephemeral
	if !st.Modified.IsZero() && st.Modified.Unix() > 0 {
		f.Modified = &st.Modified
	}
}

func newLsCommand(a *app) *cobra.Command {
	long := false
	cmd := &cobra.Command{
		Use:   "ls [-l] [PATH...]",
		Short: "List directories of the realm",
		Long: `List directories of the realm, / if none is given; of a file, print its name. With -l
also kind, mode bits, size, time of change, and where links lead.`,
		Example: `  sudo sigma ls /s3
  sudo sigma ls -l --json /s3/in`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.ls(cmd.Context(), args, long) },
	}
	cmd.Flags().BoolVarP(&long, "long", "l", false, "print details")
	return cmd
}

func (a *app) ls(ctx context.Context, paths []string, long bool) error {
	if len(paths) == 0 {
		paths = []string{"/"}
	}
	if err := cleanPaths(paths); err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	all := []fileJSON{}
	for i, p := range paths {
		files, err := listOne(ctx, c, p, long)
		if err != nil {
			return err
		}
		if a.json {
			all = append(all, files...)
			continue
		}
		if len(paths) > 1 {
			if i > 0 {
				fmt.Fprintln(a.out)
			}
			fmt.Fprintf(a.out, "%s:\n", printable(p))
		}
		if err := a.printFiles(files, long); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(all)
	}
	return nil
}

func cleanPaths(paths []string) error {
	for i, p := range paths {
		clean, err := cleanPath(p)
		if err != nil {
			return err
		}
		paths[i] = clean
	}
	return nil
}

// listOne gives the entries of the directory p, or p itself if it is none.
func listOne(ctx context.Context, c sigma.Namespace, p string, long bool) ([]fileJSON, error) {
	st, err := c.Stat(ctx, p)
	if err != nil {
		if _, lerr := c.Lstat(ctx, p); lerr != nil {
			return nil, err
		}
		st = sigma.Stat{} // a link that leads nowhere is listed as itself
	}
	var files []fileJSON
	if st.ID.Kind == sigma.KindDir {
		entries, err := c.ReadDir(ctx, p)
		if err != nil {
			return nil, err
		}
		files = make([]fileJSON, len(entries))
		for i, e := range entries {
			files[i] = fileJSON{Path: path.Join(p, e.Name), Name: e.Name, Kind: e.ID.Kind.String(), Size: e.Size, Version: uint64(e.ID.Version)}
		}
		if !long {
			return files, nil
		}
	} else {
		files = []fileJSON{{Path: p, Name: path.Base(p)}}
	}
	err = each(ctx, len(files), func(ctx context.Context, i int) error {
		err := describe(ctx, c, &files[i])
		if sigma.KindOf(err) == sigma.KindNotFound {
			return nil // removed since it was listed
		}
		return err
	})
	return files, err
}

// describe fills in what Lstat tells and where a link leads.
func describe(ctx context.Context, c sigma.Namespace, f *fileJSON) error {
	st, err := c.Lstat(ctx, f.Path)
	if err != nil {
		return err
	}
	f.fill(st)
	if st.ID.Kind == sigma.KindSymlink || st.ID.Kind == sigma.KindEndpoint {
		f.Target, f.target = c.ReadLink(ctx, f.Path)
	}
	return nil
}

// each runs f for 0..n-1, some at once, until one fails.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, parallel) {
		wg.Go(func() {
			for i := range next {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

func (a *app) printFiles(files []fileJSON, long bool) error {
	if !long {
		for _, f := range files {
			if _, err := fmt.Fprintln(a.out, printable(f.Name)); err != nil {
				return err
			}
		}
		return nil
	}
	t := newTable(a.out)
	for _, f := range files {
		modified, name := "-", f.Name
		if f.Modified != nil {
			modified = f.Modified.Local().Format("2006-01-02 15:04")
		}
		if f.Target != "" {
			name += " -> " + f.Target
		}
		size := sigma.Bytes(f.Size).String()
		if f.Kind == sigma.KindDir.String() {
			size = "-"
		}
		t.row(f.Kind, orElse(f.Perm, "-"), size, modified, name)
	}
	return t.print()
}

func newStatCommand(a *app) *cobra.Command {
	link := false
	cmd := &cobra.Command{
		Use:     "stat [--link] PATH...",
		Short:   "Describe files of the realm",
		Long:    `Describe files of the realm. Links are followed; with --link they are described themselves.`,
		Example: `  sudo sigma stat /s3/in/a.txt`,
		Args:    between(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.stat(cmd.Context(), args, link) },
	}
	cmd.Flags().BoolVar(&link, "link", false, "describe a link, not what it leads to")
	return cmd
}

func (a *app) stat(ctx context.Context, paths []string, link bool) error {
	if err := cleanPaths(paths); err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	files := make([]fileJSON, len(paths))
	for i, p := range paths {
		f := &files[i]
		f.Path, f.Name = p, path.Base(p)
		if link {
			if err := describe(ctx, c, f); err != nil {
				return err
			}
			continue
		}
		st, err := c.Stat(ctx, p)
		if err != nil {
			return err
		}
		f.fill(st)
	}
	if a.json {
		return a.printJSON(files)
	}
	t := newTable(a.out)
	for i, f := range files {
		if i > 0 {
			t.row()
		}
		t.row("path", f.Path)
		t.row("kind", f.Kind)
		t.row("size", fmt.Sprintf("%v (%d bytes)", sigma.Bytes(f.Size), f.Size))
		t.row("perm", f.Perm)
		t.row("version", f.Version)
		for _, more := range [][2]string{{"owner", f.Owner}, {"target", f.Target}} {
			if more[1] != "" {
				t.row(more[0], more[1])
			}
		}
		if f.Modified != nil {
			t.row("modified", f.Modified.Local().Format(time.RFC3339Nano))
		}
		if f.Ephemeral {
			t.row("ephemeral", "yes")
		}
	}
	return t.print()
}

func newCatCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "cat PATH...",
		Short:   "Print files of the realm",
		Long:    `Print files of the realm to standard output, one after the other.`,
		Example: `  sudo sigma cat /s3/in/a.txt | head`,
		Args:    between(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.cat(cmd.Context(), args) },
	}
}

func (a *app) cat(ctx context.Context, paths []string) error {
	if err := cleanPaths(paths); err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, p := range paths {
		if err := download(ctx, c, p, a.out, nothing{}); err != nil {
			return err
		}
	}
	return nil
}

// nothing is a progress that nobody sees.
type nothing struct{}

func (nothing) Add(int64) {}
func (nothing) Set(int64) {}
func (nothing) Done()     {}

// download copies a file of the realm to w.
func download(ctx context.Context, c sigma.Namespace, p string, w io.Writer, count progress) error {
	st, err := c.Stat(ctx, p)
	switch {
	case err != nil:
		return err
	case st.ID.Kind == sigma.KindDir:
		return &sigma.Error{Op: "sigma.download", Path: p, Kind: sigma.KindIsDir, Hint: "list it with: sigma ls " + p + "; fetch it with: sigma get -r " + p}
	case st.ID.Kind == sigma.KindCallable:
		return noContent(p)
	}
	return fetch(ctx, c, p, w, count)
}

func noContent(p string) error {
	return &sigma.Error{Op: "sigma.download", Path: p, Kind: sigma.KindUnsupported, Msg: "answers calls and has no content"}
}

// fetch is download of what is known to be a file.
func fetch(ctx context.Context, c sigma.Namespace, p string, w io.Writer, count progress) error {
	h, err := c.Open(ctx, p, sigma.OpenRead)
	if err != nil {
		return err
	}
	defer h.Close()
	if f, err := h.File(); err == nil { // the server passes its file, so the bytes need not go through it
		defer f.Close()
		return pour(ctx, w, f, count)
	}
	return pour(ctx, w, h, count)
}

// localError makes an error of this machine's files read like one of the realm's.
func localError(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return &sigma.Error{Op: "sigma.local", Path: pe.Path, Kind: sigma.KindOf(pe.Err), Msg: "cannot " + pe.Op + " on this machine", Err: pe.Err}
	}
	return err
}

// Package tree lists, reads, copies, changes and watches files of a realm, and holds its leases.
package tree

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return append(a.CompletePaths(
		newLsCommand(a),
		newCatCommand(a),
		newPutCommand(a),
		newGetCommand(a),
		newCpCommand(a),
		newRmCommand(a),
		newMkdirCommand(a),
		newMvCommand(a),
		newStatCommand(a),
		newLnCommand(a),
		newChmodCommand(a),
		newWatchCommand(a),
	), newLeaseCommand(a), newS3Command(a))
}

// FileJSON is a file as ls and stat print it. ls without -l fills in what a listing tells.
type FileJSON struct {
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
	// more than 0: the name service did not answer, and this was known so long ago
	StaleMS int64 `json:"stale_ms,omitempty"`
	target  error
}

// marked notes in files that they are what was known long ago, if they are.
func marked(files []FileJSON, age *sigma.Age) {
	for i := range files {
		if age != nil {
			files[i].StaleMS = age.Most().Milliseconds()
		}
	}
}

func (f *FileJSON) fill(st sigma.Stat) {
	f.Kind, f.Size, f.Version = st.ID.Kind.String(), st.Size, uint64(st.ID.Version)
	f.Perm, f.Owner, f.Ephemeral = fmt.Sprintf("%04o", st.Perm), st.Owner, st.Ephemeral
	if !st.Modified.IsZero() && st.Modified.Unix() > 0 {
		f.Modified = &st.Modified
	}
}

type lsOptions struct{ long, recursive, itself, watch bool }

func newLsCommand(a *app) *cobra.Command {
	var o lsOptions
	cmd := &cobra.Command{
		Use:   "ls [-l] [-R] [-d] [-w] [--stale] [PATH...]",
		Short: "List directories of the realm",
		Long: `List directories of the realm, / if none is given; of a file, print its path. With -l
also kind, mode bits, size, time of change, and where links lead. -R lists the directories
below too, not going through links and endpoints; -d names directories instead of listing
them. With -w go on and print changes as they happen, as "sigma watch" does.

On a terminal, names that a shell would not read as one word are quoted.`,
		Example: `  sudo sigma ls /s3
  sudo sigma ls -l --json /s3/in
  sudo sigma ls -d '/s3/in/*.txt'
  sudo sigma ls -w /s3/in`,
		Args: cli.Between(0, -1),
	}
	a.Reading(cmd, func(ctx context.Context, args []string, age *sigma.Age) error { return a.ls(ctx, args, o, age) })
	f := cmd.Flags()
	f.BoolVarP(&o.long, "long", "l", false, "print details")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "list directories below too")
	f.BoolVarP(&o.itself, "directory", "d", false, "name directories, do not list them")
	f.BoolVarP(&o.watch, "watch", "w", false, "go on printing changes")
	return cmd
}

// listed is what ls prints together: a directory and its entries, or files that were named.
type listed struct {
	dir   string // "" = files that were named
	files []FileJSON
}

func (a *app) ls(ctx context.Context, paths []string, o lsOptions, age *sigma.Age) error {
	if o.watch && o.recursive {
		return cli.UsageError(nil, "name the directories to watch", "-w does not go with -R")
	}
	if len(paths) == 0 {
		paths = []string{"/"}
	}
	c, paths, err := a.connectFor(ctx, paths)
	if err != nil {
		return err
	}
	if o.watch {
		return a.lsAndWatch(ctx, c, paths, o)
	}
	lists, errs := listAll(ctx, c, paths, o)
	if len(errs) == len(paths) || ctx.Err() != nil {
		return a.Failed(errs)
	}
	if err := a.printListed(lists, o, age); err != nil {
		return err
	}
	return a.Failed(errs)
}

func (a *app) printListed(lists []listed, o lsOptions, age *sigma.Age) error {
	if a.JSON {
		all := []FileJSON{}
		for _, l := range lists {
			marked(l.files, age)
			all = append(all, l.files...)
		}
		return a.PrintJSON(all)
	}
	return a.printLists(lists, o.long)
}

// listAll lists the files that were named first, as people expect, then the directories, and says
// why what cannot be listed.
func listAll(ctx context.Context, c sigma.Namespace, paths []string, o lsOptions) (lists []listed, errs []error) {
	named, realm := listed{}, files.OfRealm(c)
	list := func(dir string, entries []sigma.DirEntry) error {
		l := listed{dir: dir, files: make([]FileJSON, len(entries))}
		for i, e := range entries {
			l.files[i] = entryJSON(dir, e)
		}
		lists = append(lists, l)
		if o.long {
			return describeAll(ctx, c, l.files)
		}
		return nil
	}
	for _, p := range paths {
		itself, err := o.meansItself(ctx, c, p)
		switch {
		case err != nil:
		case itself:
			f := FileJSON{Path: p, Name: path.Base(p)}
			if err = describe(ctx, c, &f); err == nil {
				named.files = append(named.files, f)
			}
		case o.recursive:
			err = files.Walk(ctx, realm, p, list)
		default:
			var entries []sigma.DirEntry
			if entries, err = realm.List(ctx, p); err == nil {
				err = list(p, entries)
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(named.files) > 0 {
		lists = append([]listed{named}, lists...)
	}
	return lists, errs
}

// meansItself says whether p is listed itself, and not what is in it.
func (o lsOptions) meansItself(ctx context.Context, c sigma.Namespace, p string) (bool, error) {
	if o.itself {
		return true, nil
	}
	st, err := c.Stat(ctx, p)
	if err != nil {
		_, lerr := c.Lstat(ctx, p)
		if lerr != nil {
			return false, err
		}
	}
	return err != nil || st.ID.Kind != sigma.KindDir, nil // a link that leads nowhere is listed as itself
}

func (a *app) printLists(lists []listed, long bool) error {
	for i, l := range lists {
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		if l.dir != "" && len(lists) > 1 {
			fmt.Fprintf(a.Out, "%s:\n", a.Shown(l.dir))
		}
		if err := a.printFiles(l.files, l.dir == "", long); err != nil {
			return err
		}
	}
	return nil
}

// connectFor opens the realm and gives the files that were typed.
func (a *app) connectFor(ctx context.Context, typed []string) (c *sdk.Client, paths []string, err error) {
	typed = slices.Clone(typed)
	if err := cleanPaths(typed); err != nil {
		return nil, nil, err
	}
	if c, err = a.Client(ctx); err == nil {
		paths, err = files.Expand(ctx, c, typed)
	}
	return c, paths, err
}

func cleanPaths(paths []string) error {
	for i, p := range paths {
		clean, err := cli.CleanPath(p)
		if err != nil {
			return err
		}
		paths[i] = clean
	}
	return nil
}

func entryJSON(dir string, e sigma.DirEntry) FileJSON {
	return FileJSON{Path: path.Join(dir, e.Name), Name: e.Name, Kind: e.ID.Kind.String(), Size: e.Size,
		Version: uint64(e.ID.Version)}
}

// describeAll is describe for many; what was removed since it was listed is left as it is.
func describeAll(ctx context.Context, c sigma.Namespace, all []FileJSON) error {
	return files.Each(ctx, len(all), func(ctx context.Context, i int) error {
		err := describe(ctx, c, &all[i])
		if sigma.KindOf(err) == sigma.KindNotFound {
			return nil
		}
		return err
	})
}

// describe fills in what Lstat tells and where a link leads.
func describe(ctx context.Context, c sigma.Namespace, f *FileJSON) error {
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

// forAll does something for each of the paths that the user named, some at once. It goes on after
// one for which it fails: the errors are printed in the order of the paths, and the exit code is
// that of the first.
func (a *app) forAll(ctx context.Context, paths []string, do func(ctx context.Context, i int) error) error {
	errs := make([]error, len(paths))
	if err := files.Each(ctx, len(paths), func(ctx context.Context, i int) error {
		errs[i] = do(ctx, i)
		return ctx.Err()
	}); err != nil {
		return err
	}
	return a.Failed(errs)
}

// printFiles prints entries of a directory by their names, files that were named by their paths.
func (a *app) printFiles(files []FileJSON, named, long bool) error {
	name := func(f FileJSON) string {
		if named {
			return a.Shown(f.Path)
		}
		return a.Shown(f.Name)
	}
	if !long {
		for _, f := range files {
			if _, err := fmt.Fprintln(a.Out, name(f)); err != nil {
				return err
			}
		}
		return nil
	}
	t := term.NewTable(a.Out)
	for _, f := range files {
		modified, name := "-", name(f)
		if f.Modified != nil {
			modified = f.Modified.Local().Format("2006-01-02 15:04")
		}
		if f.Target != "" {
			name += " -> " + a.Shown(f.Target)
		}
		size := sigma.Bytes(f.Size).String()
		if f.Kind == sigma.KindDir.String() {
			size = "-"
		}
		t.Row(f.Kind, cli.OrElse(f.Perm, "-"), size, modified, name)
	}
	return t.Print()
}

func newStatCommand(a *app) *cobra.Command {
	link := false
	cmd := &cobra.Command{
		Use:   "stat [--link] [--stale] PATH...",
		Short: "Describe files of the realm",
		Long: `Describe files of the realm: kind, size, mode bits, version, time of change. Links are
followed; with --link they are described themselves.`,
		Example: `  sudo sigma stat /s3/in/a.txt
  sudo sigma stat --json '/s3/in/*.txt'`,
		Args: cli.Between(1, -1),
	}
	a.Reading(cmd, func(ctx context.Context, args []string, age *sigma.Age) error {
		return a.stat(ctx, args, link, age)
	})
	cmd.Flags().BoolVar(&link, "link", false, "describe a link, not what it leads to")
	return cmd
}

func (a *app) stat(ctx context.Context, paths []string, link bool, age *sigma.Age) error {
	c, paths, err := a.connectFor(ctx, paths)
	if err != nil {
		return err
	}
	var files []FileJSON
	var errs []error
	for _, p := range paths {
		f := FileJSON{Path: p, Name: path.Base(p)}
		err := describeOrFollow(ctx, c, &f, link)
		if errs = append(errs, err); err == nil {
			files = append(files, f)
		}
	}
	if len(files) == 0 || ctx.Err() != nil {
		return a.Failed(errs)
	}
	marked(files, age)
	if a.JSON {
		err = a.PrintJSON(files)
	} else {
		err = a.printStats(files)
	}
	if err != nil {
		return err
	}
	return a.Failed(errs)
}

// describeOrFollow fills in what is known of a file, or of the link itself.
func describeOrFollow(ctx context.Context, c sigma.Namespace, f *FileJSON, link bool) error {
	if link {
		return describe(ctx, c, f)
	}
	st, err := c.Stat(ctx, f.Path)
	if err == nil {
		f.fill(st)
	}
	return err
}

func (a *app) printStats(files []FileJSON) error {
	t := term.NewTable(a.Out)
	for i, f := range files {
		if i > 0 {
			t.Row()
		}
		t.Pairs("path", a.Shown(f.Path), "kind", f.Kind,
			"size", fmt.Sprintf("%v (%d bytes)", sigma.Bytes(f.Size), f.Size), "perm", f.Perm, "version", f.Version)
		for _, more := range [][2]string{{"owner", f.Owner}, {"target", f.Target}} {
			if more[1] != "" {
				t.Row(more[0], a.Shown(more[1]))
			}
		}
		if f.Modified != nil {
			t.Row("modified", f.Modified.Local().Format(time.RFC3339Nano))
		}
		if f.Ephemeral {
			t.Row("ephemeral", "yes")
		}
	}
	return t.Print()
}

package tree

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sigma"
)

// wellKnown are the places of a realm's tree that the system put there and without which the realm
// is of little use.
var wellKnown = []string{"/", cli.BinDir, cli.BucketsDir, "/ux", "/proc", "/sys"}

func checkNotWellKnown(verb, p string) error {
	if !slices.Contains(wellKnown, p) {
		return nil
	}
	return &sigma.Error{Op: "sigma." + verb, Path: p, Kind: sigma.KindPermission,
		Msg: "belongs to every realm's tree and stays", Hint: "name what is below it"}
}

func newRmCommand(a *app) *cobra.Command {
	var recursive, force bool
	cmd := &cobra.Command{
		Use:   "rm [-r] [-f] PATH...",
		Short: "Remove files of the realm",
		Long: `Remove files and links of the realm; with -r also directories with all that is in them,
not going through links. A bucket is a directory: "sigma rm -r /s3/NAME". With -f it is
no failure if there is no such file.`,
		Example: `  sudo sigma rm /s3/in/a.txt
  sudo sigma rm '/s3/in/*.tmp'
  sudo sigma rm -r /s3/in`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.rm(cmd.Context(), args, recursive, force) },
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also directories")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "no failure if there is no such file")
	return cmd
}

func (a *app) rm(ctx context.Context, paths []string, recursive, force bool) error {
	if err := cleanPaths(paths); err != nil {
		return err
	}
	for _, p := range paths {
		if err := checkNotWellKnown("rm", p); err != nil {
			return err
		}
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	if paths, err = expandForRm(ctx, c, paths, force); err != nil {
		return err
	}
	return a.forAll(ctx, paths, func(ctx context.Context, i int) error {
		p := paths[i]
		st, err := c.Lstat(ctx, p)
		switch {
		case force && sigma.KindOf(err) == sigma.KindNotFound && err != nil:
			return nil
		case err != nil:
		case st.ID.Kind != sigma.KindDir:
			err = c.Remove(ctx, p)
		case recursive:
			err = c.RemoveAll(ctx, p)
		default:
			err = &sigma.Error{Op: "sigma.rm", Path: p, Kind: sigma.KindIsDir,
				Hint: "remove it with all that is in it: sigma rm -r " + p}
		}
		return err
	})
}

// expandForRm is expand that forgives what is not there, if forced, and keeps what belongs to the
// system.
func expandForRm(ctx context.Context, c sigma.Namespace, paths []string, force bool) (all []string, err error) {
	for _, p := range paths {
		found, err := files.ExpandOne(ctx, c, p)
		if force && files.Gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	for _, p := range all {
		if err := checkNotWellKnown("rm", p); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func newMkdirCommand(a *app) *cobra.Command {
	parents := false
	cmd := &cobra.Command{
		Use:   "mkdir [-p] PATH...",
		Short: "Make directories and buckets in the realm",
		Long: `Make directories in the realm; a directory of /s3 is a bucket. With -p also those on the
way, and it is no failure if one exists.`,
		Example: `  sudo sigma mkdir /s3/in
  sudo sigma mkdir -p /s3/in/a/b`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.mkdir(cmd.Context(), args, parents) },
	}
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "make directories on the way; they may exist")
	return cmd
}

func (a *app) mkdir(ctx context.Context, paths []string, parents bool) error {
	paths, err := cli.PlainPaths(paths)
	if err != nil {
		return err
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	for _, p := range paths {
		make := c.Mkdir
		if parents {
			make = c.MkdirAll
		}
		err := make(ctx, p, 0o755)
		var e *sigma.Error
		if errors.As(err, &e) && e.Kind == sigma.KindNotFound && e.Hint == "" {
			hinted := *e
			hinted.Hint = "make the directories on the way too: sigma mkdir -p " + p
			return &hinted
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func newLnCommand(a *app) *cobra.Command {
	symbolic, force := false, false
	cmd := &cobra.Command{
		Use:   "ln -s [-f] TARGET PATH",
		Short: "Make a symbolic link in the realm",
		Long: `Make a symbolic link at PATH that leads to TARGET: an absolute path of the realm, or one
relative to the link's directory. TARGET need not exist. If PATH ends with / or is a
directory, the link is made below it with TARGET's name. With -f a file or link at PATH is
replaced, in one step. There are no other links, so -s must be given.`,
		Example: `  sudo sigma ln -s /s3/in /input
  sudo sigma ln -sf /s3/new /input`,
		Args: cli.Between(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !symbolic {
				return cli.UsageError(cmd, "make a symbolic link: sigma ln -s "+args[0]+" "+args[1],
					"there are no hard links in sigmaOS")
			}
			return a.ln(cmd.Context(), args[0], args[1], force)
		},
	}
	cmd.Flags().BoolVarP(&symbolic, "symbolic", "s", false, "make a symbolic link")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace what is at PATH")
	return cmd
}

func (a *app) ln(ctx context.Context, target, at string, force bool) error {
	into := strings.HasSuffix(at, "/")
	at, err := cli.PlainPath(at)
	if err != nil {
		return err
	}
	check := target
	if !strings.HasPrefix(check, "/") && check != "" {
		check = "/" + check
	}
	if _, err := cli.CleanPath(check); err != nil {
		return err
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	if st, err := c.Lstat(ctx, at); err == nil && st.ID.Kind == sigma.KindDir {
		into = true
	}
	if into {
		at = path.Join(at, path.Base(target))
	}
	if force {
		return files.OfRealm(c).PutLink(ctx, target, at)
	}
	return c.Symlink(ctx, target, at)
}

func newMvCommand(a *app) *cobra.Command {
	copies := false
	cmd := &cobra.Command{
		Use:   "mv [--copy] FROM... TO",
		Short: "Move or rename files of the realm",
		Long: `Move or rename files and directories of the realm. If TO ends with / or is a directory,
they are moved below it with their names. A file at TO is replaced. Each is moved in one
step: others see it here or there.

A move cannot go from one server to another (from /s3 to /ux, say); with --copy what must be
is copied and then removed, which others can see. What cannot be copied, such as endpoints,
stops it before anything is removed.`,
		Example: `  sudo sigma mv /s3/in/a.txt /s3/in/b.txt
  sudo sigma mv --copy /s3/in/b.txt /ux/~local/`,
		Args: cli.Between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.mv(cmd.Context(), args, copies) },
	}
	cmd.Flags().BoolVar(&copies, "copy", false, "copy and remove what goes to another server")
	return cmd
}

func (a *app) mv(ctx context.Context, args []string, copies bool) error {
	typed, from := args[len(args)-1], slices.Clone(args[:len(args)-1])
	to, err := cli.PlainPath(typed)
	if err != nil {
		return err
	}
	c, from, err := a.connectFor(ctx, from)
	if err != nil {
		return err
	}
	into, err := isDirectory(ctx, c, to)
	if err != nil {
		return err
	}
	if !into && (len(from) > 1 || strings.HasSuffix(typed, "/")) {
		return notDirectory("sigma.mv", to)
	}
	for _, p := range from {
		at := to
		if into {
			at = path.Join(to, path.Base(p))
		}
		if err := checkNotWellKnown("mv", p); err != nil {
			return err
		}
		err := c.Rename(ctx, p, at)
		if sigma.KindOf(err) == sigma.KindUnsupported && err != nil {
			err = a.moveByCopy(ctx, c, p, at, copies, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// moveByCopy moves what cannot be renamed, if the user wants that.
func (a *app) moveByCopy(ctx context.Context, c sigma.Namespace, from, to string, copies bool, cause error) error {
	if !copies {
		return &sigma.Error{Op: "sigma.mv", Path: from, Kind: sigma.KindUnsupported,
			Msg:  "a rename cannot go to another server",
			Hint: "copy it there and remove it here, which others can see: sigma mv --copy " + from + " " + to}
	}
	st, err := c.Lstat(ctx, from)
	if err != nil {
		return err
	}
	realm := files.OfRealm(c)
	p := &files.Copy{To: realm}
	switch st.ID.Kind {
	case sigma.KindSymlink, sigma.KindFile, sigma.KindDir, sigma.KindDevice:
		if err = checkApart(ctx, c, from, to); err == nil {
			err = p.Add(ctx, realm, from, st, to)
		}
	default:
		err = &sigma.Error{Op: "sigma.mv", Path: from, Kind: sigma.KindUnsupported,
			Msg: "a " + st.ID.Kind.String() + " cannot be copied", Err: cause}
	}
	if err == nil && p.Skipped == 0 {
		err = a.carryOut(ctx, p, moving{verb: "copy", done: "copied", skips: "links where none can be"}, []string{from})
	}
	if err == nil && p.Skipped > 0 {
		err = &sigma.Error{Op: "sigma.mv", Path: from, Kind: sigma.KindUnsupported,
			Msg:  "there are links or endpoints in it that cannot be copied there",
			Hint: "nothing was removed; copy what you need with: sigma cp -r"}
	}
	if err != nil {
		return err
	}
	return c.RemoveAll(ctx, from)
}

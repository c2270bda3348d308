package main

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
)

// wellKnown are the places of a realm's tree that the system put there and without which the realm is of little use.
var wellKnown = []string{"/", binDir, bucketsDir, "/ux", "/proc", "/sys"}

func checkNotWellKnown(verb, p string) error {
	if !slices.Contains(wellKnown, p) {
		return nil
	}
	return &sigma.Error{Op: "sigma." + verb, Path: p, Kind: sigma.KindPermission, Msg: "belongs to every realm's tree and stays", Hint: "name what is below it"}
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
  sudo sigma rm -r /s3/in`,
		Args: between(1, -1),
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
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, p := range paths {
		st, err := c.Lstat(ctx, p)
		switch {
		case force && sigma.KindOf(err) == sigma.KindNotFound && err != nil:
			continue
		case err != nil:
		case st.ID.Kind != sigma.KindDir:
			err = c.Remove(ctx, p)
		case recursive:
			err = c.RemoveAll(ctx, p)
		default:
			err = &sigma.Error{Op: "sigma.rm", Path: p, Kind: sigma.KindIsDir, Hint: "remove it with all that is in it: sigma rm -r " + p}
		}
		if err != nil {
			return err
		}
	}
	return nil
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
		Args: between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.mkdir(cmd.Context(), args, parents) },
	}
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "make directories on the way; they may exist")
	return cmd
}

func (a *app) mkdir(ctx context.Context, paths []string, parents bool) error {
	if err := cleanPaths(paths); err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
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

func newMvCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "mv FROM... TO",
		Short: "Move or rename files of the realm",
		Long: `Move or rename files and directories of the realm. If TO ends with / or is a directory,
they are moved below it with their names. A file at TO is replaced. A move cannot go
from one server to another (from /s3 to /ux, say): copy with get and put.`,
		Example: `  sudo sigma mv /s3/in/a.txt /s3/in/b.txt`,
		Args:    between(2, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.mv(cmd.Context(), args) },
	}
}

func (a *app) mv(ctx context.Context, args []string) error {
	into := strings.HasSuffix(args[len(args)-1], "/")
	paths := slices.Clone(args)
	if err := cleanPaths(paths); err != nil {
		return err
	}
	from, to := paths[:len(paths)-1], paths[len(paths)-1]
	for _, p := range from {
		if err := checkNotWellKnown("mv", p); err != nil {
			return err
		}
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if st, err := c.Stat(ctx, to); err == nil && st.ID.Kind == sigma.KindDir {
		into = true
	} else if len(from) > 1 || into {
		return &sigma.Error{Op: "sigma.mv", Path: to, Kind: sigma.KindNotDir, Msg: "is not a directory", Hint: "make it with: sigma mkdir -p " + to}
	}
	for _, p := range from {
		at := to
		if into {
			at = path.Join(to, path.Base(p))
		}
		if err := c.Rename(ctx, p, at); err != nil {
			return err
		}
	}
	return nil
}

func newLnCommand(a *app) *cobra.Command {
	symbolic := false
	cmd := &cobra.Command{
		Use:   "ln -s TARGET PATH",
		Short: "Make a symbolic link in the realm",
		Long: `Make a symbolic link at PATH that leads to TARGET: an absolute path of the realm, or one
relative to the link's directory. TARGET need not exist. There are no other links, so -s
must be given.`,
		Example: `  sudo sigma ln -s /s3/in /input`,
		Args:    between(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !symbolic {
				return usageError(cmd, "make a symbolic link: sigma ln -s "+args[0]+" "+args[1], "there are no hard links in sigmaOS")
			}
			return a.ln(cmd.Context(), args[0], args[1])
		},
	}
	cmd.Flags().BoolVarP(&symbolic, "symbolic", "s", false, "make a symbolic link")
	return cmd
}

func (a *app) ln(ctx context.Context, target, at string) error {
	into := strings.HasSuffix(at, "/")
	at, err := cleanPath(at)
	if err != nil {
		return err
	}
	check := target
	if !strings.HasPrefix(check, "/") && check != "" {
		check = "/" + check
	}
	if _, err := cleanPath(check); err != nil {
		return err
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if into {
		at = path.Join(at, path.Base(target))
	}
	return c.Symlink(ctx, target, at)
}

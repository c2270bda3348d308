package main

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
)

func newStatCommand(a *app) *cobra.Command {
	link := false
	cmd := &cobra.Command{
		Use:   "stat [--link] PATH...",
		Short: "Describe files of the realm",
		Long: `Describe files of the realm: kind, size, mode bits, version, time of change. Links are
followed; with --link they are described themselves.`,
		Example: `  sudo sigma stat /s3/in/a.txt
  sudo sigma stat --json '/s3/in/*.txt'`,
		Args: between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.stat(cmd.Context(), args, link) },
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
	if paths, err = expand(ctx, c, paths); err != nil {
		return err
	}
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
	return a.printStats(files)
}

func (a *app) printStats(files []fileJSON) error {
	t := newTable(a.out)
	for i, f := range files {
		if i > 0 {
			t.row()
		}
		t.row("path", a.shown(f.Path))
		t.row("kind", f.Kind)
		t.row("size", fmt.Sprintf("%v (%d bytes)", sigma.Bytes(f.Size), f.Size))
		t.row("perm", f.Perm)
		t.row("version", f.Version)
		for _, more := range [][2]string{{"owner", f.Owner}, {"target", f.Target}} {
			if more[1] != "" {
				t.row(more[0], a.shown(more[1]))
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

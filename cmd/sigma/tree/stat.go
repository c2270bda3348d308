package tree

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

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
	defer c.Close()
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
		t.Row("path", a.Shown(f.Path))
		t.Row("kind", f.Kind)
		t.Row("size", fmt.Sprintf("%v (%d bytes)", sigma.Bytes(f.Size), f.Size))
		t.Row("perm", f.Perm)
		t.Row("version", f.Version)
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

package tree

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/files"
	"sigmaos.dev/sigma"
)

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
	defer c.Close()
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

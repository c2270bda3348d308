package tree

import (
	"context"
	"strings"
	"testing"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/sigma"
)

// endless is a name space of directories that have two of themselves in them.
type endless struct {
	sigma.Namespace
	asked int
	name  string
}

func (e *endless) Stat(context.Context, string) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir}, Perm: 0o777}, nil
}

func (e *endless) Lstat(ctx context.Context, p string) (sigma.Stat, error) { return e.Stat(ctx, p) }

func (e *endless) ReadDir(context.Context, string) ([]sigma.DirEntry, error) {
	e.asked++
	return []sigma.DirEntry{{Name: e.name, ID: sigma.FileID{Kind: sigma.KindDir}},
		{Name: "b", ID: sigma.FileID{Kind: sigma.KindDir}}}, nil
}

// Goal: ls -R, get -r, cp -r, mv --copy and chmod -R of a tree that has no end fail soon, and say
// why.
func TestEndlessTrees(t *testing.T) {
	ctx, dir := t.Context(), sigma.Stat{ID: sigma.FileID{Kind: sigma.KindDir}, Perm: 0o777}
	for what, do := range map[string]func(c sigma.Namespace) error{
		"ls -R": func(c sigma.Namespace) error {
			_, errs := listAll(ctx, c, []string{"/t"}, lsOptions{recursive: true})
			return errs[0]
		},
		"get -r": func(c sigma.Namespace) error {
			return (&files.Copy{To: (*files.Host)(nil)}).Add(ctx, files.OfRealm(c), "/t", dir, "")
		},
		"cp -r": func(c sigma.Namespace) error {
			return (&files.Copy{To: files.OfRealm(c)}).Add(ctx, files.OfRealm(c), "/t", dir, "/u")
		},
		"chmod -R": func(c sigma.Namespace) error {
			_, err := chmodBelow(ctx, files.OfRealm(c), "/t", true)
			return err
		},
	} {
		e := &endless{name: "a"}
		err := do(e)
		if sigma.KindOf(err) != sigma.KindTooBig || !strings.Contains(err.Error(), "perhaps no end") ||
			sigma.HintOf(err) == "" || e.asked > 2*sigma.DepthMax {
			t.Errorf("%s: after %d directories: %v", what, e.asked, err)
		}
	}
}

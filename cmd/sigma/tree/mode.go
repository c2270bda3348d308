package tree

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sigma"
)

func newChmodCommand(a *app) *cobra.Command {
	recursive := false
	cmd := &cobra.Command{
		Use:   "chmod [-R] MODE PATH...",
		Short: "Change mode bits of files of the realm",
		Long: `Change the mode bits of files and directories of the realm. MODE is octal, as 640, or
symbolic, as u+x,go-w or a=r, as in chmod(1); letters are u, g, o, a and r, w, x, X. Links
are followed, but with -R only those that were named.`,
		Example: `  sudo sigma chmod 600 /secret
  sudo sigma chmod -R go-w /ux/~local/work`,
		Args: cli.Between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.chmod(cmd.Context(), args[0], args[1:], recursive)
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "also what is in directories")
	return cmd
}

// modeClause is one of the parts of a symbolic mode: u+x.
type modeClause struct {
	who   uint32 // bits of the classes: 0700, 0070, 0007
	op    byte
	perms string
}

// parseMode gives what a mode makes of the bits of a file.
func parseMode(text string) (func(perm uint32, dir bool) uint32, error) {
	if n, err := strconv.ParseUint(text, 8, 32); err == nil {
		if n > 0o777 {
			return nil, modeError(text)
		}
		return func(uint32, bool) uint32 { return uint32(n) }, nil
	}
	var clauses []modeClause
	for part := range strings.SplitSeq(text, ",") {
		var c modeClause
		i := 0
		for ; i < len(part) && strings.IndexByte("ugoa", part[i]) >= 0; i++ {
			c.who |= map[byte]uint32{'u': 0o700, 'g': 0o070, 'o': 0o007, 'a': 0o777}[part[i]]
		}
		if i == 0 {
			c.who = 0o777
		}
		if i == len(part) || strings.IndexByte("+-=", part[i]) < 0 || strings.Trim(part[i+1:], "rwxX") != "" {
			return nil, modeError(text)
		}
		c.op, c.perms = part[i], part[i+1:]
		clauses = append(clauses, c)
	}
	return func(perm uint32, dir bool) uint32 {
		for _, c := range clauses {
			perm = c.apply(perm, dir)
		}
		return perm
	}, nil
}

func (c modeClause) apply(perm uint32, dir bool) uint32 {
	var bits uint32
	for i := range len(c.perms) {
		switch c.perms[i] {
		case 'r':
			bits |= 0o444
		case 'w':
			bits |= 0o222
		case 'x':
			bits |= 0o111
		case 'X':
			if dir || perm&0o111 != 0 {
				bits |= 0o111
			}
		}
	}
	bits &= c.who
	switch c.op {
	case '+':
		return perm | bits
	case '-':
		return perm &^ bits
	}
	return perm&^c.who | bits
}

func modeError(text string) error {
	return cli.UsageError(nil, "write for example 640, u+x or go-w", "%.80q is not a mode", text)
}

func (a *app) chmod(ctx context.Context, mode string, paths []string, recursive bool) error {
	change, err := parseMode(mode)
	if err != nil {
		return err
	}
	c, paths, err := a.connectFor(ctx, paths)
	if err != nil {
		return err
	}
	var all []string
	realm := files.OfRealm(c)
	for _, p := range paths {
		below, err := chmodBelow(ctx, realm, p, recursive)
		if err != nil {
			return err
		}
		all = append(append(all, below...), p)
	}
	return files.Each(ctx, len(all), func(ctx context.Context, i int) error {
		err := chmodOne(ctx, c, all[i], change)
		if recursive && files.Gone(err) {
			return nil // removed since it was listed
		}
		return err
	})
}

// chmodBelow gives what is below p, children first, so that a mode that forbids to list does not
// stand in the way.
func chmodBelow(ctx context.Context, realm *files.Realm, p string, recursive bool) (all []string, err error) {
	if !recursive {
		return nil, nil
	}
	err = files.Walk(ctx, realm, p, func(dir string, entries []sigma.DirEntry) error {
		for _, e := range entries {
			if e.ID.Kind == sigma.KindDir || e.ID.Kind == sigma.KindFile {
				all = append(all, path.Join(dir, e.Name))
			}
		}
		return nil
	})
	if files.Gone(err) || sigma.KindOf(err) == sigma.KindUnsupported { // it is no directory
		err = nil
	}
	slices.Reverse(all)
	return all, err
}

func chmodOne(ctx context.Context, c sigma.Namespace, p string, change func(uint32, bool) uint32) error {
	st, err := c.Stat(ctx, p)
	if err != nil {
		return err
	}
	perm := change(st.Perm, st.ID.Kind == sigma.KindDir)
	if perm == st.Perm {
		return nil
	}
	err = c.SetStat(ctx, p, sigma.StatChange{Perm: &perm})
	if sigma.KindOf(err) == sigma.KindUnsupported && err != nil {
		return &sigma.Error{Op: "sigma.chmod", Path: p, Kind: sigma.KindUnsupported,
			Msg: fmt.Sprintf("its server keeps no modes (it has %04o)", st.Perm), Err: err}
	}
	return err
}

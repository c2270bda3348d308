package cli

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
)

// BucketsDir is where buckets are.
const BucketsDir = "/s3"

// BinDir is where programs live in a realm.
const BinDir = "/bin"

// CleanPath makes a realm path of what a person typed. Double and trailing slashes are forgiven;
// what else is wrong is said, and a mistake in the command line.
func CleanPath(typed string) (string, error) {
	if len(typed) <= 2*sigma.PathMax && strings.HasPrefix(typed, "/") {
		typed = resolve.Clean(typed)
	}
	_, err := sigma.ParsePath(typed)
	return typed, WithCode(ExitUsage, err)
}

// PlainPath is CleanPath for a path where nothing is looked up: what is to be made.
func PlainPath(typed string) (string, error) {
	p, err := CleanPath(typed)
	return files.Unquoted(p), err
}

// PlainPaths is PlainPath of each.
func PlainPaths(typed []string) ([]string, error) {
	paths := make([]string, len(typed))
	for i, t := range typed {
		p, err := PlainPath(t)
		if err != nil {
			return nil, err
		}
		paths[i] = p
	}
	return paths, nil
}

// completeMax is how long a shell that completes a path waits for the realm.
const completeMax = 2 * time.Second

// CompletePaths lets shells complete paths of the realm, in commands that take any; what is no path
// of the realm is completed as a file of the host.
func (a *App) CompletePaths(commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.ValidArgsFunction = a.Complete
	}
	return commands
}

func (a *App) Complete(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	if !strings.HasPrefix(word, "/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completeMax)
	defer cancel()
	dir, err := CleanPath(path.Dir(word + "x"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := a.Client(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	entries, err := c.ReadDir(ctx, dir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, e := range entries {
		p := path.Join(dir, e.Name)
		if e.ID.Kind == sigma.KindDir || e.ID.Kind == sigma.KindEndpoint {
			p += "/"
		}
		if strings.HasPrefix(p, word) && term.Harmless(p) {
			out = append(out, p)
		}
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if len(out) == 1 && strings.HasSuffix(out[0], "/") {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return out, directive
}

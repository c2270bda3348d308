package cli

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

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
	c, err := a.Connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
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

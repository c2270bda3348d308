package cli

import (
	"github.com/spf13/cobra"
)

// Group is a group of commands under a title, as "sigma help" shows them.
type Group struct {
	ID, Title string
	Commands  []*cobra.Command
}

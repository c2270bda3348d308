package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
)

type versionJSON struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Long: `Print the version of this program and what it was built from and with. It does not
ask the system that runs; "sigma status" does.`,
		Example: `  sigma version
  sigma version --json`,
		RunE: func(*cobra.Command, []string) error { return version(a) },
	}
}

func version(a *cli.App) error {
	v := builtFrom()
	if a.JSON {
		return a.PrintJSON(v)
	}
	revision := v.Revision
	if v.Modified {
		revision += " (modified)"
	}
	_, err := fmt.Fprintf(a.Out, "%s\n%s %s\n", strings.TrimSpace("sigma "+v.Version+" "+revision), v.Go, v.Platform)
	return err
}

// unreleased is the version of what was built of sources that have none.
const unreleased = "unreleased"

func builtFrom() versionJSON {
	v := versionJSON{Version: unreleased, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

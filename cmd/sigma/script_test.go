package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
)

// noRaceSleep keeps programs that are built with the race detector from sleeping a second at their
// end.
const noRaceSleep = "GORACE=atexit_sleep_ms=0"

// TestMain lets this test binary be other programs: sigma in scripts, and a launcher in tests of
// up.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "launcher":
		os.Exit(fakeLauncher())
	case "sigmaUnderTest":
		main()
	}
	testscript.Main(m, map[string]func(){"sigma": main})
}

// The scripts show what a person sees without a running system: help, mistakes, exit codes.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars, noRaceSleep)
			return nil
		}})
}

// Every verb has all parts of a help text.
func TestHelpIsWhole(t *testing.T) {
	a := &cli.App{Groups: groups, Getenv: func(string) string { return "" }}
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		if cmd.HasParent() && (cmd.Short == "" || cmd.Long == "" || cmd.Example == "" && !cmd.HasSubCommands()) {
			t.Errorf("%s: the help text needs one line, prose and an example", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(a.Root())
}

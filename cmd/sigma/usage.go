package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigmaos.dev/sigma"
)

// Exit codes. run and wait also exit with the code of the proc.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitRun         = 125 // run: sigmaOS failed, not the program
	exitNoExec      = 126 // run: there is a program but it cannot be executed
	exitNoProgram   = 127 // run: there is no such program
	exitBySignal    = 128 // plus the signal's number
	exitInterrupted = exitBySignal + int(syscall.SIGINT)
)

// exitCode is an error that has been reported, or needs no words.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// coded is an error that ends the program with a code of its own.
type coded struct {
	code int
	error
}

func (c coded) Unwrap() error { return c.error }

func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return coded{code, err}
}

func (a *app) codeOf(err error) int {
	var c coded
	switch {
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailure
}

// usageError makes an error about the command line; cmd may be nil.
func usageError(cmd *cobra.Command, hint, format string, args ...any) error {
	if hint == "" && cmd != nil {
		hint = fmt.Sprintf("usage: %s; more with: %s --help", cmd.UseLine(), cmd.CommandPath())
	}
	return coded{exitUsage, &sigma.Error{Op: "sigma", Kind: sigma.KindInvalid, Msg: fmt.Sprintf(format, args...),
		Hint: hint}}
}

// between is a cobra check of the number of arguments, of which the first least are words; most < 0
// means any.
func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usageError(cmd, "", "%s: an argument is missing", cmd.CommandPath()[len("sigma "):])
		case most >= 0 && len(args) > most:
			return usageError(cmd, "", "%s: unexpected argument %.80q", cmd.CommandPath()[len("sigma "):], args[most])
		case slices.Contains(args[:least], ""):
			return usageError(cmd, "", "%s: an argument is empty", cmd.CommandPath()[len("sigma "):])
		}
		return nil
	}
}

// unknownCommand is the check of the arguments of commands that only have commands.
func (a *app) unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "list them with: " + cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = 1 + min(1, len(args[0])/3) // nearly everything is near a word of two letters
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "did you mean: " + cmd.CommandPath() + " " + strings.Join(s, ", ")
	}
	return usageError(cmd, hint, "unknown command %.80q", args[0])
}

// group makes a command that only has commands, such as realm.
func (a *app) group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: a.unknownCommand, RunE: needsCommand}
	cmd.AddCommand(commands...)
	return cmd
}

// needsCommand is what a command does that only has commands.
func needsCommand(cmd *cobra.Command, _ []string) error {
	return usageError(cmd, "list them with: "+cmd.CommandPath()+" --help", "%s needs a command",
		cmd.CommandPath()[len("sigma "):])
}

// flagError makes a usage error of what the flag parser says, with the flag that may have been
// meant.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	hint := ""
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		if near := nearestFlag(cmd, unknown.GetSpecifiedName()); near != "" {
			hint = "did you mean --" + near + "?"
		}
	}
	return usageError(cmd, hint, "%v", err)
}

func nearestFlag(cmd *cobra.Command, name string) string {
	best, distance := "", 3
	consider := func(f *pflag.Flag) {
		d := editDistance(name, f.Name)
		if strings.HasPrefix(f.Name, name) {
			d = 1
		}
		if d < distance && !f.Hidden {
			best, distance = f.Name, d
		}
	}
	cmd.Flags().VisitAll(consider)
	cmd.InheritedFlags().VisitAll(consider)
	return best
}

// editDistance is how many letters must be put in, taken out or changed to get from a to b
// (Levenshtein). Flags are short, so it does not matter what it costs.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// ownSignals marks commands that look after SIGINT and SIGTERM themselves; for all others the first
// of them ends the context and a second one the program.
const ownSignals = "own-signals"

// tidiesUp marks commands that remove what they made when they are stopped, which takes a bounded
// time. A second signal does not keep them from it.
const tidiesUp = "tidies-up"

// checkFlags says which flag has an empty value, which is a mistake, such as a variable of a script
// that is not set, and not the same as no flag; and whether --realm is a name.
func checkFlags(cmd *cobra.Command) (err error) {
	for c := cmd; c != nil; c = c.Parent() { // each has those that stand before the next word
		c.Flags().Visit(func(f *pflag.Flag) {
			if err == nil && f.Name == "realm" {
				err = withCode(exitUsage, sigma.RealmID(f.Value.String()).Check())
			}
			if err == nil && f.Value.Type() == "string" && f.Value.String() == "" {
				err = usageError(cmd, "leave it out, or give it a value", "--%s is empty", f.Name)
			}
		})
	}
	return err
}

func (a *app) before(cmd *cobra.Command, args []string) error {
	if err := checkFlags(cmd); err != nil {
		return err
	}
	if _, own := cmd.Annotations[ownSignals]; !own {
		ctx, stop := context.WithCancel(cmd.Context())
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
		_, tidies := cmd.Annotations[tidiesUp]
		go func() {
			s := <-signals
			if !tidies {
				signal.Stop(signals)
			}
			a.signal.Store(int32(s.(syscall.Signal)))
			stop()
		}()
		cmd.SetContext(ctx)
	}
	a.guestRealm(cmd)
	return a.checkAddr()
}

// checkAddr refuses the address of another machine, which is not answered by sigma but by programs
// there.
func (a *app) checkAddr() error {
	if _, _, err := net.SplitHostPort(a.addr); err != nil || strings.Contains(a.addr, "/") {
		return nil
	}
	if _, err := os.Lstat(a.addr); err == nil {
		return nil
	}
	return usageError(nil, "run sigma on a machine of that system; to make this host one: sigma join "+a.addr,
		"--addr %.100s is HOST:PORT, and names a socket of this host", a.addr)
}

// addCommands registers every verb, in groups as help shows them.
func (a *app) addCommands(root *cobra.Command) {
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"machine", "The system on this machine:", []*cobra.Command{newUpCommand(a), newJoinCommand(a),
			newDownCommand(a), newStatusCommand(a), newDoctorCommand(a), newTokenCommand(a), newMachineCommand(a),
			newRealmCommand(a), newSnapshotCommand(a), newVersionCommand(a)}},
		{"procs", "Procs:", []*cobra.Command{newRunCommand(a), newPsCommand(a), newLogsCommand(a), newWaitCommand(a),
			newKillCommand(a), newEvictCommand(a), newFreezeCommand(a), newThawCommand(a), newInspectCommand(a),
			newExplainCommand(a), newInitCommand(a), newCapsCommand(a), newEpCommand(a), newCallsCommand(a),
			newTopCommand(a), newEventsCommand(a), newUsageCommand(a), newTraceCommand(a), newSimCommand(a)}},
		{"files", "Files of the realm:", append(a.completePaths(newLsCommand(a), newCatCommand(a), newPutCommand(a),
			newGetCommand(a), newCpCommand(a), newRmCommand(a), newMkdirCommand(a), newMvCommand(a), newStatCommand(a),
			newLnCommand(a), newChmodCommand(a), newWatchCommand(a)), newLeaseCommand(a), newMountCommand(a),
			newUnmountCommand(a), newServeCommand(a), newSQLCommand(a), newS3Command(a))},
		{"apps", "Apps:", []*cobra.Command{newMRCommand(a)}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
}

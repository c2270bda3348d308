package cli

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
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitRun         = 125 // run: sigmaOS failed, not the program
	ExitNoExec      = 126 // run: there is a program but it cannot be executed
	ExitNoProgram   = 127 // run: there is no such program
	ExitBySignal    = 128 // plus the signal's number
	ExitInterrupted = ExitBySignal + int(syscall.SIGINT)
)

// ExitCode is an error that has been reported, or needs no words.
type ExitCode int

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// coded is an error that ends the program with a code of its own.
type coded struct {
	code int
	error
}

func (c coded) Unwrap() error { return c.error }

// WithCode gives err the exit code that the program ends with if the command returns it.
func WithCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return coded{code, err}
}

// WithCodeUnless is WithCode for an error that has no code yet.
func WithCodeUnless(code int, err error) error {
	switch err.(type) {
	case nil, coded, ExitCode:
		return err
	}
	return coded{code, err}
}

// CodeOf is the exit code of an error.
func CodeOf(err error) int {
	var c coded
	switch {
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, context.Canceled):
		return ExitInterrupted
	}
	return ExitFailure
}

// UsageError makes an error about the command line; cmd may be nil.
func UsageError(cmd *cobra.Command, hint, format string, args ...any) error {
	if hint == "" && cmd != nil {
		hint = fmt.Sprintf("usage: %s; more with: %s --help", cmd.UseLine(), cmd.CommandPath())
	}
	return coded{ExitUsage, &sigma.Error{Op: "sigma", Kind: sigma.KindInvalid, Msg: fmt.Sprintf(format, args...),
		Hint: hint}}
}

// Between is a cobra check of the number of arguments, of which the first least are words; most < 0
// means any.
func Between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return UsageError(cmd, "", "%s: an argument is missing", cmd.CommandPath()[len("sigma "):])
		case most >= 0 && len(args) > most:
			return UsageError(cmd, "", "%s: unexpected argument %.80q", cmd.CommandPath()[len("sigma "):], args[most])
		case slices.Contains(args[:least], ""):
			return UsageError(cmd, "", "%s: an argument is empty", cmd.CommandPath()[len("sigma "):])
		}
		return nil
	}
}

// unknownCommand is the check of the arguments of commands that only have commands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "list them with: " + cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = 1 + min(1, len(args[0])/3) // nearly everything is near a word of two letters
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "did you mean: " + cmd.CommandPath() + " " + strings.Join(s, ", ")
	}
	return UsageError(cmd, hint, "unknown command %.80q", args[0])
}

// Parent makes a command that only has commands, such as realm.
func Parent(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: unknownCommand, RunE: needsCommand}
	cmd.AddCommand(commands...)
	return cmd
}

// needsCommand is what a command does that only has commands.
func needsCommand(cmd *cobra.Command, _ []string) error {
	return UsageError(cmd, "list them with: "+cmd.CommandPath()+" --help", "%s needs a command",
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
	return UsageError(cmd, hint, "%v", err)
}

// nearestFlag is the flag of cmd that may be meant by name. Cobra finds near names of commands
// only, so each flag becomes a command here; the nearest is found at the least distance.
func nearestFlag(cmd *cobra.Command, name string) string {
	flags := &cobra.Command{}
	add := func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Hidden: f.Hidden, RunE: needsCommand})
	}
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	for flags.SuggestionsMinimumDistance = 1; flags.SuggestionsMinimumDistance < 3; flags.SuggestionsMinimumDistance++ {
		if near := flags.SuggestionsFor(name); len(near) > 0 {
			return near[0]
		}
	}
	return ""
}

// OwnSignals marks commands that look after SIGINT and SIGTERM themselves; for all others the first
// of them ends the context and a second one the program.
const OwnSignals = "own-signals"

// TidiesUp marks commands that remove what they made when they are stopped, which takes a bounded
// time. A second signal does not keep them from it.
const TidiesUp = "tidies-up"

// checkFlags says which flag has an empty value, which is a mistake, such as a variable of a script
// that is not set, and not the same as no flag; and whether --realm is a name.
func checkFlags(cmd *cobra.Command) (err error) {
	for c := cmd; c != nil; c = c.Parent() { // each has those that stand before the next word
		c.Flags().Visit(func(f *pflag.Flag) {
			if err == nil && f.Name == "realm" {
				err = WithCode(ExitUsage, sigma.RealmID(f.Value.String()).Check())
			}
			if err == nil && f.Value.Type() == "string" && f.Value.String() == "" {
				err = UsageError(cmd, "leave it out, or give it a value", "--%s is empty", f.Name)
			}
		})
	}
	return err
}

func (a *App) before(cmd *cobra.Command, args []string) error {
	if err := checkFlags(cmd); err != nil {
		return err
	}
	if _, own := cmd.Annotations[OwnSignals]; !own {
		ctx, stop := context.WithCancel(cmd.Context())
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
		_, tidies := cmd.Annotations[TidiesUp]
		go func() {
			s := <-signals
			if !tidies {
				signal.Stop(signals)
			}
			a.Signal.Store(int32(s.(syscall.Signal)))
			stop()
		}()
		cmd.SetContext(ctx)
	}
	a.guestRealm(cmd)
	return a.checkAddr()
}

// checkAddr refuses the address of another machine, which is not answered by sigma but by programs
// there.
func (a *App) checkAddr() error {
	if _, _, err := net.SplitHostPort(a.Addr); err != nil || strings.Contains(a.Addr, "/") {
		return nil
	}
	if _, err := os.Lstat(a.Addr); err == nil {
		return nil
	}
	return UsageError(nil, "run sigma on a machine of that system; to make this host one: sigma join "+a.Addr,
		"--addr %.100s is HOST:PORT, and names a socket of this host", a.Addr)
}

func ExitCodeOrNil(code int) error {
	if code == 0 {
		return nil
	}
	return ExitCode(code)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Where things are unless a flag or the environment says otherwise.
const (
	dataDefault = "/var/lib/sigma"    // root's; an ordinary user's is told by app.defaultData
	adminSocket = "sigmad/admin.sock" // below DATA
)

// app is what all verbs share: the global flags, the streams, and the connection to a realm.
type app struct {
	in     io.Reader
	out    io.Writer // answers; one JSON value with --json; a words
	err    io.Writer // errors, progress, remarks; a words
	getenv func(string) string

	addr  string // path of the admin socket
	data  string // DATA
	realm string
	json  bool

	credential string // FILE or @VARIABLE; "" = what the environment says

	signal *atomic.Int32 // that ended the command's context; 0 = none did
}

// connect opens the realm that the flags name. The caller closes the client.
func (a *app) connect(ctx context.Context) (*sdk.Client, error) {
	return a.connectTo(ctx, sigma.RealmID(a.realm))
}

func (a *app) connectTo(ctx context.Context, realm sigma.RealmID) (*sdk.Client, error) {
	if err := realm.Check(); err != nil {
		return nil, withCode(exitUsage, err)
	}
	if c, guest, err := a.connectAs(ctx, realm); guest {
		return c, err
	}
	c, err := sdk.Connect(ctx, a.socket(), realm)
	var e *sigma.Error
	if errors.As(err, &e) && e.Kind == sigma.KindUnavailable && e.Op == "sdk.Connect" && a.addr == "" &&
		homeOf(a.data) != a.defaultData() {
		e.Hint = "start it with: " + commandOn("up --detach", a.data) // not another one
	}
	if errors.As(err, &e) && e.Kind == sigma.KindNotFound {
		return nil, noRealm(realm)
	}
	return c, err
}

func noRealm(id sigma.RealmID) error {
	return &sigma.Error{Op: "sigma.connect", Realm: id, Kind: sigma.KindNotFound,
		Msg:  fmt.Sprintf("there is no realm %q", id),
		Hint: "list realms with: sigma realm ls; make this one with: sigma realm create " + string(id)}
}

// reading gives cmd the flag --stale, and runs it as that says. age is nil without.
func (a *app) reading(cmd *cobra.Command, run func(ctx context.Context, args []string, age *sigma.Age) error) {
	stale := cmd.Flags().Bool("stale", false, "read what this machine remembers while the name service is away")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, age := cmd.Context(), (*sigma.Age)(nil)
		if *stale {
			ctx, age = sigma.WithStale(ctx)
		}
		err := run(ctx, args, age)
		if age != nil && age.Most() > 0 {
			a.remark("warning: the name service does not answer; this is what was known %v ago",
				age.Most().Round(100*time.Millisecond))
		}
		return err
	}
}

// socket is where sigmad answers programs outside.
func (a *app) socket() string {
	if a.addr != "" {
		return a.addr
	}
	if _, is := a.guest(); is {
		return filepath.Join(homeOf(a.data), realmSocket)
	}
	return filepath.Join(homeOf(a.data), adminSocket)
}

// printJSON writes v as one JSON value, indented, with a newline.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// remark writes lines for people beside the answer. What tenants chose in its arguments makes no
// lines of its own.
func (a *app) remark(format string, args ...any) {
	for i, x := range args {
		switch x := x.(type) {
		case string:
			args[i] = printable(x)
		case error:
			args[i] = printable(x.Error())
		}
	}
	fmt.Fprintf(a.err, format+"\n", args...)
}

// root makes the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sigma [FLAGS] COMMAND",
		Short: "Run and use sigmaOS on this machine",
		Long: `sigma starts a sigmaOS on this machine, makes realms, runs programs in them as
isolated procs, and reads and writes a realm's files.

Everything but "sigma version", "sigma doctor" and "sigma help" needs root, because
the admin socket is root's, unless the system was started with "sigma up --rootless".
Who has a credential of a realm (sigma realm credential) works in it as any user.`,
		Example: `  sudo sigma up --detach           # start sigmaOS on this machine
  sudo sigma run ./hello           # run a static executable as a proc
  sudo sigma mkdir /s3/in          # make a bucket
  sudo sigma put -r texts /s3/in   # store files in it`,
		Args:              a.unknownCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		TraverseChildren:  true, // so that flags before the verb may mean something else (-r) than after it
		PersistentPreRunE: a.before,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", a.getenv("SIGMA_ADDR"),
		"admin `SOCKET` of the system (env SIGMA_ADDR; default DATA/"+adminSocket+")")
	f.StringVar(&a.data, "data", orElse(a.getenv("SIGMA_DATA"), a.defaultData()),
		"`DIR` that holds all state of the system (env SIGMA_DATA)")
	f.StringVar(&a.credential, "credential", "",
		"`FILE` with a credential of a realm, or @VARIABLE of the environment, to work as its role allows, without "+
			"root (env SIGMA_CREDENTIAL: the credential, or a FILE)")
	f.BoolVar(&a.json, "json", false, "print JSON instead of text")
	root.SetUsageTemplate(usageTemplate)
	a.addCommands(root)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	a.finish(root)
	return root
}

// usageTemplate is what --help shows below the prose. {{.UseLine}} is written by each command,
// flags that matter in it.
const usageTemplate = `Usage:
  {{.UseLine}}{{if .Aliases}}

Other names:
  {{.NameAndAliases}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{$cmd := .}}{{if .HasAvailableSubCommands}}{{range .Groups}}{{$group := .}}

{{.Title}}{{range $cmd.Commands}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if not .AllChildCommandsHaveGroup}}

{{if .Groups}}More{{else}}Commands{{end}}:{{range .Commands}}{{if and (eq .GroupID "") (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags of all commands:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

More about one: {{.CommandPath}} COMMAND --help{{end}}
`

// finish gives every command --realm, and -r where the command has no -r (recursive) of its own,
// and what else is the same for all.
func (a *app) finish(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	if f := cmd.Flags(); f.Lookup("realm") == nil {
		short := "r"
		if f.ShorthandLookup(short) != nil {
			short = ""
		}
		f.StringVarP(&a.realm, "realm", short, orElse(a.getenv("SIGMA_REALM"), string(sigma.DefaultRealm)),
			"`REALM` to work in (env SIGMA_REALM)")
	}
	switch {
	case cmd.Name() == "help":
		cmd.Args = a.knownTopic
	case cmd.Name() == "completion":
		cmd.Args = a.unknownCommand
		cmd.RunE = needsCommand
	case cmd.HasParent() && cmd.Parent().Name() == "completion":
		cmd.Args = between(0, 0)
	}
	for _, c := range cmd.Commands() {
		a.finish(c)
	}
}

// realmGiven says whether the command line names the realm to work in, before the verb or after it:
// each command has a flag --realm of its own.
func realmGiven(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Flags().Changed("realm") {
			return true
		}
	}
	return false
}

// knownTopic is the check of the arguments of help.
func (a *app) knownTopic(cmd *cobra.Command, args []string) error {
	at := cmd.Root()
	for _, word := range args {
		next, _, err := at.Find([]string{word})
		if err != nil || next == at {
			return a.unknownCommand(at, []string{word})
		}
		at = next
	}
	return nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// execute runs one command line and returns the exit code.
func (a *app) execute(ctx context.Context, args []string) int {
	a.signal = new(atomic.Int32)
	a.out, a.err = &words{a, raw(a.out)}, &words{a, raw(a.err)}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var code exitCode
	s := int(a.signal.Load())
	switch {
	case s != 0 && (err == exitCode(exitInterrupted) || errors.Is(err, context.Canceled)): // who sent it knows
		return exitBySignal + s
	case errors.As(err, &code):
		return int(code)
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitFailure // the reader of our output, such as head, has what it wants
	}
	a.printError(err)
	return a.codeOf(err)
}

func (a *app) printError(err error) {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range several.Unwrap() {
			a.printError(e)
		}
		return
	}
	a.remark("sigma: %v", err)
	if hint := sigma.HintOf(err); hint != "" {
		a.remark("hint: %s", hint)
	}
}

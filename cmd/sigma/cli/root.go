package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// App is what all verbs share: the global flags, the streams, and the connection to a realm.
type App struct {
	Groups func(a *App) []Group // all commands; see Group
	In     io.Reader
	Out    io.Writer // answers; one JSON value with --json; a words
	Err    io.Writer // errors, progress, remarks; a words
	Getenv func(string) string

	Addr  string // path of the admin socket
	Data  string // DATA
	Realm string
	JSON  bool

	Credential string // FILE or @VARIABLE; "" = what the environment says

	Signal *atomic.Int32 // that ended the command's context; 0 = none did

	mu      sync.Mutex
	clients map[sigma.RealmID]*sdk.Client // mu; until the command ends
}

// Connect opens the realm that the flags name. The caller closes the client.
func (a *App) Connect(ctx context.Context) (*sdk.Client, error) {
	return a.ConnectTo(ctx, sigma.RealmID(a.Realm))
}

// ConnectTo opens a realm. The caller closes the client.
func (a *App) ConnectTo(ctx context.Context, realm sigma.RealmID) (*sdk.Client, error) {
	if err := realm.Check(); err != nil {
		return nil, WithCode(ExitUsage, err)
	}
	if c, guest, err := a.connectAs(ctx, realm); guest {
		return c, err
	}
	c, err := sdk.Connect(ctx, a.Socket(), realm)
	var e *sigma.Error
	if errors.As(err, &e) && e.Kind == sigma.KindUnavailable && e.Op == "sdk.Connect" && a.Addr == "" &&
		datadir.HomeOf(a.Data) != a.DefaultData() {
		e.Hint = "start it with: " + datadir.CommandOn("up --detach", a.Data) // not another one
	}
	if errors.As(err, &e) && e.Kind == sigma.KindNotFound {
		return nil, NoRealm(realm)
	}
	return c, err
}

// NoRealm is the error for a realm that does not exist.
func NoRealm(id sigma.RealmID) error {
	return &sigma.Error{Op: "sigma.connect", Realm: id, Kind: sigma.KindNotFound,
		Msg:  fmt.Sprintf("there is no realm %q", id),
		Hint: "list realms with: sigma realm ls; make this one with: sigma realm create " + string(id)}
}

// Client is a client of the realm that the flags name, until the command ends.
func (a *App) Client(ctx context.Context) (*sdk.Client, error) {
	return a.ClientOf(ctx, sigma.RealmID(a.Realm))
}

// ClientOf is a client of a realm, until the command ends. There is one of each realm.
func (a *App) ClientOf(ctx context.Context, realm sigma.RealmID) (*sdk.Client, error) {
	a.mu.Lock()
	c := a.clients[realm]
	a.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := a.ConnectTo(ctx, realm)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if other := a.clients[realm]; other != nil {
		c.Close()
		return other, nil
	}
	if a.clients == nil {
		a.clients = map[sigma.RealmID]*sdk.Client{}
	}
	a.clients[realm] = c
	return c, nil
}

// Drop closes the client of a realm, so that the next one is made anew.
func (a *App) Drop(realm sigma.RealmID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.clients[realm]; c != nil {
		c.Close()
		delete(a.clients, realm)
	}
}

// InRealm makes a command of what works with a client of the realm that the flags name.
func (a *App) InRealm(do func(context.Context, *sdk.Client, []string) error) func(*cobra.Command, []string) error {
	return a.inRealm(func() sigma.RealmID { return sigma.RealmID(a.Realm) }, do)
}

// InWhole is InRealm in the realm in which one reads of all realms.
func (a *App) InWhole(do func(context.Context, *sdk.Client, []string) error) func(*cobra.Command, []string) error {
	return a.inRealm(a.Whole, do)
}

func (a *App) inRealm(realm func() sigma.RealmID,
	do func(context.Context, *sdk.Client, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.ClientOf(cmd.Context(), realm())
		if err != nil {
			return err
		}
		return do(cmd.Context(), c, args)
	}
}

// Reading gives cmd the flag --stale, and runs it as that says. age is nil without.
func (a *App) Reading(cmd *cobra.Command, run func(ctx context.Context, args []string, age *sigma.Age) error) {
	stale := cmd.Flags().Bool("stale", false, "read what this machine remembers while the name service is away")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, age := cmd.Context(), (*sigma.Age)(nil)
		if *stale {
			ctx, age = sigma.WithStale(ctx)
		}
		err := run(ctx, args, age)
		if age != nil && age.Most() > 0 {
			a.Remark("warning: the name service does not answer; this is what was known %v ago",
				age.Most().Round(100*time.Millisecond))
		}
		return err
	}
}

// Socket is where sigmad answers programs outside.
func (a *App) Socket() string {
	if a.Addr != "" {
		return a.Addr
	}
	if _, is := a.Guest(); is {
		return filepath.Join(datadir.HomeOf(a.Data), datadir.RealmSocket)
	}
	return filepath.Join(datadir.HomeOf(a.Data), datadir.AdminSocket)
}

// PrintJSON writes v as one JSON value, indented, with a newline.
func (a *App) PrintJSON(v any) error { return WriteJSON(a.Out, v) }

// WriteJSON is PrintJSON to another place.
func WriteJSON(to io.Writer, v any) error {
	enc := json.NewEncoder(to)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Remark writes lines for people beside the answer. What tenants chose in its arguments makes no
// lines of its own.
func (a *App) Remark(format string, args ...any) {
	for i, x := range args {
		switch x := x.(type) {
		case string:
			args[i] = term.Printable(x)
		case error:
			args[i] = term.Printable(x.Error())
		}
	}
	fmt.Fprintf(a.Err, format+"\n", args...)
}

// Root makes the command tree.
func (a *App) Root() *cobra.Command {
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
		Args:              unknownCommand,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		TraverseChildren:  true, // so that flags before the verb may mean something else (-r) than after it
		PersistentPreRunE: a.before,
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVar(&a.Addr, "addr", a.Getenv("SIGMA_ADDR"),
		"admin `SOCKET` of the system (env SIGMA_ADDR; default DATA/"+datadir.AdminSocket+")")
	f.StringVar(&a.Data, "data", OrElse(a.Getenv("SIGMA_DATA"), a.DefaultData()),
		"`DIR` that holds all state of the system (env SIGMA_DATA)")
	f.StringVar(&a.Credential, "credential", "",
		"`FILE` with a credential of a realm, or @VARIABLE of the environment, to work as its role allows, without "+
			"root (env SIGMA_CREDENTIAL: the credential, or a FILE)")
	f.BoolVar(&a.JSON, "json", false, "print JSON instead of text")
	root.SetUsageTemplate(usageTemplate)
	for _, g := range a.Groups(a) {
		root.AddGroup(&cobra.Group{ID: g.ID, Title: g.Title})
		for _, c := range g.Commands {
			c.GroupID = g.ID
			root.AddCommand(c)
		}
	}
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
// and what else is the same for all: a command without a check takes no arguments, and the verbs ls
// and rm of a noun have longer names too.
func (a *App) finish(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	if cmd.HasParent() && cmd.Parent().HasParent() {
		if other := map[string]string{"ls": "list", "rm": "remove"}[cmd.Name()]; other != "" {
			cmd.Aliases = append(cmd.Aliases, other)
		}
	}
	if f := cmd.Flags(); f.Lookup("realm") == nil {
		short := "r"
		if f.ShorthandLookup(short) != nil {
			short = ""
		}
		f.StringVarP(&a.Realm, "realm", short, OrElse(a.Getenv("SIGMA_REALM"), string(sigma.DefaultRealm)),
			"`REALM` to work in (env SIGMA_REALM)")
	}
	switch {
	case cmd.Name() == "help":
		cmd.Args = knownTopic
	case cmd.Name() == "completion":
		cmd.Args = unknownCommand
		cmd.RunE = needsCommand
	case cmd.Args == nil, cmd.HasParent() && cmd.Parent().Name() == "completion":
		cmd.Args = Between(0, 0)
	}
	for _, c := range cmd.Commands() {
		a.finish(c)
	}
}

// RealmGiven says whether the command line names the realm to work in, before the verb or after it:
// each command has a flag --realm of its own.
func RealmGiven(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Flags().Changed("realm") {
			return true
		}
	}
	return false
}

// knownTopic is the check of the arguments of help.
func knownTopic(cmd *cobra.Command, args []string) error {
	at := cmd.Root()
	for _, word := range args {
		next, _, err := at.Find([]string{word})
		if err != nil || next == at {
			return unknownCommand(at, []string{word})
		}
		at = next
	}
	return nil
}

// OrElse is s, or other if s is empty.
func OrElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// Execute runs one command line and returns the exit code.
func (a *App) Execute(ctx context.Context, args []string) int {
	a.Signal = new(atomic.Int32)
	a.Out, a.Err = term.NewWords(a.Out, &a.JSON), term.NewWords(a.Err, &a.JSON)
	root := a.Root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	for _, c := range a.clients {
		c.Close()
	}
	if err == nil {
		return ExitOK
	}
	var code ExitCode
	s := int(a.Signal.Load())
	switch {
	case s != 0 && (err == ExitCode(ExitInterrupted) || errors.Is(err, context.Canceled)): // who sent it knows
		return ExitBySignal + s
	case errors.As(err, &code):
		return int(code)
	}
	if errors.Is(err, syscall.EPIPE) {
		return ExitFailure // the reader of our output, such as head, has what it wants
	}
	a.PrintError(err)
	return CodeOf(err)
}

// PrintError writes an error, or each of several, with its hint.
func (a *App) PrintError(err error) {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range several.Unwrap() {
			a.PrintError(e)
		}
		return
	}
	a.Remark("sigma: %v", err)
	if hint := sigma.HintOf(err); hint != "" {
		a.Remark("hint: %s", hint)
	}
}

// Group is a group of commands under a title, as "sigma help" shows them.
type Group struct {
	ID, Title string
	Commands  []*cobra.Command
}

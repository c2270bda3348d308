package apps

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

func newKVCommand(a *app) *cobra.Command {
	return cli.Parent("kv", "Make and use stores of keys and values",
		`Make and use stores of keys and values: each divided into shards, which groups of procs keep in
memory. Operations on one key are linearizable. A key has up to 1 KiB, a value up to 1 MiB, of
any bytes. Programs use a store by the package sigmaos.dev/apps/kv.`,
		newKVCreateCommand(a), newKVRemoveCommand(a), newKVListCommand(a), newKVStatusCommand(a), newKVGetCommand(a),
		newKVPutCommand(a), newKVCasCommand(a), newKVDelCommand(a), newKVScanCommand(a), newKVWatchCommand(a),
		newKVMoveCommand(a), newKVScaleCommand(a), newKVRollCommand(a), newKVSnapshotCommand(a),
		newKVRestoreCommand(a))
}

// clerk opens a store whose name is an argument. The caller closes it.
func (a *app) clerk(ctx context.Context, name string) (*kv.Clerk, error) {
	if err := layout.CheckName(name); err != nil {
		return nil, cli.WithCode(cli.ExitUsage, err)
	}
	c, err := a.Client(ctx)
	if err != nil {
		return nil, err
	}
	return kv.Open(c, name)
}

// withClerk makes a command whose first argument is a store.
func (a *app) withClerk(do func(ctx context.Context, c *kv.Clerk, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.clerk(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, args[1:])
	}
}

// kvItem is a key as it is printed with --json: value is base64.
type kvItem struct {
	Key     string     `json:"key"`
	Value   []byte     `json:"value"`
	Version uint64     `json:"version"`
	Expires *time.Time `json:"expires,omitempty"`
	Gone    bool       `json:"gone,omitempty"`
}

func kvItemOf(i kv.Item) kvItem {
	out := kvItem{Key: i.Key, Value: i.Value, Version: i.Version}
	if !i.Expires.IsZero() {
		out.Expires = &i.Expires
	}
	return out
}

func newKVGetCommand(a *app) *cobra.Command {
	return &cobra.Command{Use: "get STORE KEY", Short: "Print the value of a key",
		Long:    `Print the value of a key as it is, without a newline. With --json print its version too.`,
		Example: `  sudo sigma kv get orders order-7`, Args: cli.Between(2, 2),
		RunE: a.withClerk(func(ctx context.Context, c *kv.Clerk, args []string) error {
			value, version, err := c.Get(ctx, args[0])
			if err != nil {
				return err
			}
			if a.JSON {
				return a.PrintJSON(kvItem{Key: args[0], Value: value, Version: version})
			}
			_, err = term.Raw(a.Out).Write(value)
			return err
		})}
}

// valueOf is an argument, or what is read if that is "-".
func (a *app) valueOf(word string) ([]byte, error) {
	if word != "-" {
		return []byte(word), nil
	}
	value, err := io.ReadAll(io.LimitReader(a.In, store.ValueMax+1))
	if err == nil && len(value) > store.ValueMax {
		err = store.TooBig(0, len(value))
	}
	return value, err
}

// wrote prints the version of a key that was written.
func (a *app) wrote(key string, version uint64) error {
	if a.JSON {
		return a.PrintJSON(kvItem{Key: key, Version: version})
	}
	_, err := fmt.Fprintf(a.Out, "version %d\n", version)
	return err
}

func newKVPutCommand(a *app) *cobra.Command {
	var o kv.Options
	cmd := &cobra.Command{Use: "put [--ttl DURATION] STORE KEY VALUE", Short: "Set the value of a key",
		Long: `Set the value of a key, and print its version. If VALUE is - it is read from standard input.
With --ttl the key is gone after that time.`,
		Example: "  sudo sigma kv put orders order-7 paid\n  sudo sigma kv put --ttl 30s orders lock -",
		Args:    cli.Between(2, 3)}
	cmd.RunE = a.withClerk(func(ctx context.Context, c *kv.Clerk, args []string) error {
		if len(args) < 2 {
			return cli.UsageError(cmd, "", "kv put: a VALUE is missing")
		}
		if o.TTL < 0 || o.TTL > 0 && o.TTL < time.Millisecond {
			return cli.UsageError(cmd, "", "--ttl takes a time of at least 1ms")
		}
		value, err := a.valueOf(args[1])
		if err != nil {
			return err
		}
		version, err := c.Put(ctx, args[0], value, o)
		if err != nil {
			return err
		}
		return a.wrote(args[0], version)
	})
	cmd.Flags().DurationVar(&o.TTL, "ttl", 0, "`DURATION` after which the key is gone, as in 30s (default: never)")
	return cmd
}

func newKVCasCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "cas STORE KEY VERSION VALUE", Short: "Set the value of a key that has a version",
		Long: `Compare and swap: set the value of a key if it has VERSION, and print its new version. VERSION 0
means that there is no such key. If VALUE is - it is read from standard input.`,
		Example: "  sudo sigma kv cas orders order-7 3 shipped", Args: cli.Between(3, 4)}
	cmd.RunE = a.withClerk(func(ctx context.Context, c *kv.Clerk, args []string) error {
		if len(args) < 3 {
			return cli.UsageError(cmd, "", "kv cas: a VALUE is missing")
		}
		old, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil {
			return cli.UsageError(cmd, "", "%.40q is no version", args[1])
		}
		value, err := a.valueOf(args[2])
		if err != nil {
			return err
		}
		version, err := c.PutIf(ctx, args[0], old, value, kv.Options{})
		if err != nil {
			return err
		}
		return a.wrote(args[0], version)
	})
	return cmd
}

func newKVDelCommand(a *app) *cobra.Command {
	return &cobra.Command{Use: "del STORE KEY...", Short: "Remove keys",
		Long:    "Remove keys from a store. One that is not there is an error; the others are removed.",
		Example: "  sudo sigma kv del orders order-7",
		Args:    cli.Between(2, -1),
		RunE: a.withClerk(func(ctx context.Context, c *kv.Clerk, args []string) error {
			var errs []error
			for _, key := range args {
				errs = append(errs, c.Delete(ctx, key))
			}
			return a.Failed(errs)
		})}
}

// printable is a value as a table has it.
func printable(value []byte) string {
	const most = 60
	if len(value) > most {
		return fmt.Sprintf("%q... (%s)", value[:most], sigma.Bytes(len(value)))
	}
	return fmt.Sprintf("%q", value)
}

func newKVScanCommand(a *app) *cobra.Command {
	limit := 1000
	cmd := &cobra.Command{Use: "scan [--limit N] STORE [PREFIX]", Short: "List keys in order",
		Long: `List the keys that begin with PREFIX in order, with versions and values. Keys that are written
meanwhile may be shown as before or after.`,
		Example: "  sudo sigma kv scan orders order-", Args: cli.Between(1, 2)}
	cmd.RunE = a.withClerk(func(ctx context.Context, c *kv.Clerk, args []string) error {
		if limit < 1 {
			return cli.UsageError(cmd, "", "--limit takes a number of keys")
		}
		prefix := ""
		if len(args) > 0 {
			prefix = args[0]
		}
		items, err := c.Scan(ctx, prefix, limit)
		if err != nil {
			return err
		}
		return cli.PrintList(a.App, cli.Mapped(items, kvItemOf), false, func(i kvItem) []any {
			return []any{strconv.Quote(i.Key), i.Version, printable(i.Value)}
		}, "KEY", "VERSION", "VALUE")
	})
	cmd.Flags().IntVar(&limit, "limit", limit, "list `N` keys at most")
	return cmd
}

func newKVWatchCommand(a *app) *cobra.Command {
	count := 0
	cmd := &cobra.Command{Use: "watch [-n COUNT] STORE [PREFIX]", Short: "Print changes of keys",
		Long: `Print a line for each change of a key that begins with PREFIX, until ^C, or until COUNT changes
were printed. With --json each change is one line of JSON.`,
		Example: "  sudo sigma kv watch orders order-", Args: cli.Between(1, 2)}
	cmd.RunE = a.withClerk(func(ctx context.Context, c *kv.Clerk, args []string) error {
		prefix := ""
		if len(args) > 0 {
			prefix = args[0]
		}
		ready := func() { a.Remark("sigma: watching") }
		n := 0
		for e, err := range c.WatchPrefix(ctx, prefix, ready) {
			if err == nil {
				err = a.printEvent(e)
			}
			if n++; err != nil || n == count {
				return err
			}
		}
		return nil
	})
	cmd.Flags().IntVarP(&count, "count", "n", 0, "end after `COUNT` changes")
	return cmd
}

func (a *app) printEvent(e kv.Event) error {
	if a.JSON {
		i := kvItemOf(e.Item)
		i.Gone = e.Gone
		line, err := json.Marshal(i)
		if err == nil {
			_, err = a.Out.Write(append(line, '\n'))
		}
		return err
	}
	if e.Gone {
		_, err := fmt.Fprintf(a.Out, "%q gone at version %d\n", e.Key, e.Version)
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%q version %d: %s\n", e.Key, e.Version, printable(e.Value))
	return err
}

// kvGroup is a group as "kv status" shows it.
type kvGroup struct {
	Group   uint32 `json:"group"`
	Shards  int    `json:"shards"`
	Moving  int    `json:"moving"` // shards that come to it
	Error   string `json:"error,omitempty"`
	Leaving bool   `json:"leaving,omitempty"`
	calls.Member
}

func newKVStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{Use: "status STORE", Short: "Show the groups of a store",
		Long: `Show the groups of a store: how many shards each has and how many come to it, its members, the
one that leads, and what its keys take of what they may. --json shows each shard.`,
		Example: "  sudo sigma kv status orders", Args: cli.Between(1, 1),
		RunE: a.withClerk(func(ctx context.Context, c *kv.Clerk, _ []string) error {
			cfg, err := c.Config(ctx)
			if err != nil {
				return err
			}
			return cli.PrintList(a.App, kvGroups(ctx, c, cfg), false, func(g kvGroup) []any {
				if g.Error != "" {
					return []any{g.Group, g.Shards, g.Moving, g.Error, "-", "-"}
				}
				return []any{g.Group, g.Shards, g.Moving, fmt.Sprintf("%d/%d", len(g.Members), cfg.Replicas), g.Leader,
					fmt.Sprintf("%s/%s", sigma.Bytes(g.Bytes), sigma.Bytes(g.Limit))}
			}, "GROUP", "SHARDS", "COMING", "MEMBERS", "LEADER", "KEYS")
		})}
}

// kvGroups asks all groups.
func kvGroups(ctx context.Context, c *kv.Clerk, cfg *layout.Config) (all []kvGroup) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for g := uint32(1); g < cfg.Next; g++ {
		group, is := cfg.Groups[g]
		if !is {
			continue
		}
		row := kvGroup{Group: g, Shards: len(cfg.Of(g)), Leaving: group.Leaving}
		for _, m := range cfg.Moves {
			if m.To == g {
				row.Moving++
			}
		}
		var err error
		if row.Member, err = c.Group(ctx, g); err != nil {
			row.Error = "no leader"
			if !cfg.Durable && cfg.Replicas > 1 {
				row.Error = "no leader: if this lasts, its keys are lost; make the store again"
			}
		}
		all = append(all, row)
	}
	return all
}

package apps

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/balancer"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/programs"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// kvPause is the time between two looks at a store that begins or changes.
const kvPause = 50 * time.Millisecond

func newKVCreateCommand(a *app) *cobra.Command {
	shards, groups, replicas, memory, cores, durable := 64, 1, 1, "256MiB", 0.1, false
	cmd := &cobra.Command{
		Use: "create [--durable] [--groups N] [--replicas N] [--shards N] [-m SIZE] [--lc CORES] " +
			"STORE",
		Short: "Make a store",
		Long: `Make a store, and wait until it serves. Each group has one, three or five members, which are
procs that initd keeps. Keys are in the memory of members: a group of one whose member ends begins
again with nothing, a larger one keeps its keys as long as most of its members live. With --durable
each write is on the disks of most members before it is acknowledged, and survives all of them.
The program kv, which members run, must lie beside sigma.`,
		Example: "  sudo sigma kv create orders\n  sudo sigma kv create --groups 2 --replicas 3 orders\n" +
			"  sudo sigma kv create --durable --replicas 3 ledger",
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := layout.New(args[0], cli.BinDir+"/kv", max(shards, 1), groups, replicas)
			cfg.Memory, cfg.CPU, cfg.Durable = memory, uint32(cores*1000), durable
			size, err := sigma.ParseBytes(memory)
			if err == nil {
				err = cfg.Check()
			}
			if err == nil && (groups < 1 || shards < 1 || cores < 0.001 || cores > 1000 || size < 16*sigma.MiB) {
				err = cli.UsageError(cmd, "", "there is a group and a shard at least, and a member has 16 MiB")
			}
			if err != nil {
				return cli.WithCodeUnless(cli.ExitUsage, err)
			}
			return a.createKV(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&durable, "durable", false, "keep a log of all writes on the disks of the members' machines")
	f.IntVar(&groups, "groups", groups, "`N` groups")
	f.IntVar(&replicas, "replicas", replicas, "`N` members of each group: 1, 3 or 5")
	f.IntVar(&shards, "shards", shards, "`N` shards, a power of two: how many groups there can be at most")
	f.StringVarP(&memory, "memory", "m", memory, "`SIZE` of memory of each member; keys take two fifths at most")
	f.Float64Var(&cores, "lc", cores, "`CORES` that each member reserves")
	return cmd
}

func (a *app) createKV(ctx context.Context, cfg *layout.Config) error {
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	clerk, err := a.beginKV(ctx, c, cfg)
	if err != nil {
		return err
	}
	defer clerk.Close()
	if err := a.settleKV(ctx, clerk, cfg.Epoch); err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(cfg)
	}
	_, err = fmt.Fprintf(a.Out, "store %s: %s of %s, %s\n", cfg.Name, cli.Count(cfg.Want, "group"),
		cli.Count(cfg.Replicas, "member"), cli.Count(len(cfg.Owners), "shard"))
	return err
}

// beginKV has the procs of a store started, and gives a clerk.
func (a *app) beginKV(ctx context.Context, c *sdk.Client, cfg *layout.Config) (*kv.Clerk, error) {
	local, err := programs.Beside("kv")
	if err != nil {
		return nil, err
	}
	defer local.Close()
	if cfg.Program, err = programs.Put(ctx, a.App, c, local); err != nil {
		return nil, err
	}
	if err := c.MkdirAll(ctx, layout.Dir(cfg.Name), 0o755); err != nil {
		return nil, err
	}
	_, err = c.Put(ctx, layout.File(cfg.Name), cfg.Text(), sigma.PutOptions{MustMake: true})
	if sigma.KindOf(err) == sigma.KindExists {
		return nil, &sigma.Error{Op: "sigma.kv", Kind: sigma.KindExists,
			Msg:  "there is a store " + cfg.Name + " already",
			Hint: "use it, or remove it with: sigma kv rm " + cfg.Name}
	}
	for i := 0; i < balancer.Procs && err == nil; i++ {
		err = c.Register(ctx, balancer.Registration(cfg, i))
	}
	if err != nil {
		return nil, err
	}
	return kv.Open(c, cfg.Name)
}

// settleKV waits for a configuration, and until all groups have all members and no shard moves or
// is to move. It remarks from time to time on what it waits for.
func (a *app) settleKV(ctx context.Context, clerk *kv.Clerk, epoch uint64) error {
	for remark := time.Now().Add(kvTellEvery); ; {
		cfg, err := clerk.Config(ctx)
		if err != nil {
			return err
		}
		ready := cfg.Epoch >= epoch && len(cfg.Moves) == 0 && cfg.Step(nil) == nil
		late := time.Now().After(remark)
		for _, g := range slices.Sorted(maps.Keys(cfg.Groups)) {
			within, cancel := context.WithTimeout(ctx, time.Second)
			st, err := clerk.Group(within, g)
			cancel()
			whole := err == nil && len(st.Members) == cfg.Replicas
			if late && !whole {
				a.Remark("sigma: group %d has %d of %s; sigma init log %s tells more", g, len(st.Members),
					cli.Count(cfg.Replicas, "member"), layout.MemberProc(cfg.Name, g, 0))
			}
			ready = ready && whole && (cfg.Settled(g) || cfg.Groups[g].Leaving)
		}
		if ready {
			return nil
		}
		if late {
			remark = time.Now().Add(kvTellEvery)
		}
		if !retry.Pause(ctx, kvPause) {
			return ctx.Err()
		}
	}
}

func newKVRemoveCommand(a *app) *cobra.Command {
	return &cobra.Command{Use: "rm STORE", Short: "Remove a store and all its keys",
		Long:    "Remove a store, its keys and its procs. There is no way back.",
		Example: "  sudo sigma kv rm orders", Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := layout.CheckName(args[0]); err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			ctx := cmd.Context()
			c, err := a.Client(ctx)
			if err != nil {
				return err
			}
			text, _, err := c.Get(ctx, layout.File(args[0]))
			if err != nil {
				return noStore(args[0], err)
			}
			cfg, err := layout.ParseOf(args[0], text)
			if err != nil {
				return err
			}
			return removeKV(ctx, c, cfg)
		}}
}

func noStore(name string, err error) error {
	if sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	return &sigma.Error{Op: "sigma.kv", Kind: sigma.KindNotFound, Msg: "there is no store " + name,
		Hint: "list stores with: sigma kv ls", Err: err}
}

// removeKV ends the procs of a store, its balancers first, and removes its directory.
func removeKV(ctx context.Context, c *sdk.Client, cfg *layout.Config) error {
	names := []string{}
	for i := range balancer.Procs {
		names = append(names, layout.BalancerProc(cfg.Name, i))
	}
	for g := uint32(1); g < cfg.Next; g++ {
		for i := range cfg.Replicas + cfg.Surge() {
			names = append(names, layout.MemberProc(cfg.Name, g, i))
		}
	}
	for _, name := range names {
		if err := c.Unregister(ctx, name); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	if cfg.Durable {
		if err := removeLogs(ctx, c, cfg.Name); err != nil {
			return err
		}
	}
	return removeTree(ctx, c, layout.Dir(cfg.Name))
}

// removeLogs removes what the members of a durable store have on disks.
func removeLogs(ctx context.Context, c *sdk.Client, name string) error {
	machines, err := c.ReadDir(ctx, "/ux")
	for _, m := range machines {
		if err == nil {
			err = c.RemoveAll(ctx, layout.Logs(sigma.MachineID(m.Name), name))
		}
	}
	return err
}

// removeTree removes a directory of names. Names of procs that have just ended may go meanwhile.
func removeTree(ctx context.Context, c *sdk.Client, dir string) error {
	entries, err := c.ReadDir(sigma.WithSync(ctx), dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := dir + "/" + e.Name
		if e.ID.Kind == sigma.KindDir {
			err = removeTree(ctx, c, path)
		} else {
			err = c.Remove(ctx, path)
		}
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return c.Remove(ctx, dir)
}

// kvStore is a store as "kv ls" shows it.
type kvStore struct {
	Name     string `json:"name"`
	Groups   int    `json:"groups"`
	Replicas int    `json:"replicas"`
	Durable  bool   `json:"durable"`
	Shards   int    `json:"shards"`
	Moves    int    `json:"moves"`
}

func newKVListCommand(a *app) *cobra.Command {
	return cli.Listing(a.App, &cobra.Command{Use: "ls", Short: "List stores",
		Long:    "List the realm's stores with their groups, replicas, shards and moves under way.",
		Example: "  sudo sigma kv ls",
		Args:    cli.Between(0, 0)},
		func(ctx context.Context, _ []string) (all []kvStore, err error) {
			c, err := a.Client(ctx)
			if err != nil {
				return nil, err
			}
			entries, err := c.ReadDir(ctx, "/kv")
			if sigma.KindOf(err) == sigma.KindNotFound {
				return nil, nil
			}
			for _, e := range entries {
				text, _, err := c.Get(ctx, layout.File(e.Name))
				if err != nil {
					continue // it is being made or removed
				}
				if cfg, err := layout.ParseOf(e.Name, text); err == nil {
					all = append(all, kvStore{cfg.Name, len(cfg.Groups), cfg.Replicas, cfg.Durable, len(cfg.Owners),
						len(cfg.Moves)})
				}
			}
			return all, err
		}, func(s kvStore) []any { return []any{s.Name, s.Groups, s.Replicas, s.Shards, s.Moves} },
		"STORE", "GROUPS", "REPLICAS", "SHARDS", "MOVING")
}

// changeKV changes the configuration of a store, and waits until the store is as that says.
func (a *app) changeKV(cmd *cobra.Command, name string, f func(*layout.Config) (*layout.Config, error)) error {
	ctx := cmd.Context()
	clerk, err := a.clerk(ctx, name)
	if err != nil {
		return err
	}
	defer clerk.Close()
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	epoch, err := balancer.Change(ctx, c, name, f)
	if err != nil {
		return noStore(name, err)
	}
	return a.settleKV(ctx, clerk, epoch)
}

func newKVMoveCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "move STORE SHARD GROUP", Short: "Move a shard to another group",
		Long: `Move a shard to another group, and wait until it is there. Clients go on meanwhile. Afterwards the
balancer leaves shards where they are, until "sigma kv scale" divides them evenly again.`,
		Example: "  sudo sigma kv move orders 5 2", Args: cli.Between(3, 3)}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		shard, err1 := strconv.ParseUint(args[1], 10, 16)
		group, err2 := strconv.ParseUint(args[2], 10, 32)
		if err1 != nil || err2 != nil {
			return cli.UsageError(cmd, "", "SHARD and GROUP are numbers")
		}
		return a.changeKV(cmd, args[0], func(cfg *layout.Config) (*layout.Config, error) {
			return cfg.Begin(int(shard), uint32(group))
		})
	}
	return cmd
}

func newKVScaleCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "scale STORE GROUPS", Short: "Change how many groups a store has",
		Long: `Change how many groups a store has, and wait until shards are divided evenly among them. Clients
go on meanwhile. Groups that are too many give their shards to the others and end.`,
		Example: "  sudo sigma kv scale orders 4", Args: cli.Between(2, 2)}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		groups, err := strconv.ParseUint(args[1], 10, 16)
		if err != nil || groups < 1 || groups > layout.GroupsMax {
			return cli.UsageError(cmd, "", "GROUPS is a number from 1 to %d", layout.GroupsMax)
		}
		return a.changeKV(cmd, args[0], func(cfg *layout.Config) (*layout.Config, error) {
			return cfg.Scale(int(groups))
		})
	}
	return cmd
}

func newKVRollCommand(a *app) *cobra.Command {
	return &cobra.Command{Use: "roll STORE", Short: "Replace the members of a store by those of the program beside sigma",
		Long: `Replace all members of a store, one after another, and its balancers by procs of the program kv that
lies beside sigma, and wait until that is done. A group has a member more meanwhile. Clients go on; a
member that leads hands over before it ends.`,
		Example: "  sudo sigma kv roll orders", Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if err := layout.CheckName(args[0]); err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			c, err := a.Client(ctx)
			if err != nil {
				return err
			}
			local, err := programs.Beside("kv")
			if err != nil {
				return err
			}
			defer local.Close()
			program, err := programs.Put(ctx, a.App, c, local)
			if err != nil {
				return err
			}
			var last *layout.Config
			err = a.changeKV(cmd, args[0], func(cfg *layout.Config) (*layout.Config, error) {
				last = cfg.Roll(program)
				return last, nil
			})
			for i := 0; i < balancer.Procs && err == nil; i++ {
				err = c.Replace(ctx, balancer.Registration(last, i))
			}
			return err
		}}
}

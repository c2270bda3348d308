// Package balancer keeps a kv store as its configuration wants it: it has initd run the members of
// its groups and replace them, divides shards among groups evenly, and moves them.
//
// It promises: a move goes on when the balancer that makes it dies, whenever that is, and no key is
// lost or served by two groups by that. One of several balancers leads; another one takes over
// within some seconds of its death. It assumes that its directory is kept by named, and that initd
// runs. It costs a look at the configuration and at all groups every two seconds. Users: cmd/kv.
//
// Locks: balancer.mu alone.
package balancer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/apps/kv/view"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

const (
	// lookEvery is the time between two looks at the groups.
	lookEvery = 2 * time.Second
	// againPause is the time before a move that failed is tried again, againMost that after it has
	// failed some times: the group it goes to may have no room.
	againPause = 200 * time.Millisecond
	againMost  = 5 * time.Second
	// Procs is how many balancers a store has.
	Procs = 2
	// leaseTTL is after what time a silent balancer is replaced.
	leaseTTL = 3 * time.Second
)

// balancer is one that leads.
type balancer struct {
	c     *sdk.Client
	clerk *kv.Clerk
	name  string
	log   *slog.Logger

	mu    sync.Mutex
	busy  map[task]bool // mu; moves under way, and task{} = a roll
	tasks sync.WaitGroup

	registered map[uint32]bool   // groups whose members are registered, or were unregistered if false
	before     map[uint16]uint64 // writes of each shard at the last look
}

// Run balances a store until ctx ends, whenever it leads.
func Run(ctx context.Context, c *sdk.Client, name string, log *slog.Logger) error {
	return sdk.Lead(ctx, c, sdk.Election{Path: layout.Dir(name) + "/leader", Data: []byte(c.Info().Principal.Proc),
		TTL: leaseTTL}, func(ctx context.Context, _ *sdk.Leadership) error {
		clerk, err := kv.Open(c, name)
		if err != nil {
			return err
		}
		defer clerk.Close()
		ctx, cancel := context.WithCancel(ctx)
		b := &balancer{c: c, clerk: clerk, name: name, log: log, busy: map[task]bool{},
			registered: map[uint32]bool{}, before: map[uint16]uint64{}}
		defer b.tasks.Wait()
		defer cancel()
		b.tasks.Go(func() {
			for ctx.Err() == nil {
				if err := b.serveKeys(ctx); ctx.Err() == nil {
					b.log.Warn("the tree of keys is served again", "err", err)
					retry.Pause(ctx, time.Second)
				}
			}
		})
		return b.run(ctx)
	})
}

// serveKeys serves the store as a tree while the balancer leads.
func (b *balancer) serveKeys(ctx context.Context) error {
	l, err := b.c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	defer l.Close()
	lease, revoke, err := b.c.Lease(ctx, leaseTTL)
	if err != nil {
		return err
	}
	defer revoke(context.WithoutCancel(ctx))
	if err := b.c.Publish(ctx, layout.Keys(b.name), l.Endpoint(), lease); err != nil {
		return err
	}
	return b.c.ServeTree(ctx, l, view.Tree{Clerk: b.clerk})
}

// run looks again and again until ctx ends.
func (b *balancer) run(ctx context.Context) error {
	for ctx.Err() == nil {
		version, err := b.look(ctx)
		if err != nil {
			b.log.Warn("cannot balance now", "err", err)
			retry.Pause(ctx, againPause)
			continue
		}
		within, cancel := context.WithTimeout(ctx, lookEvery)
		b.c.Watch(within, layout.File(b.name), version)
		cancel()
	}
	return ctx.Err()
}

// look makes what is missing, and gives the version of the configuration that it saw.
func (b *balancer) look(ctx context.Context) (sigma.Version, error) {
	text, id, err := b.c.Get(sigma.WithSync(ctx), layout.File(b.name))
	if err != nil {
		return 0, err
	}
	cfg, err := layout.ParseOf(b.name, text)
	if err != nil {
		return 0, err
	}
	if err := b.members(ctx, cfg); err != nil {
		return 0, err
	}
	for shard, m := range cfg.Moves {
		b.begin(ctx, mover{groups: b.clerk, shard: shard, from: cfg.Owners[shard], to: m.To, epoch: m.Epoch})
	}
	b.roll(ctx, cfg)
	if now := cfg.Step(b.load(ctx, cfg)); now != nil {
		_, err = b.c.Put(ctx, layout.File(b.name), now.Text(), sigma.PutOptions{IfVersion: id.Version})
		if err != nil && sigma.KindOf(err) == sigma.KindVersion {
			err = nil // look again
		}
	}
	return id.Version, err
}

// members registers the members of groups, and ends those of groups that are none any more.
func (b *balancer) members(ctx context.Context, cfg *layout.Config) error {
	for g := uint32(1); g < cfg.Next; g++ {
		_, is := cfg.Groups[g]
		if was, known := b.registered[g]; known && was == is {
			continue
		}
		for i := range cfg.Replicas {
			var err error
			if is {
				err = Register(ctx, b.c, cfg, g, i)
			} else {
				err = b.c.Unregister(ctx, layout.MemberProc(b.name, g, i))
			}
			if err != nil && !is && sigma.KindOf(err) == sigma.KindNotFound {
				err = nil
			}
			if err != nil {
				return err
			}
		}
		if !is {
			if err := b.unregisterSurplus(ctx, cfg, g); err != nil {
				return err
			}
		}
		b.registered[g] = is
	}
	return nil
}

// registration is how initd is to keep a member of a group.
func registration(cfg *layout.Config, group uint32, i int) (sigma.Registration, error) {
	memory, err := sigma.ParseBytes(cfg.Memory)
	return sigma.Registration{Name: layout.MemberProc(cfg.Name, group, i),
		Descriptor: sigma.Descriptor{Program: cfg.Program, Name: layout.GroupProcs(cfg.Name, group),
			Class: sigma.LatencyCritical, CPU: sigma.MilliCPU(cfg.CPU), Memory: memory, Start: sigma.StartedByCall,
			Args: []string{"member", cfg.Name, fmt.Sprint(group), fmt.Sprint(i), fmt.Sprint(uint64(memory))}}}, err
}

// Registration is how initd is to keep a balancer of a store.
func Registration(cfg *layout.Config, i int) sigma.Registration {
	return sigma.Registration{Name: layout.BalancerProc(cfg.Name, i),
		Descriptor: sigma.Descriptor{Program: cfg.Program, Name: "kv-" + cfg.Name + "-balancer",
			Class: sigma.LatencyCritical, CPU: 10, Start: sigma.StartedByCall, Args: []string{"balancer", cfg.Name}}}
}

// Register has initd keep a member of a group, unless it does already.
func Register(ctx context.Context, c *sdk.Client, cfg *layout.Config, group uint32, i int) error {
	r, err := registration(cfg, group, i)
	if err == nil {
		err = c.Register(ctx, r)
	}
	if sigma.KindOf(err) == sigma.KindExists {
		return nil
	}
	return err
}

// load tells how many writes each shard had since the last look, as far as groups answer at once.
func (b *balancer) load(ctx context.Context, cfg *layout.Config) map[uint16]uint64 {
	load := map[uint16]uint64{}
	if len(cfg.Groups) < 2 {
		return load
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for g := range cfg.Groups {
		st, err := b.clerk.Group(ctx, g)
		if err != nil {
			continue
		}
		for _, s := range st.Shards {
			if int(s.Shard) < len(cfg.Owners) && cfg.Owners[s.Shard] == g {
				load[s.Shard] = s.Ops - min(s.Ops, b.before[s.Shard])
				b.before[s.Shard] = s.Ops
			}
		}
	}
	return load
}

// task names a move. Moves that one configuration begins have the same epoch.
type task struct {
	shard uint16
	epoch uint64
}

// once does a task, unless it is under way here.
func (b *balancer) once(which task, do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[which] {
		return
	}
	b.busy[which] = true
	b.tasks.Go(func() {
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.busy, which)
		}()
		do()
	})
}

// begin begins a move, unless it is under way here.
func (b *balancer) begin(ctx context.Context, m mover) {
	b.once(task{m.shard, m.epoch}, func() {
		began := time.Now()
		for pause := againPause; ctx.Err() == nil; pause = min(2*pause, againMost) {
			err := m.move(ctx)
			served := time.Now()
			if err == nil {
				err = m.drop(ctx)
			}
			if err == nil {
				err = b.arrived(ctx, m)
			}
			if err == nil {
				b.log.Info("a shard has moved", "shard", m.shard, "from", m.from, "to", m.to, "took", time.Since(began),
					"unserved", served.Sub(m.frozen))
				return
			}
			b.log.Warn("a move is tried again", "shard", m.shard, "err", err)
			retry.Pause(ctx, pause)
		}
	})
}

// arrived publishes that a shard has moved. Its former group has forgotten it: nobody would do that
// later, and the group may be none any more then.
func (b *balancer) arrived(ctx context.Context, m mover) error {
	_, err := Change(ctx, b.c, b.name, func(cfg *layout.Config) (*layout.Config, error) {
		return cfg.Arrived(m.shard, m.epoch), nil
	})
	return err
}

// Change changes a store's configuration by f, which gives nil if there is nothing to change. It
// gives the epoch of the configuration afterwards.
func Change(ctx context.Context, c *sdk.Client, name string,
	f func(*layout.Config) (*layout.Config, error)) (epoch uint64, err error) {
	for {
		text, id, err := c.Get(sigma.WithSync(ctx), layout.File(name))
		if err != nil {
			return 0, err
		}
		cfg, err := layout.ParseOf(name, text)
		if err != nil {
			return 0, err
		}
		now, err := f(cfg)
		if err != nil || now == nil {
			return cfg.Epoch, err
		}
		_, err = c.Put(ctx, layout.File(name), now.Text(), sigma.PutOptions{IfVersion: id.Version})
		if err == nil || sigma.KindOf(err) != sigma.KindVersion {
			return now.Epoch, err
		}
	}
}

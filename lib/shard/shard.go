package shard

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

const retryPause = 50 * time.Millisecond

// Client is what Balance needs of *sdk.Client.
type Client interface {
	sigma.Namespace
	sdk.Candidate
}

// Config is a division, the same for all who use it.
type Config struct {
	Dir    string
	Shards int
	TTL    time.Duration // after which a silent member, or balancer, is given up. 0 = 5 s
}

func (c *Config) fill() error {
	if c.TTL == 0 {
		c.TTL = 5 * time.Second
	}
	if c.Shards < 1 || c.Shards > ShardsMax {
		return &sigma.Error{Op: "shard.Config", Path: c.Dir, Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("there are no divisions into %d shards", c.Shards),
			Hint: fmt.Sprint("from 1 to ", ShardsMax)}
	}
	return nil
}

// again tells whether what failed is to be tried again.
func again(err error) bool {
	kind := sigma.KindOf(err)
	return kind == sigma.KindStale || kind == sigma.KindLost || kind.Retryable()
}

// Balance assigns shards to the members, whoever they are, until ctx ends. Several programs may run
// it: one does it, the others stand by.
func Balance(ctx context.Context, c Client, cfg Config) error {
	err := cfg.fill()
	if err == nil {
		err = c.MkdirAll(ctx, cfg.Dir+"/members", 0o755)
	}
	if err == nil {
		err = sdk.Lead(ctx, c, sdk.Election{Path: cfg.Dir + "/leader", TTL: cfg.TTL,
			Fenced: []string{cfg.Dir + "/assignment"}}, func(ctx context.Context, _ *sdk.Leadership) error {
			return balance(ctx, c, cfg)
		})
	}
	return sigma.Wrap("shard.Balance", cfg.Dir, err)
}

// balance does it for one term.
func balance(ctx context.Context, c Client, cfg Config) error {
	dir := cfg.Dir + "/members"
	for {
		st, err := c.Stat(sigma.WithSync(ctx), dir)
		if err == nil {
			err = reassign(ctx, c, cfg)
		}
		if err == nil {
			_, err = c.Watch(ctx, dir, st.ID.Version)
		}
		if err != nil {
			return err
		}
	}
}

// reassign writes the assignment for the members that there are, if it is another one.
func reassign(ctx context.Context, c Client, cfg Config) error {
	path := cfg.Dir + "/assignment"
	entries, err := c.ReadDir(sigma.WithSync(ctx), cfg.Dir+"/members")
	if err != nil {
		return err
	}
	var members []string
	for _, e := range entries {
		members = append(members, e.Name)
	}
	a := Assignment{Owners: make([]string, cfg.Shards)}
	text, id, err := c.Get(sigma.WithSync(ctx), path)
	created := err == nil
	if created {
		if a, err = Decode(text); err == nil && len(a.Owners) != cfg.Shards {
			err = &sigma.Error{Kind: sigma.KindInvalid, Path: path,
				Msg:  fmt.Sprintf("there are %d shards, not %d", len(a.Owners), cfg.Shards),
				Hint: "have all programs name one number; to change it, remove the directory while no member runs"}
		}
	} else if sigma.KindOf(err) == sigma.KindNotFound {
		err = nil
	}
	if err != nil {
		return err
	}
	now := Assign(a.Owners, members)
	if created && slices.Equal(now, a.Owners) {
		return nil
	}
	text, err = json.Marshal(Assignment{Epoch: a.Epoch + 1, Owners: now})
	if err == nil {
		_, err = c.Put(ctx, path, text, sigma.PutOptions{MustMake: !created, IfVersion: id.Version})
	}
	if kind := sigma.KindOf(err); err != nil && (kind == sigma.KindVersion || kind == sigma.KindExists) {
		err = &sigma.Error{Kind: sigma.KindStale, Msg: "another program balances", Err: err}
	}
	return err
}

// Follow gives the assignment each time it has changed, first as it is once there is one, until ctx
// ends. An error is the last that it yields.
func Follow(ctx context.Context, n sigma.Namespace, dir string) iter.Seq2[Assignment, error] {
	return func(yield func(Assignment, error) bool) {
		path := dir + "/assignment"
		for told := uint64(0); ; {
			text, id, err := n.Get(ctx, path)
			if err == nil {
				var a Assignment
				a, err = Decode(text)
				if err == nil && a.Epoch > told {
					if told = a.Epoch; !yield(a, nil) {
						return
					}
				}
			}
			switch {
			case err == nil:
				_, err = n.Watch(ctx, path, id.Version)
			case sigma.KindOf(err) == sigma.KindNotFound:
				err = n.WaitFor(ctx, path)
			}
			if err == nil || sigma.KindOf(err) == sigma.KindNotFound {
				continue
			}
			if ctx.Err() != nil || !again(err) {
				yield(Assignment{}, sigma.Wrap("shard.Follow", path, err))
				return
			}
			retry.Pause(ctx, retryPause)
		}
	}
}

// Callbacks are what a member does with shards. They are called one at a time for each shard, and
// for different shards at the same time. ctx of Gain ends when the member has lost the shard or
// must take it for lost.
type Callbacks struct {
	Gain func(ctx context.Context, shard int, f sigma.Fence)
	// Lose is called when the shard is not to be used any more. When it returns another may gain
	// it.
	Lose func(shard int)
}

// Own makes the program a member under a name until ctx ends; then it has lost all its shards. A
// member whose lease ended, because it stood still, loses its shards and is a member again.
func Own(ctx context.Context, n sigma.Namespace, cfg Config, name string, cb Callbacks) error {
	err := cfg.fill()
	for _, dir := range []string{"/members", "/locks", "/epochs"} {
		if err == nil {
			err = n.MkdirAll(ctx, cfg.Dir+dir, 0o755)
		}
	}
	for err == nil {
		if err = own(ctx, n, cfg, name, cb); ctx.Err() == nil && again(err) {
			retry.Pause(ctx, retryPause)
			err = ctx.Err()
		}
	}
	return sigma.Wrap("shard.Own", cfg.Dir, err)
}

// own is a member's life under one lease.
func own(ctx context.Context, n sigma.Namespace, cfg Config, name string, cb Callbacks) error {
	lease, revoke, err := n.Lease(ctx, cfg.TTL)
	if err != nil {
		return err
	}
	defer func() { revoke(context.WithoutCancel(ctx)) }()
	path := cfg.Dir + "/members/" + name
	id, err := n.Put(ctx, path, nil, sigma.PutOptions{MustMake: true, Wait: true, Lease: lease})
	if err != nil {
		return unknown(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if gone(ctx, n, path, id) {
			cancel(sigma.Errorf("shard.Own", sigma.KindStale, "the member's lease has ended"))
		}
	}()
	m := &member{names: n, cfg: cfg, lease: lease, cb: cb, ended: cancel, word: rand.Text(),
		owned: map[int]context.CancelFunc{}}
	defer m.all.Wait()
	for a, err := range Follow(ctx, n, cfg.Dir) {
		if err != nil {
			cancel(err)
			break
		}
		m.assign(ctx, a.Of(name))
	}
	return context.Cause(ctx)
}

// member has shards, or waits for them, each in a goroutine of its own.
type member struct {
	names sigma.Namespace
	cfg   Config
	lease sigma.LeaseID
	word  string // in its locks
	cb    Callbacks
	ended context.CancelCauseFunc
	all   sync.WaitGroup
	owned map[int]context.CancelFunc // by the goroutine of own alone
}

// assign begins and ends to have shards.
func (m *member) assign(ctx context.Context, shards []int) {
	for shard, lose := range m.owned {
		if _, is := slices.BinarySearch(shards, shard); !is {
			lose()
			delete(m.owned, shard)
		}
	}
	for _, shard := range shards {
		if m.owned[shard] == nil {
			having, lose := context.WithCancel(ctx)
			m.owned[shard] = lose
			m.all.Go(func() {
				err := m.have(having, shard)
				if kind := sigma.KindOf(err); err != nil && kind != sigma.KindCanceled && kind != sigma.KindTimeout {
					m.ended(err)
				}
			})
		}
	}
}

// have waits for a shard, and has it until ctx ends.
func (m *member) have(ctx context.Context, shard int) error {
	file := "/" + strconv.Itoa(shard)
	lock, whole := m.cfg.Dir+"/locks"+file, context.WithoutCancel(ctx)
	// A member that is to have a shard again waits for itself here.
	id, err := m.names.Put(ctx, lock, []byte(m.word), sigma.PutOptions{MustMake: true, Wait: true, Lease: m.lease})
	if err != nil {
		if ctx.Err() != nil { // it may have been made all the same
			text, _, gerr := m.names.Get(sigma.WithSync(whole), lock)
			if gerr == nil && string(text) == m.word {
				return m.release(whole, lock)
			}
		}
		return unknown(err)
	}
	fence, err := m.names.AdvanceEpoch(whole, m.cfg.Dir+"/epochs"+file)
	if err != nil {
		return unknown(err)
	}
	// From this request on no former owner removes the lock, so that it is known whether one did.
	fenced := sigma.WithFence(whole, fence)
	st, err := m.names.Stat(sigma.WithSync(fenced), lock)
	if err != nil || st.ID.Path != id.Path {
		return &sigma.Error{Kind: sigma.KindStale, Msg: "the member's lease has ended", Err: err}
	}
	if ctx.Err() == nil {
		m.cb.Gain(ctx, shard, fence)
		<-ctx.Done()
		m.cb.Lose(shard)
	}
	return m.release(fenced, lock)
}

// release gives a lock back. An error ends the member, and with it its lease.
func (m *member) release(ctx context.Context, lock string) error {
	for {
		err := m.names.Remove(ctx, lock)
		switch kind := sigma.KindOf(err); {
		case err == nil, kind == sigma.KindNotFound, kind == sigma.KindStale:
			return nil
		case kind != sigma.KindLost && !kind.Retryable():
			return err
		}
		retry.Pause(ctx, retryPause)
	}
}

// unknown makes an error one after which the member begins anew: its lease may have ended, and a
// lock may be there.
func unknown(err error) error {
	if sigma.KindOf(err) == sigma.KindNotFound {
		return &sigma.Error{Kind: sigma.KindStale, Msg: "the member's lease has ended", Err: err}
	}
	return err
}

// gone is true when a file is gone, or another one, before ctx ends.
func gone(ctx context.Context, n sigma.Namespace, path string, id sigma.FileID) bool {
	for v := id.Version; ctx.Err() == nil; {
		now, err := n.Watch(ctx, path, v)
		switch {
		case err == nil:
			if st, serr := n.Stat(sigma.WithSync(ctx), path); serr == nil && st.ID.Path != id.Path {
				return true
			}
			v = now
		case sigma.KindOf(err) == sigma.KindNotFound:
			return ctx.Err() == nil
		default:
			retry.Pause(ctx, retryPause)
		}
	}
	return false
}

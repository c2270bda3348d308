package kv

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/lib/shard"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

const (
	// pauseLeast and pauseMost bound the pause before a request is made again. The first ones are
	// short, since a shard that moves is served again after some milliseconds.
	pauseLeast = time.Millisecond
	pauseMost  = 100 * time.Millisecond
	// movingPause bounds the pause while nobody serves the shard, which its move ends soon.
	movingPause = 8 * time.Millisecond
	// messageMax bounds requests and answers.
	messageMax = 4 << 20
)

// Realm is what a clerk needs of a connection to the system.
type Realm interface {
	Get(ctx context.Context, path string) ([]byte, sigma.FileID, error)
	Watch(ctx context.Context, path string, since sigma.Version) (sigma.Version, error)
	WaitFor(ctx context.Context, path string) error
	// Find gives a member of the directory dir, as sdk.Dialer.Find does.
	Find(dir string) call.Find
}

type realm struct{ *sdk.Client }

func (r realm) Find(dir string) call.Find { return r.Dialer(dir).Find }

// Item is a key with what it has.
type Item struct {
	Key     string
	Value   []byte
	Version uint64    // grows with each write of the key, also after a Delete
	Expires time.Time // zero = never
}

// Clerk is a store as programs use it. Safe for concurrent use.
type Clerk struct {
	name  string
	realm Realm
	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup

	now  atomic.Pointer[layout.Config]
	file uint64    // sigma.FileID.Path of now's, of follow alone
	once sync.Once // follow has begun

	mu      sync.Mutex
	groups  map[uint32]*call.Router // mu
	lanes   []*lane                 // mu; those that no request uses
	news    chan struct{}           // mu; closed when the configuration changes
	failure error                   // mu; why the configuration cannot be followed
}

// lane is a session: it makes one write at a time.
type lane struct{ client, seq uint64 }

// Open gives a store by its name. It asks nobody; the store need not exist yet. Close it.
func Open(c *sdk.Client, name string) (*Clerk, error) { return OpenBy(realm{c}, name) }

// OpenBy is Open by another way to the system.
func OpenBy(r Realm, name string) (*Clerk, error) {
	if err := layout.CheckName(name); err != nil {
		return nil, err
	}
	c := &Clerk{name: name, realm: r, groups: map[uint32]*call.Router{}, news: make(chan struct{})}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Close ends the clerk's connections; what is under way fails.
func (c *Clerk) Close() {
	c.end()
	c.mu.Lock()
	groups := c.groups
	c.groups = nil
	c.mu.Unlock()
	for _, r := range groups {
		r.Close()
	}
	c.tasks.Wait()
}

// config gives the store's configuration, once it is known.
func (c *Clerk) config(ctx context.Context) (*layout.Config, error) {
	if now := c.now.Load(); now != nil {
		return now, nil
	}
	c.once.Do(func() { c.tasks.Go(c.follow) })
	for {
		c.mu.Lock()
		news, failure := c.news, c.failure
		c.mu.Unlock()
		if now := c.now.Load(); now != nil {
			return now, nil
		}
		if failure != nil {
			return nil, failure
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.life.Done():
			return nil, errClosed
		}
	}
}

var errClosed = &sigma.Error{Op: "kv.Clerk", Kind: sigma.KindUnavailable, Msg: "the clerk is closed",
	Err: net.ErrClosed}

// follow keeps the configuration as the names have it.
func (c *Clerk) follow() {
	path := layout.File(c.name)
	for c.life.Err() == nil {
		text, id, err := c.realm.Get(c.life, path)
		var now *layout.Config
		if err == nil {
			now, err = layout.ParseOf(c.name, text)
		}
		c.learn(now, id.Path, err)
		switch {
		case err == nil:
			if _, err := c.realm.Watch(c.life, path, id.Version); err == nil {
				continue
			}
		case sigma.KindOf(err) == sigma.KindNotFound:
			within, cancel := context.WithTimeout(c.life, time.Second)
			c.realm.WaitFor(within, path)
			cancel()
		}
		retry.Pause(c.life, pauseMost)
	}
}

// learn takes a configuration and the number of its file, or why there is none. Another file is
// that of a store that was removed and made again, whose epochs begin anew.
func (c *Clerk) learn(now *layout.Config, file uint64, err error) {
	if old := c.now.Load(); now != nil && (old == nil || now.Epoch >= old.Epoch || file != c.file) {
		c.now.Store(now)
		c.file = file
	}
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		err = &sigma.Error{Op: "kv.Clerk", Path: layout.Dir(c.name), Kind: sigma.KindNotFound,
			Msg: "there is no store " + c.name, Hint: "make it with: sigma kv create " + c.name, Err: err}
		c.now.Store(nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = err
	close(c.news)
	c.news = make(chan struct{})
}

// router gives the connections to a group.
func (c *Clerk) router(group uint32) (*call.Router, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups == nil {
		return nil, errClosed
	}
	r := c.groups[group]
	if r == nil {
		r = call.NewRouter(c.realm.Find(layout.Members(c.name, group)), call.Config{MessageMax: messageMax,
			CallsMax: 4096})
		c.groups[group] = r
	}
	return r, nil
}

// lane gives a session that no other request uses.
func (c *Clerk) lane() *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.lanes); n > 0 {
		l := c.lanes[n-1]
		c.lanes = c.lanes[:n-1]
		return l
	}
	return &lane{client: rand.Uint64() | 1}
}

func (c *Clerk) give(l *lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lanes = append(c.lanes, l)
}

// ask makes a request of a shard until its group has answered it, or ctx ends.
func (c *Clerk) ask(ctx context.Context, m *call.Method, shard uint16, arg, reply []byte) ([]byte, store.Result,
	error) {
	group, epoch := uint32(0), uint64(0) // where a member has sent the request, and the configuration then
	pause := pauseLeast
	tried := false // a member may have taken the request
	for hop := 0; ; hop++ {
		cfg, err := c.config(ctx)
		if err != nil {
			return reply, store.Result{}, unanswered(tried, err)
		}
		if int(shard) >= len(cfg.Owners) {
			return reply, store.Result{}, sigma.Errorf("kv.Clerk", sigma.KindInvalid, "there is no shard %d", shard)
		}
		if group == 0 || cfg.Epoch > epoch && cfg.Owners[shard] != group {
			group, epoch = cfg.Owners[shard], cfg.Epoch
		}
		var r store.Result
		out, err := c.askGroup(ctx, m, group, arg, reply)
		if err == nil {
			if err = r.Parse(out[len(reply):]); err == nil && r.Code != store.NotHere {
				return out, r, nil
			}
		}
		tried = tried || err != nil && err != errClosed
		switch {
		case ctx.Err() != nil:
			return reply, r, sigma.Wrap("kv.Clerk", c.name, context.Cause(ctx))
		case err == nil && r.Version != 0 && uint32(r.Version) != group:
			group, epoch = uint32(r.Version), cfg.Epoch
			if hop < 2 {
				continue
			}
		case err != nil && !again(err):
			return reply, r, err
		case err != nil: // the group may be none any more
			group = 0
		default:
			pause = min(pause, movingPause)
		}
		if c.life.Err() != nil {
			return reply, r, unanswered(tried, errClosed)
		}
		if !retry.Pause(ctx, pause) {
			return reply, r, sigma.Wrap("kv.Clerk", c.name, context.Cause(ctx))
		}
		pause = min(2*pause, pauseMost)
	}
}

// unanswered is the error of a request that ends by err. Once a member may have taken the request,
// a kind that promises that it was not applied becomes KindLost.
func unanswered(tried bool, err error) error {
	if !tried || !sigma.KindOf(err).Retryable() {
		return err
	}
	return &sigma.Error{Op: "kv.Clerk", Kind: sigma.KindLost, Msg: "the store did not answer", Err: err,
		Hint: "a write may have taken effect: get the key"}
}

func (c *Clerk) askGroup(ctx context.Context, m *call.Method, group uint32, arg, reply []byte) ([]byte, error) {
	r, err := c.router(group)
	if err != nil {
		return reply, err
	}
	return r.Call(ctx, m, calls.Leader, arg, reply)
}

// AskGroup makes a call to the leader of a group until it is answered by a store.Result, or ctx
// ends. Movers use it.
func (c *Clerk) AskGroup(ctx context.Context, group uint32, m *call.Method, arg []byte) (r store.Result, err error) {
	for pause := pauseLeast; ; pause = min(2*pause, pauseMost) {
		out, err := c.askGroup(ctx, m, group, arg, nil)
		if err == nil {
			return r, r.Parse(out)
		}
		if !again(err) || ctx.Err() != nil || !retry.Pause(ctx, pause) {
			return r, err
		}
	}
}

// again reports whether a request that failed is made again: nobody leads, or who led has died.
func again(err error) bool {
	switch kind := sigma.KindOf(err); kind {
	case sigma.KindNotFound, sigma.KindLost, sigma.KindStale, sigma.KindLoop, sigma.KindCanceled, sigma.KindTimeout:
		return true
	default:
		return kind.Retryable()
	}
}

// shardOf gives the shard of a key.
func (c *Clerk) shardOf(ctx context.Context, key string) (uint16, error) {
	cfg, err := c.config(ctx)
	if err != nil {
		return 0, err
	}
	return Shard(key, len(cfg.Owners)), nil
}

// Shard is the shard that a key belongs to, the same for all programs.
func Shard(key string, shards int) uint16 { return uint16(shard.Of(key, shards)) }

// requests are buffers for requests and answers.
var requests = sync.Pool{New: func() any { return new([2][]byte) }}

// bufferMost is the largest buffer that is kept.
const bufferMost = 64 << 10

// do makes a request and gives its result; use reads the result's value, which is not kept.
func (c *Clerk) do(ctx context.Context, q *store.Request, key string, use func(store.Result)) (r store.Result,
	err error) {
	if len(key) > store.KeyMax || len(q.Value) > store.ValueMax && q.Op != store.GetMany {
		return r, store.TooBig(len(key), len(q.Value))
	}
	room := requests.Get().(*[2][]byte)
	defer requests.Put(room)
	q.Key = append(q.Key[:0], key...)
	arg, err := q.Append(room[0][:0])
	if err != nil {
		return r, err
	}
	out, r, err := c.ask(ctx, calls.Do, q.Shard, arg, room[1][:0])
	if err == nil && use != nil {
		use(r)
	}
	if cap(arg) <= bufferMost && cap(out) <= bufferMost {
		room[0], room[1] = arg[:0], out[:0]
	}
	if err != nil {
		return r, err
	}
	switch r.Code {
	case store.Done, store.Missing, store.Mismatch:
		return r, nil
	}
	return r, &sigma.Error{Op: "kv.Clerk", Path: c.name, Kind: sigma.KindStale,
		Msg: fmt.Sprintf("the store refused the request (%d)", r.Code)}
}

func missing(op, key string) error {
	return &sigma.Error{Op: op, Kind: sigma.KindNotFound, Msg: fmt.Sprintf("there is no key %.80q", key)}
}

// Get gives a key's value and version. KindNotFound if there is no such key.
func (c *Clerk) Get(ctx context.Context, key string) (value []byte, version uint64, err error) {
	q := store.Request{Op: store.Get}
	if q.Shard, err = c.shardOf(ctx, key); err != nil {
		return nil, 0, err
	}
	r, err := c.do(ctx, &q, key, func(r store.Result) { value = append([]byte{}, r.Value...) })
	if err != nil {
		return nil, 0, err
	}
	if r.Code == store.Missing {
		return nil, 0, missing("kv.Get", key)
	}
	return value, r.Version, nil
}

// Options change what a write does. The zero value is none of them.
type Options struct {
	// TTL is after how long the key is gone, in whole milliseconds; 0 = never. One that is negative
	// or under a millisecond is KindInvalid.
	TTL time.Duration
}

// millis gives the TTL as requests have it.
func (o Options) millis() (uint64, error) {
	if o.TTL != 0 && o.TTL < time.Millisecond {
		return 0, &sigma.Error{Op: "kv.Put", Kind: sigma.KindInvalid,
			Msg:  fmt.Sprintf("a key cannot expire after %v", o.TTL),
			Hint: "a TTL is a millisecond at least, or 0 for a key that stays"}
	}
	return uint64(o.TTL.Milliseconds()), nil
}

// Put sets a key's value, and gives its version.
func (c *Clerk) Put(ctx context.Context, key string, value []byte, o Options) (version uint64, err error) {
	ttl, err := o.millis()
	if err != nil {
		return 0, err
	}
	return c.write(ctx, "kv.Put", key, store.Request{Op: store.Put, Value: value, TTL: ttl})
}

// PutIf is Put of a key that has a version, 0 = there is no such key. KindVersion: it has another
// one, which PutIf gives.
func (c *Clerk) PutIf(ctx context.Context, key string, version uint64, value []byte, o Options) (uint64, error) {
	ttl, err := o.millis()
	if err != nil {
		return 0, err
	}
	return c.write(ctx, "kv.PutIf", key, store.Request{Op: store.Put, Cond: store.IfVersion, If: version, Value: value,
		TTL: ttl})
}

// Delete removes a key. KindNotFound if there is none.
func (c *Clerk) Delete(ctx context.Context, key string) error {
	_, err := c.write(ctx, "kv.Delete", key, store.Request{Op: store.Delete})
	return err
}

// DeleteIf is Delete of a key that has a version. KindVersion: it has another one, or there is no
// such key.
func (c *Clerk) DeleteIf(ctx context.Context, key string, version uint64) error {
	_, err := c.write(ctx, "kv.DeleteIf", key, store.Request{Op: store.Delete, Cond: store.IfVersion, If: version})
	return err
}

func (c *Clerk) write(ctx context.Context, op, key string, q store.Request) (version uint64, err error) {
	if q.Shard, err = c.shardOf(ctx, key); err != nil {
		return 0, err
	}
	l := c.lane()
	defer c.give(l)
	l.seq++
	q.Client, q.Seq = l.client, l.seq
	r, err := c.do(ctx, &q, key, nil)
	switch {
	case err != nil:
		return 0, err
	case r.Code == store.Missing:
		return 0, missing(op, key)
	case r.Code == store.Mismatch:
		return r.Version, &sigma.Error{Op: op, Kind: sigma.KindVersion,
			Msg: fmt.Sprintf("the key %.80q has version %d", key, r.Version), Hint: "get the key, and decide again"}
	}
	return r.Version, nil
}

// Config gives the store's configuration.
func (c *Clerk) Config(ctx context.Context) (*layout.Config, error) { return c.config(ctx) }

// Group tells of a group, as its leader knows it.
func (c *Clerk) Group(ctx context.Context, group uint32) (st calls.Member, err error) {
	out, err := c.askGroup(ctx, calls.Status, group, nil, nil)
	if err == nil {
		err = json.Unmarshal(out, &st)
	}
	return st, err
}

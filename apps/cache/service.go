package cache

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"sigmaos.dev/apps/cache/op"
	"sigmaos.dev/apps/cache/store"
	"sigmaos.dev/apps/cache/text"
	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/lib/shard"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// Ranges is how many ranges the keys are divided into: enough that members' parts differ little,
// and few enough that a member that comes has its part within a second.
const Ranges = 64

// messageMax bounds messages of calls: a longest value with its key.
const messageMax = 12 << 20

// The methods of members. Those with a key are redirected to its owner.
var (
	doMethod    = &call.Method{Name: "sigma.cache/Do"}                      // op.Op, op.Result
	askMethod   = &call.Method{Name: "sigma.cache/Ask", Idempotent: true}   // as Do
	flushMethod = &call.Method{Name: "sigma.cache/Flush", Idempotent: true} // of this member
	statsMethod = &call.Method{Name: "sigma.cache/Stats", Idempotent: true} // nothing, MemberStats as JSON
)

func methodOf(o *op.Op) *call.Method {
	if o.Idempotent() {
		return askMethod
	}
	return doMethod
}

// rangeOf gives the range of a key.
func rangeOf(key []byte) int { return shard.Of(string(key), Ranges) }

// rangeKeys are what a call.Router knows ranges by.
var rangeKeys = func() (keys [Ranges]string) {
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	return keys
}()

// MemberStats is what a member tells of itself.
type MemberStats struct {
	store.Stats
	Hot []store.HotKey `json:"hot"`
}

const hotTold = 16

// callsMax is how many connections a member has besides those that text protocols may have. Half of
// the files that text.Config leaves are for others: connections to members, and what sdk has open.
const callsMax = 512

// Alone is a cache of one member that is not in a fleet: the backend of a text server that is an
// ordinary program.
type Alone struct{ Items *store.Store }

// Do implements op.Keys.
func (a Alone) Do(_ context.Context, o *op.Op, buf []byte) (op.Result, error) {
	return op.Apply(a.Items, o, store.Now(), buf)
}

// Flush implements text.Backend.
func (a Alone) Flush(context.Context) error { a.Items.Flush(); return nil }

// Store implements text.Backend.
func (a Alone) Store() *store.Store { return a.Items }

// Options says what a member is. The zero value of all but Memory is good.
type Options struct {
	Memory   sigma.Bytes // of items and what finds them
	Dir      string      // of the members, of a program that no fleet started
	ConnsMax int         // connections of text protocols; 0 = text.Config's
}

// Member is a member of a cache. Serve it once.
type Member struct {
	items  *store.Store
	fleet  *member.Member
	others *call.Router
	all    *call.Group
	texts  *text.Server
	calls  *call.Server
	floors [Ranges]atomic.Uint64 // versions below are of a time before the range was gained
}

// Open makes a member. It starts nothing.
func Open(c *sdk.Client, opts Options) (m *Member, err error) {
	m = &Member{calls: call.NewServer(call.Config{MessageMax: messageMax})}
	m.items, err = store.New(store.Config{Limit: int64(opts.Memory),
		Floor: func(key []byte) uint64 { return m.floors[rangeOf(key)].Load() }})
	if err != nil {
		return nil, err
	}
	m.fleet, err = member.Open(c, member.Options{Dir: opts.Dir, Ranges: Ranges, Gain: m.gain, Handoff: m.handoff,
		Drain: func(ctx context.Context) error { m.texts.Shutdown(ctx); return nil }})
	if err == nil {
		m.texts, err = text.New(text.Config{Backend: m, ConnsMax: opts.ConnsMax})
	}
	if err == nil {
		err = m.register()
	}
	if err != nil {
		m.items.Close()
		return nil, err
	}
	members := c.Dialer(m.fleet.Dir())
	m.calls.ConnsMax = m.texts.ConnsMax() + callsMax
	m.others = call.NewRouter(members.Find, call.Config{MessageMax: messageMax})
	m.all = call.NewGroup(members.Members, call.Config{})
	return m, nil
}

// Serve is the member's life; see member.Member.ServeCalls.
func (m *Member) Serve(ctx context.Context) error {
	defer m.items.Close()
	defer m.others.Close()
	defer m.all.Close()
	return m.fleet.ServeCalls(ctx, m.calls)
}

// gain takes a range. What is left of a time when the member had it before is not valid any more.
func (m *Member) gain(_ context.Context, r member.Range, _ []byte) error {
	m.floors[r.Number].Store(m.items.NextVersion())
	return nil
}

// handoff gives a range away, without its items: they are not valid here any more.
func (m *Member) handoff(ctx context.Context, r member.Range, _ string) ([]byte, error) {
	return nil, m.gain(ctx, r, nil)
}

func (m *Member) register() error {
	m.calls.Other = func(ctx context.Context, nc net.Conn, first []byte) { m.texts.ServeConn(ctx, nc, first) }
	for method, h := range map[*call.Method]call.Unary{
		doMethod: m.handle, askMethod: m.handle,
		flushMethod: func(_ context.Context, _, reply []byte) ([]byte, error) { m.items.Flush(); return reply, nil },
		statsMethod: func(_ context.Context, _, reply []byte) ([]byte, error) {
			text, err := json.Marshal(MemberStats{m.items.Stats(), m.items.Hot(hotTold)})
			return append(reply, text...), err
		},
	} {
		if err := m.calls.Handle(method, h); err != nil {
			return err
		}
	}
	return nil
}

// handle answers an operation, if the key is this member's.
func (m *Member) handle(ctx context.Context, arg, reply []byte) ([]byte, error) {
	o, err := op.Decode(arg)
	if err != nil {
		return reply, err
	}
	done, err := m.fleet.Use(ctx, rangeOf(o.Key))
	if err != nil {
		return reply, err
	}
	defer done()
	res, err := op.Apply(m.items, &o, store.Now(), nil)
	if err != nil {
		return reply, err
	}
	return res.Encode(reply), nil
}

// answerMax bounds the wait of a text protocol's command for another member.
const answerMax = 10 * time.Second

// ended is a context that has ended: nothing waits in it.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Do implements op.Keys for the text protocols: here, or by the owner. KindTimeout,
// KindUnavailable: no member has answered for answerMax.
func (m *Member) Do(ctx context.Context, o *op.Op, buf []byte) (op.Result, error) {
	if done, err := m.fleet.Use(ended, rangeOf(o.Key)); err == nil {
		defer done()
		return op.Apply(m.items, o, store.Now(), buf)
	}
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	return m.await(ctx, o, buf)
}

// await applies an operation once it is known who has the key.
func (m *Member) await(ctx context.Context, o *op.Op, buf []byte) (op.Result, error) {
	number := rangeOf(o.Key)
	done, err := m.fleet.Use(ctx, number)
	if err == nil {
		defer done()
		return op.Apply(m.items, o, store.Now(), buf)
	}
	if _, redirected := call.Owner(err); !redirected {
		return op.Result{}, err
	}
	return route(ctx, m.others, o, number)
}

// route has the owner of a key apply an operation.
func route(ctx context.Context, r *call.Router, o *op.Op, number int) (op.Result, error) {
	reply, err := r.Call(ctx, methodOf(o), rangeKeys[number], o.Encode(nil), nil)
	if err != nil {
		return op.Result{}, err
	}
	return op.DecodeResult(reply)
}

// Flush implements text.Backend: all members flush.
func (m *Member) Flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	return flush(ctx, m.all)
}

func flush(ctx context.Context, all *call.Group) error {
	answers, err := all.Call(ctx, flushMethod, nil)
	for _, a := range answers {
		if a.Err != nil && err == nil {
			err = &sigma.Error{Op: "cache.Flush", Kind: sigma.KindOf(a.Err), Err: a.Err,
				Msg: fmt.Sprintf("%s was not flushed", a.Member), Hint: "flush again"}
		}
	}
	return err
}

// Store implements text.Backend.
func (m *Member) Store() *store.Store { return m.items }

// Package member is one replica of a group of a kv store: a proc that keeps the group's shards with
// the other replicas, and answers clerks and movers while it leads.
//
// It promises: what it acknowledged is kept as lib/replica promises; a read sees all writes that
// were acknowledged before it began; what is not its group's is refused with a hint of where it is.
// A member that starts joins its group, and takes the place of members whose procs have ended; one
// of a durable group goes on with its log. It refuses writes when keys, sessions and
// changes take more than their part of the proc's memory.
//
// It assumes that initd keeps the procs of the group running, and that a group of one replica in
// memory whose proc ends may begin again with nothing. Users: cmd/kv.
//
// It costs: a call of a group of one takes one decoding, two mutexes and the map. It starts some
// five goroutines.
package member

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/lib/replica"
	"sigmaos.dev/lib/replica/peer"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

const (
	// A member that hears nothing of its leader for 350 to 700 ms stands for election.
	tick          = 25 * time.Millisecond
	electionTicks = 14
	// tendEvery is the time between two looks at keys that expire, memory and members.
	tendEvery = 250 * time.Millisecond
	// againPause is the time before what failed is tried again.
	againPause = 50 * time.Millisecond
	// commandMax bounds a command: a page of a move with one item of the largest value, and more.
	commandMax = 4 << 20
	// messageMax bounds a message between members: a command, and what raft adds.
	messageMax = commandMax + 2<<20
	// goneAfter is how long a member's name is missing before the leader takes it out of the group.
	goneAfter = 3 * time.Second
	// lostAfter is how long a new member finds no leader before it ends. An election takes one
	// second.
	lostAfter = 8 * time.Second
	// lonelyMost is how long a member knows no leader before it ends, and its proc is started anew.
	lonelyMost = 20 * time.Second
	// departMost bounds what a member that is asked to go spends on going in good order. initd has
	// it killed after five seconds.
	departMost = 4 * time.Second
)

// Place is which member of which group a proc is.
type Place struct {
	Store string
	Group uint32
	Index int // 0 is the first
}

// Member is a replica. Make it by Run.
type Member struct {
	c     *sdk.Client
	name  string // of the store
	group uint32
	index int
	limit int // bytes of the store
	log   *slog.Logger

	id      uint64
	durable bool
	self    string // by which others find it: the proc or, of a durable group, its slot
	store   *store.Store
	replica *replica.Replica
	// transport reaches the other members. A group of one has others while it is replaced.
	transport *peer.Transport
	replicas  int // that the group is to have
	others    *call.Router
	leader    leader
	pictures  pictures
	full      atomic.Bool
	departing atomic.Bool // the member leaves its group, and ends then
	joined    sync.Mutex  // one Join at a time
}

// ErrAsked is what Run gives when the proc was asked to go.
var ErrAsked = errors.New("the proc was asked to go")

// Run is the life of a member, until ctx ends or the proc is asked to go: then it hands over and,
// unless its log stays, leaves the group. memory is what the proc has; started is called when the
// member serves.
func Run(ctx context.Context, c *sdk.Client, at Place, memory int, log *slog.Logger, started func() error) error {
	name, group := at.Store, at.Group
	m := &Member{c: c, name: name, group: group, index: at.Index, limit: memory / 5 * 2, log: log,
		id: 1 + rand.Uint64N(1<<63-1), store: store.New(), leader: newLeader()}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	defer l.Close()
	m.self = string(l.Endpoint().Proc)
	members := c.Dialer(layout.Members(name, group))
	m.others = call.NewRouter(m.other(members), call.Config{})
	defer m.others.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := m.open(ctx, members.Find); err != nil {
		return err
	}
	defer m.replica.Close()
	s := call.NewServer(call.Config{MessageMax: messageMax, CallsMax: 4096})
	if err := m.register(s); err != nil {
		return err
	}
	var tasks sync.WaitGroup
	defer m.transport.Close()
	defer tasks.Wait()
	defer cancel(nil)
	tasks.Go(func() { cancel(m.replica.Run(ctx)) })
	tasks.Go(func() { cancel(s.Serve(ctx, l)) })
	tasks.Go(func() { m.watchLeader(ctx) })
	tasks.Go(func() {
		if err := c.WaitEvict(ctx); ctx.Err() == nil {
			m.departing.Store(true)
			m.depart(ctx)
			cancel(cmp.Or(err, ErrAsked))
		}
	})
	leave, err := c.JoinAs(ctx, layout.Members(name, group), m.self, l.Endpoint())
	if err != nil {
		return err
	}
	defer func() { leave(context.WithoutCancel(ctx)) }()
	if err := m.enter(ctx); err != nil {
		return err
	}
	if err := started(); err != nil {
		return err
	}
	tasks.Go(func() { cancel(m.tend(ctx)) })
	<-ctx.Done()
	return context.Cause(ctx)
}

// other finds the member of a name, and with no name any other one: this member knows what it could
// answer itself.
func (m *Member) other(members *sdk.Dialer) call.Find {
	return func(ctx context.Context, name, key string) (string, func(context.Context) (net.Conn, error), error) {
		if name != "" {
			return members.Find(ctx, name, key)
		}
		all, err := members.Members(ctx)
		for name, dial := range all {
			if name != m.self {
				return name, dial, nil
			}
		}
		if err == nil {
			err = sigma.Errorf("kv.member", sigma.KindUnavailable, "no other member of the group is published")
		}
		return "", nil, err
	}
}

// register gives the server the member's methods.
func (m *Member) register(s *call.Server) error {
	for _, h := range []struct {
		m *call.Method
		h call.Unary
	}{{calls.Do, m.do}, {calls.Step, m.step}, {calls.Export, m.export}, {calls.Watch, m.watch},
		{calls.Join, m.join}, {calls.Leave, m.leave}, {calls.Status, m.status}} {
		if err := s.Handle(h.m, h.h); err != nil {
			return err
		}
	}
	return m.transport.Register(s, m.replica)
}

var errRequest = &sigma.Error{Op: "kv.member", Kind: sigma.KindInvalid, Msg: "that is no request of a kv store",
	Hint: "is the clerk built of another version than the store?"}

// do answers a clerk. It is on the path that decides how fast a store is: it waits for nothing when
// the group has one replica in memory.
func (m *Member) do(ctx context.Context, arg, reply []byte) ([]byte, error) {
	var q store.Request
	if err := q.Parse(arg); err != nil {
		return reply, err
	}
	switch {
	case q.Op.Reads():
		if err := m.replica.Read(ctx); err != nil {
			return reply, err
		}
		return m.store.Read(&q, time.Now(), reply), nil
	case q.Op > store.Delete:
		return reply, errRequest
	case q.Op == store.Put && m.full.Load():
		if err := m.replica.Read(ctx); err != nil {
			return reply, err
		}
		if r := m.store.Answered(&q); r != nil { // it was applied when there was room
			return r.Append(reply), nil
		}
		return reply, m.errFull()
	}
	return m.propose(ctx, arg, reply)
}

func (m *Member) errFull() error {
	return &sigma.Error{Op: "kv.Put", Kind: sigma.KindNoSpace,
		Msg:  "the group's keys and sessions take " + sigma.Bytes(m.limit).String() + ", which is all that they may",
		Hint: "delete keys, or give the store more groups: sigma kv scale NAME GROUPS"}
}

// propose has the group apply an encoded request, and appends the encoded result to reply.
func (m *Member) propose(ctx context.Context, request, reply []byte) ([]byte, error) {
	command := slices.Clone(request)
	store.Stamp(command, time.Now())
	result, err := m.replica.Propose(ctx, replica.Session{}, command)
	return append(reply, result...), err
}

// step applies a step of a move. KindNoSpace: the group has no room for the shard.
func (m *Member) step(ctx context.Context, arg, reply []byte) ([]byte, error) {
	var q store.Request
	if err := q.Parse(arg); err != nil {
		return reply, err
	}
	if q.Op < store.Mark {
		return reply, errRequest
	}
	if (q.Op == store.Import || q.Op == store.Prepare) && m.store.Bytes() > m.limit {
		if err := m.replica.Read(ctx); err != nil {
			return reply, err
		}
		if q.Op == store.Import || m.store.Bytes()-m.store.Copied(q.Shard) > m.limit {
			return reply, m.errFull()
		}
	}
	return m.propose(ctx, arg, reply)
}

// export gives a page of a shard that moves.
func (m *Member) export(ctx context.Context, arg, reply []byte) ([]byte, error) {
	var a calls.ExportArg
	if err := sigmap.Parse(arg, a.Code); err != nil {
		return reply, err
	}
	if err := m.replica.Read(ctx); err != nil {
		return reply, err
	}
	var r store.Result
	switch a.Part {
	case calls.Items:
		items, code := m.store.Export(a.Shard, a.After)
		r = store.Result{Code: code, Value: store.EncodeItems(items)}
	case calls.Changes:
		all, code := m.store.ExportChanges(a.Shard, a.Version)
		r = store.Result{Code: code, Value: store.EncodeChanges(all)}
	case calls.Sessions:
		all, code := m.store.ExportSessions(a.Shard)
		r = store.Result{Code: code, Value: store.EncodeSessions(all)}
	case calls.Saved:
		r = m.pictures.page(m.store, a)
	}
	return r.Append(reply), nil
}

// watch answers when there are changes after places, or when the caller's time is over.
func (m *Member) watch(ctx context.Context, arg, reply []byte) ([]byte, error) {
	var a calls.WatchArg
	if err := sigmap.Parse(arg, a.Code); err != nil {
		return reply, err
	}
	if err := m.replica.Read(ctx); err != nil {
		return reply, err
	}
	w := store.NewWaiter(a.Prefix, a.Exact)
	defer m.store.Await(w, a.Places)()
	var fresh []store.News
	for i, p := range a.Places {
		if p.Version != calls.Now {
			continue
		}
		for _, at := range m.store.Versions([]uint16{p.Shard}) {
			a.Places[i] = at
			fresh = append(fresh, store.News{At: at})
		}
	}
	if fresh != nil {
		return append(reply, store.EncodeNews(fresh)...), nil
	}
	began := slices.Clone(a.Places)
	timer := time.NewTimer(min(max(a.Wait, 0), calls.WaitMost))
	defer timer.Stop()
	look := time.NewTicker(time.Second) // whether the member still leads
	defer look.Stop()
	for over := a.Wait <= 0; ; {
		news := advance(a.Places, m.store.Since(w, a.Places))
		if over || len(news) > 0 {
			return append(reply, store.EncodeNews(append(passed(began, a.Places), news...))...), nil
		}
		select {
		case <-w.Woken:
		case <-look.C:
			if err := m.replica.Read(ctx); err != nil {
				return reply, err
			}
		case <-timer.C:
			over = true
		case <-ctx.Done():
			return reply, ctx.Err()
		}
	}
}

// advance moves places past changes that the caller does not want, and gives the other news. News
// are in the order of places.
func advance(places []store.At, news []store.News) []store.News {
	i := 0
	return slices.DeleteFunc(news, func(n store.News) bool {
		for places[i].Shard != n.Shard {
			i++
		}
		skipped := n.Code == store.Done && len(n.Changes) == 0
		if skipped {
			places[i] = n.At
		}
		return skipped
	})
}

// passed gives the places that have moved, as news without changes.
func passed(began, places []store.At) (news []store.News) {
	for i, at := range places {
		if at != began[i] {
			news = append(news, store.News{At: at})
		}
	}
	return news
}

// status tells of the group.
func (m *Member) status(ctx context.Context, _, reply []byte) ([]byte, error) {
	if err := m.replica.Read(ctx); err != nil {
		return reply, err
	}
	st := m.replica.Status()
	out := calls.Member{Leader: m.self, Durable: m.durable, Term: st.Term,
		Bytes: m.store.Bytes(), Limit: m.limit, Shards: m.store.Shards()}
	for _, name := range st.Members {
		out.Members = append(out.Members, name)
	}
	slices.Sort(out.Members)
	slices.SortFunc(out.Shards, func(a, b store.ShardInfo) int { return int(a.Shard) - int(b.Shard) })
	text, err := json.Marshal(out)
	return append(reply, text...), err
}

// config reads the store's configuration.
func (m *Member) config(ctx context.Context) (*layout.Config, error) {
	text, _, err := m.c.Get(sigma.WithSync(ctx), layout.File(m.name))
	if err != nil {
		return nil, err
	}
	return layout.ParseOf(m.name, text)
}

// found gives the group its first shards, if it has begun and has none yet.
func (m *Member) found(ctx context.Context) error {
	if m.store.Founded() {
		return nil
	}
	cfg, err := m.config(ctx)
	if err != nil {
		return err
	}
	q := store.Request{Op: store.Found, Value: store.EncodeShards(cfg.Of(m.group))}
	b, err := q.Append(nil)
	if err != nil {
		return err
	}
	_, err = m.propose(ctx, b, nil)
	return err
}

// expire removes keys whose time has passed.
func (m *Member) expire(ctx context.Context) error {
	for _, shard := range m.store.Due(time.Now()) {
		q := store.Request{Op: store.Expire, Shard: shard}
		b, err := q.Append(nil)
		if err == nil {
			_, err = m.propose(ctx, b, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

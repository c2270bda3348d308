package call

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"sigmaos.dev/sigma"
)

const (
	// groupAtOnce bounds the members that one Call of a Group waits for at a time.
	groupAtOnce = 64
	// groupMax bounds the members, as each has a connection of its own: a proc can have 4,096
	// descriptors.
	groupMax = 1024
)

// Members tells who can be called now, by name, and how to connect to each; sdk.Dialer.Members is
// one.
type Members func(ctx context.Context) (map[string]func(context.Context) (net.Conn, error), error)

// Group calls all servers of a directory, whoever they are at that moment. It keeps a connection to
// each between calls. Safe for concurrent use.
type Group struct {
	members Members
	cfg     Config
	stats   stats // of members that have left too
	fellows
}

// fellows are the members that a Group or Router knows.
type fellows struct {
	mu     sync.Mutex
	closed bool               // mu
	known  map[string]*fellow // mu; by name
}

// Close ends all connections: calls under way fail with KindLost, later ones with KindUnavailable.
func (a *fellows) Close() error {
	a.mu.Lock()
	a.closed = true
	known := a.known
	a.known = map[string]*fellow{}
	a.mu.Unlock()
	for _, f := range known {
		f.client.Close()
	}
	return nil
}

// fellow is a member that was called, of a Group or a Router.
type fellow struct {
	name   string
	client *Client

	// Of fellows.mu:
	dial  func(context.Context) (net.Conn, error) // as it was told last
	calls int                                     // under way
	gone  bool                                    // of a Group: it was not in the last listing
}

// newFellow makes one whose dial is guarded by mu. A Router counts calls itself.
func newFellow(mu *sync.Mutex, name string, cfg Config, st *stats) *fellow {
	f := &fellow{name: name}
	f.client = NewClient(func(ctx context.Context) (net.Conn, error) {
		mu.Lock()
		dial := f.dial
		mu.Unlock()
		return dial(ctx)
	}, cfg)
	f.client.stats = st
	return f
}

// Answer is what became of one of several calls.
type Answer struct {
	Member string // "" with Client.CallMany
	Reply  []byte
	Err    error // as of Client.Call; KindUnavailable also if it left before it could be reached
}

// NewGroup makes a group of those whom members tells. It starts nothing. Close it.
func NewGroup(members Members, cfg Config) *Group {
	return &Group{members: members, cfg: cfg.filled(), fellows: fellows{known: map[string]*fellow{}}}
}

// Call makes a unary call to all members and gives what each of them answered, in the order of
// their names; none is no error, more than 1,024 are KindTooBig. Each call is one as of
// Client.Call: made at most once, unless its method is idempotent. The error is that of telling who
// they are. Who joins meanwhile is not called.
func (g *Group) Call(ctx context.Context, m *Method, arg []byte) ([]Answer, error) {
	now, err := g.members(ctx)
	if err != nil {
		return nil, sigma.Wrap("call.Group", m.Name, err)
	}
	if len(now) > groupMax {
		return nil, &sigma.Error{Op: "call.Group", Kind: sigma.KindTooBig,
			Msg:  fmt.Sprintf("%d members; %d can be called at once", len(now), groupMax),
			Hint: "divide them among several directories"}
	}
	fellows, old, err := g.begin(now)
	if err != nil {
		return nil, err
	}
	for _, c := range old {
		c.Close()
	}
	out := make([]Answer, 0, len(fellows))
	for name := range fellows {
		out = append(out, Answer{Member: name})
	}
	slices.SortFunc(out, func(a, b Answer) int { return strings.Compare(a.Member, b.Member) })
	var calls sync.WaitGroup
	next := make(chan *Answer)
	for range min(len(out), groupAtOnce) {
		calls.Go(func() {
			for a := range next {
				a.Reply, a.Err = fellows[a.Member].client.Call(ctx, m, arg, nil)
			}
		})
	}
	for i := range out {
		next <- &out[i]
	}
	close(next)
	calls.Wait()
	for _, c := range g.end(fellows) {
		c.Close()
	}
	return out, nil
}

// begin notes who there is, and gives those to call and the clients of those who are not called any
// more.
func (g *Group) begin(now map[string]func(context.Context) (net.Conn, error)) (fellows map[string]*fellow,
	old []*Client, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, nil, errClosed()
	}
	for name, f := range g.known {
		f.gone = now[name] == nil
	}
	for name, dial := range now {
		f := g.known[name]
		if f == nil {
			f = newFellow(&g.mu, name, g.cfg, &g.stats)
			g.known[name] = f
		}
		f.dial = dial
		f.calls++
	}
	fellows = maps.Clone(g.known)
	maps.DeleteFunc(fellows, func(_ string, f *fellow) bool { return f.gone })
	return fellows, g.oldLocked(), nil
}

// end notes that those were called.
func (g *Group) end(fellows map[string]*fellow) (old []*Client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range fellows {
		f.calls--
	}
	return g.oldLocked()
}

// oldLocked forgets those who have left and are not being called.
func (g *Group) oldLocked() (old []*Client) {
	for name, f := range g.known {
		if f.gone && f.calls == 0 {
			old = append(old, f.client)
			delete(g.known, name)
		}
	}
	return old
}

// Stats tells of each method that was called, at all members together.
func (g *Group) Stats() []MethodStats { return g.stats.snapshot() }

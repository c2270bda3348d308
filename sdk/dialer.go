package sdk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

const (
	// tryMost is for one member to be reached before the others are asked: a machine that says
	// nothing is called lost about as fast. Those that took longer are asked again, for longer.
	tryMost    = 2 * time.Second
	tryLongest = time.Minute
	// shunned is how long a member that could not be reached is asked after the others. The name of
	// one whose machine is lost stays until its lease ends.
	shunned = time.Second
	// linksMax bounds the symlinks at the end of a Dialer's path.
	linksMax = 8
)

// Dialer connects to the server that is published at a path, or to one of the servers in a
// directory: its members, the endpoints of FormStream in it whose names do not begin with a dot. It
// chooses by the directory's policy (Policy), in turn if there is none, and goes on to another
// member if one cannot be reached, so that members may come, go and die. What is on its way on a
// connection to one that dies is lost, as with TCP.
//
// A Dialer of a directory that is used again within seconds follows the directory by a watch. A
// choice costs no message then, and sees a change of members or policy about as soon as it is made.
// An endpoint that is replaced under its name by another is seen within a second, or when the old
// one does not answer.
//
// DialContext is what http.Transport asks for, Dial what grpc.WithContextDialer does. Safe for
// concurrent use.
type Dialer struct {
	c    *Client
	path string
	most time.Duration // tryMost

	turn   atomic.Uint64 // counts dials
	now    atomic.Pointer[snapshot]
	used   atomic.Bool   // since the watch looked
	awaits atomic.Int32  // dials that wait for a member
	wake   chan struct{} // has the directory listed again

	mu     sync.Mutex
	isDir  bool               // mu; what path was when last looked at
	known  map[string]*member // mu; by name
	policy Policy             // mu; as last read
	ruled  sigma.FileID       // mu; the file that policy was read from
	last   time.Time          // mu; when a dial looked
	not    time.Time          // mu; the directory is not watched before
}

// Dialer makes a Dialer for path, which need not exist yet.
func (c *Client) Dialer(path string) *Dialer {
	d := &Dialer{c: c, path: path, most: tryMost, wake: make(chan struct{}, 1), known: map[string]*member{}}
	d.turn.Store(rand.Uint64()) // so that clients do not all begin with the first
	return d
}

// DialContext connects to a member; network and address, which net/http makes of a URL, mean
// nothing to it. KindUnavailable if there is none that can be reached, KindNotFound if there is
// nothing at the path. If the policy has Wanted and there is no member, it waits for one.
func (d *Dialer) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	return d.DialKey(ctx, "")
}

// Dial is DialContext for those who know no networks.
func (d *Dialer) Dial(ctx context.Context, _ string) (net.Conn, error) { return d.DialKey(ctx, "") }

// DialKey is DialContext that with ChoiceHash connects to the member of a key. All clients find the
// same member for it. When members come or go few keys get another member.
func (d *Dialer) DialKey(ctx context.Context, key string) (net.Conn, error) {
	a := attempt{d: d, n: d.turn.Add(1), key: key, most: d.most}
	s := d.followed()
	for watched := s != nil; ; watched, s = false, nil {
		if s == nil {
			var err error
			if s, err = d.look(ctx); err != nil {
				return nil, err
			}
		}
		before := len(a.tried)
		c, err := a.round(ctx, s)
		if c != nil || err != nil {
			return c, err
		}
		// all that are there now have failed
		if len(a.tried) == before && !a.slow && !watched && !a.turnover(s.left) {
			return nil, d.nobody(a.said)
		}
	}
}

// attempt is one dial.
type attempt struct {
	d     *Dialer
	n     uint64
	key   string
	most  time.Duration // for one member
	slow  bool          // a member took longer than that
	tried map[sigma.EndpointID]bool
	said  []string
	gone  map[string]sigma.Version // members that left while they were looked at
}

// round tries the members of a snapshot. It returns nothing if none could be reached.
func (a *attempt) round(ctx context.Context, s *snapshot) (net.Conn, error) {
	if a.slow { // it may live on a busy host, so it is asked again, for longer
		a.most = min(2*a.most, tryLongest)
	}
	a.slow = false
	first := s.choose(a.n, a.key)
	if first != nil {
		if c, err := a.try(ctx, first); c != nil || err != nil {
			return c, err
		}
	}
	for _, m := range s.order(a.n, a.key) {
		if m != first {
			if c, err := a.try(ctx, m); c != nil || err != nil {
				return c, err
			}
		}
	}
	return nil, nil
}

// try dials a member, unless that has failed before. The error is that of ctx.
func (a *attempt) try(ctx context.Context, m *member) (net.Conn, error) {
	if a.tried[m.endpoint.ID] {
		return nil, nil
	}
	c, over, err := a.d.try(ctx, m, a.most)
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, sigma.Wrap("sdk.Dialer", a.d.path, ctx.Err())
	case over:
		a.slow = true // it is asked again after the others, and those who have come
		return nil, nil
	}
	if a.tried == nil {
		a.tried = map[sigma.EndpointID]bool{}
	}
	a.tried[m.endpoint.ID] = true
	a.d.hurry() // there may be another in its place
	a.said = append(a.said, fmt.Sprintf("%.80s: %.120s", m.name, err.Error()))
	return nil, nil
}

// turnover notes who left while the directory was looked at, and says whether it was anybody new.
// If it was, others may have joined since the listing: a client that is stalled between listing and
// reading finds that all of its listing have left, although the directory never was empty. That
// each look has to tell of somebody new bounds the looks by those who come.
func (a *attempt) turnover(left []sigma.DirEntry) (anew bool) {
	if a.gone == nil {
		a.gone = map[string]sigma.Version{}
	}
	for _, e := range left {
		if v, known := a.gone[e.Name]; !known || v != e.ID.Version {
			a.gone[e.Name], anew = e.ID.Version, true
		}
	}
	return anew
}

// Members gives those who can be dialled now, by name, with a way to connect to each. It is what
// call.NewGroup asks for. A path that leads to one endpoint has one member. It asks for the names
// each time.
func (d *Dialer) Members(ctx context.Context) (map[string]func(context.Context) (net.Conn, error), error) {
	s, err := d.list(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]func(context.Context) (net.Conn, error){}
	for _, m := range slices.Concat(s.members, s.broken) {
		out[m.name] = func(ctx context.Context) (net.Conn, error) {
			c, _, err := d.try(ctx, m, tryLongest)
			return c, err
		}
	}
	return out, nil
}

// Find gives the member of a name, KindNotFound if there is none now, or with no name the one that
// Pin chooses for a key, and a way to connect to it. It is what call.NewRouter asks for.
func (d *Dialer) Find(ctx context.Context, member, key string) (name string,
	dial func(context.Context) (net.Conn, error), err error) {
	var p *Pinned
	if member == "" {
		p, err = d.Pin(ctx, key)
	} else {
		p, err = d.pinTo(ctx, member)
	}
	if err != nil {
		return "", nil, err
	}
	return p.Member(), func(ctx context.Context) (net.Conn, error) { return p.DialContext(ctx, "", "") }, nil
}

// pinTo is Pin for the member of a name.
func (d *Dialer) pinTo(ctx context.Context, name string) (*Pinned, error) {
	s := d.followed()
	for again := s != nil; ; again = false {
		if s == nil {
			var err error
			if s, err = d.list(ctx); err != nil {
				return nil, err
			}
		}
		for _, m := range s.members {
			if m.name == name {
				return &Pinned{d, m}, nil
			}
		}
		if s = nil; !again { // it may have come just now
			return nil, sigma.PathError("sdk.Dialer", sigma.KindNotFound, within(d.path, name))
		}
	}
}

func (d *Dialer) nobody(said []string) error {
	e := &sigma.Error{Op: "sdk.Dialer", Path: d.path, Kind: sigma.KindUnavailable, Msg: "no server is published there",
		Hint: "has one been started, and has it joined the directory?"}
	if n := len(said); n > 0 {
		e.Msg, e.Hint = "no server that is published there can be reached ("+strings.Join(said[max(0, n-3):], "; ")+")",
			"sigma ps says which run"
	}
	return e
}

// try dials one member, for a while at most; over says that it took longer.
func (d *Dialer) try(ctx context.Context, m *member, most time.Duration) (c net.Conn, over bool, err error) {
	if m.err != nil {
		return nil, false, m.err
	}
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	m.open.Add(1) // before it is open, so that who chooses meanwhile counts it
	c, err = d.c.Dial(within, m.endpoint)
	if counted, ok := c.(*Conn); ok && err == nil {
		counted.member.Store(m)
	} else {
		m.open.Add(-1)
	}
	switch {
	case err == nil:
		if m.failed.Load() != nil {
			m.failed.Store(nil)
		}
	case ctx.Err() == nil:
		now := time.Now()
		m.failed.Store(&now)
	}
	return c, err != nil && within.Err() != nil, err
}

// single looks whether the path is that of one endpoint.
func (d *Dialer) single(ctx context.Context) (m *member, isDir bool, err error) {
	path := d.path
	m = &member{}
	for range linksMax {
		text, err := d.c.ReadLink(ctx, path)
		switch sigma.KindOf(err) {
		case sigma.KindInvalid, sigma.KindUnsupported, sigma.KindIsDir:
			if err != nil {
				return m, true, nil // no link: if it is no directory either, that is said next
			}
		}
		if err != nil {
			return m, false, err
		}
		if m.endpoint, err = sigma.ParseEndpoint(text); err == nil {
			m.name, m.err = path, unfit(m.endpoint)
			return m, false, nil
		}
		if !strings.HasPrefix(text, "/") { // relative to the link's directory
			text = path[:strings.LastIndexByte(path, '/')+1] + text
		}
		path = text
	}
	return m, false, sigma.PathError("sdk.Dialer", sigma.KindLoop, d.path)
}

// unfit says that an endpoint cannot be dialled for a stream.
func unfit(e sigma.Endpoint) error {
	if e.Form == sigma.FormStream {
		return nil
	}
	return sigma.Errorf("sdk.Dialer", sigma.KindUnsupported, "the endpoint is that of a tree")
}

package sdk

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
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
// directory: its members, the endpoints of FormStream in it. It takes members in turn, as they are
// at that moment, and goes on to the next one if one cannot be reached, so that members may come,
// go and die. What is on its way on a connection to one that dies is lost, as with TCP.
//
// DialContext is what http.Transport asks for, Dial what grpc.WithContextDialer does. Safe for
// concurrent use.
type Dialer struct {
	c    *Client
	path string
	most time.Duration // tryMost

	mu      sync.Mutex
	isDir   bool              // mu; what path was when last looked at
	members map[string]member // mu; of the last listing, by name
	turn    uint              // mu
}

type member struct {
	name     string
	version  sigma.Version // of its file
	endpoint sigma.Endpoint
	err      error     // why the file is no endpoint to dial
	failed   time.Time // when it could not be reached
}

// Dialer makes a Dialer for path, which need not exist yet.
func (c *Client) Dialer(path string) *Dialer {
	return &Dialer{c: c, path: path, most: tryMost,
		turn: rand.Uint()} // so that clients do not all begin with the first
}

// DialContext connects to a member; network and address, which net/http makes of a URL, mean
// nothing to it. KindUnavailable if there is none that can be reached, KindNotFound if there is
// nothing at the path.
func (d *Dialer) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	var said []string
	tried, gone := map[sigma.EndpointID]bool{}, map[string]sigma.Version{}
	for most := d.most; ; {
		members, left, err := d.look(ctx)
		if err != nil {
			return nil, err
		}
		fresh := slices.DeleteFunc(members, func(m member) bool { return tried[m.endpoint.ID] })
		slow := false
		for _, m := range fresh {
			c, over, err := d.try(ctx, m, most)
			if err == nil {
				return c, nil
			}
			if ctx.Err() != nil {
				return nil, sigma.Wrap("sdk.Dialer", d.path, ctx.Err())
			}
			if over {
				slow = true
				// it may live on a busy host, so it is asked again, for longer, after the others
				// and those who have come
				continue
			}
			tried[m.endpoint.ID] = true
			said = append(said, fmt.Sprintf("%.80s: %.120s", m.name, err.Error()))
		}
		if len(fresh) == 0 && !turnover(gone, left) { // all that are there now have failed
			return nil, d.nobody(said)
		}
		if slow {
			most = min(2*most, tryLongest)
		}
	}
}

// turnover notes who left while the directory was looked at, and says whether it was anybody new.
// If it was, others may have joined since the listing: a client that is stalled between listing and
// reading finds that all of its listing have left, although the directory never was empty. That
// each look has to tell of somebody new bounds the looks by those who come.
func turnover(gone map[string]sigma.Version, left []sigma.DirEntry) (anew bool) {
	for _, e := range left {
		if v, known := gone[e.Name]; !known || v != e.ID.Version {
			gone[e.Name], anew = e.ID.Version, true
		}
	}
	return anew
}

// Dial is DialContext for those who know no networks.
func (d *Dialer) Dial(ctx context.Context, _ string) (net.Conn, error) {
	return d.DialContext(ctx, "", "")
}

// Members gives those who can be dialled now, by name, with a way to connect to each. It is what
// call.NewGroup asks for. A path that leads to one endpoint has one member.
func (d *Dialer) Members(ctx context.Context) (map[string]func(context.Context) (net.Conn, error), error) {
	members, _, err := d.look(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]func(context.Context) (net.Conn, error){}
	for _, m := range members {
		out[m.name] = func(ctx context.Context) (net.Conn, error) {
			c, _, err := d.try(ctx, m, tryLongest)
			return c, err
		}
	}
	return out, nil
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
func (d *Dialer) try(ctx context.Context, m member, most time.Duration) (c net.Conn, over bool, err error) {
	if m.err != nil {
		return nil, false, m.err
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	c, err = d.c.Dial(ctx, m.endpoint)
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := d.members[m.name]; now.version == m.version && now.name == m.name {
		now.failed = time.Time{}
		if err != nil {
			now.failed = time.Now()
		}
		d.members[m.name] = now
	}
	return c, err != nil && ctx.Err() != nil, err
}

// look gives the members in the order in which to try them: in turn, those that could not be
// reached just now last. left are those that were listed and gone before they could be read.
func (d *Dialer) look(ctx context.Context) (out []member, left []sigma.DirEntry, err error) {
	d.mu.Lock()
	isDir := d.isDir
	d.mu.Unlock()
	if !isDir {
		m, isDir, err := d.single(ctx)
		if err != nil || !isDir {
			return []member{m}, nil, err
		}
	}
	entries, err := d.c.ReadDir(ctx, d.path)
	if err != nil {
		d.mu.Lock()
		d.isDir = false
		d.mu.Unlock()
		return nil, nil, err
	}
	d.mu.Lock()
	old := maps.Clone(d.members)
	d.isDir = true
	d.turn++
	turn := d.turn
	d.mu.Unlock()
	members := map[string]member{}
	for _, e := range entries {
		if e.ID.Kind != sigma.KindEndpoint {
			continue
		}
		m, known := old[e.Name]
		if !known || m.version != e.ID.Version {
			m = d.read(ctx, e)
			if k := sigma.KindOf(m.err); m.err != nil &&
				(k == sigma.KindNotFound || k == sigma.KindStale) { // stale: it left while it was read
				left = append(left, e)
				continue
			}
		}
		if k := sigma.KindOf(m.err); m.err == nil || k == sigma.KindInvalid ||
			k == sigma.KindUnsupported { // what else it is may pass
			members[e.Name] = m
		}
		out = append(out, m)
	}
	d.mu.Lock()
	d.members = members
	d.mu.Unlock()
	if len(out) == 0 {
		return nil, left, nil
	}
	at := int(turn % uint(len(out)))
	out = slices.Concat(out[at:], out[:at])
	slices.SortStableFunc(out, func(a, b member) int { return order(a) - order(b) })
	return out, left, nil
}

func order(m member) int {
	if m.err != nil || time.Since(m.failed) < shunned {
		return 1
	}
	return 0
}

func (d *Dialer) read(ctx context.Context, e sigma.DirEntry) member {
	m := member{name: e.Name, version: e.ID.Version}
	text, err := d.c.ReadLink(ctx, strings.TrimSuffix(d.path, "/")+"/"+e.Name)
	if err == nil {
		m.endpoint, err = sigma.ParseEndpoint(text)
	}
	if err == nil && m.endpoint.Form != sigma.FormStream {
		err = sigma.Errorf("sdk.Dialer", sigma.KindUnsupported, "the endpoint is that of a tree")
	}
	m.err = err
	return m
}

// single looks whether the path is that of one endpoint.
func (d *Dialer) single(ctx context.Context) (m member, isDir bool, err error) {
	path := d.path
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
			m.name = path
			if m.endpoint.Form != sigma.FormStream {
				m.err = sigma.Errorf("sdk.Dialer", sigma.KindUnsupported, "the endpoint is that of a tree")
			}
			return m, false, nil
		}
		if !strings.HasPrefix(text, "/") { // relative to the link's directory
			text = path[:strings.LastIndexByte(path, '/')+1] + text
		}
		path = text
	}
	return m, false, sigma.PathError("sdk.Dialer", sigma.KindLoop, d.path)
}

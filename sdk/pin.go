package sdk

import (
	"context"
	"net"

	"sigmaos.dev/sigma"
)

// Pinned connects to one member of a directory only, for what has to reach the same member from its
// beginning to its end: a transaction, a session. Safe for concurrent use. It needs no end.
type Pinned struct {
	d *Dialer
	m *member
}

// Pin chooses a member as DialKey does, without connecting to it: errors are those of DialKey, and
// a policy with Wanted has it wait as well.
func (d *Dialer) Pin(ctx context.Context, key string) (*Pinned, error) {
	s := d.followed()
	if s == nil || len(s.members) == 0 {
		var err error
		if s, err = d.look(ctx); err != nil {
			return nil, err
		}
	}
	if m := s.choose(d.turn.Add(1), key); m != nil {
		return &Pinned{d, m}, nil
	}
	var said []string
	for _, m := range s.broken {
		said = append(said, m.name+": "+m.err.Error())
	}
	return nil, d.nobody(said)
}

// Member is the name of the member in the directory; of a path that leads to one endpoint, where
// that is.
func (p *Pinned) Member() string { return p.m.name }

// Dial is DialContext for those who know no networks.
func (p *Pinned) Dial(ctx context.Context, _ string) (net.Conn, error) {
	return p.DialContext(ctx, "", "")
}

// DialContext connects to the member. A member that has left its directory, and still accepts, is
// connected to. KindLost: it cannot be reached and is no member any more, so that what it knew is
// gone; KindUnavailable: it cannot be reached, and is a member.
func (p *Pinned) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	c, _, err := p.d.try(ctx, p.m, tryLongest)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, sigma.Wrap("sdk.Pinned", p.d.path, ctx.Err())
	}
	p.d.hurry()
	s, lerr := p.d.list(ctx)
	if lerr != nil && sigma.KindOf(lerr) != sigma.KindNotFound {
		return nil, err
	}
	if lerr == nil {
		for _, m := range s.members {
			if m.endpoint == p.m.endpoint {
				return nil, err
			}
		}
	}
	return nil, &sigma.Error{Op: "sdk.Pinned", Path: p.d.path, Kind: sigma.KindLost,
		Msg: "the member " + p.m.name + " is gone", Hint: "begin again with another: Pin chooses one", Err: err}
}

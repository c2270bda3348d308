package reach

import (
	"context"

	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// farKey names a session with another machine's sigmad that is kept. The realm is "" for that of
// peers.
type farKey struct {
	machine sigma.MachineID
	realm   sigma.RealmID
}

// farSession is one that is kept, or being made.
type farSession struct {
	dialing chan struct{}   // Reach.mu; closed when the dial that is under way is over; nil if none is
	client  *session.Client // Reach.mu
	root    sigma.File      // Reach.mu
}

// Peer gives the callable file by which machine m's sigmad is asked for what is in its peerCalls.
// One session is kept for each machine, and dialled again when it is lost; a call that is under way
// then gets KindLost. KindNotFound: no such machine; KindUnavailable: it cannot be reached now.
func (x *Reach) Peer(ctx context.Context, m sigma.MachineID) (sigma.Caller, error) {
	if m == x.cfg.Machine {
		return x.CallsOf(x.cfg.Cluster.Self()), nil
	}
	return x.PeerBy(ctx, m, "")
}

// PeerBy is peer over a session of its own, which is named by what is no realm's name.
func (x *Reach) PeerBy(ctx context.Context, m sigma.MachineID, name sigma.RealmID) (sigma.Caller, error) {
	root, _, err := x.far(ctx, farKey{m, name}, TargetPeer, x.cfg.Cluster.Provider())
	if err != nil {
		return nil, err
	}
	c, ok := root.(sigma.Caller)
	if !ok {
		return nil, sigma.Errorf("kernel.peer", sigma.KindUnsupported, "machine %s cannot be called", m)
	}
	return c, nil
}

// AttachAt gives a realm's root as machine m's sigmad shows it to p: ux and proc of that machine
// alone. The channel is closed when the session has ended; what was reached by it is lost then. One
// session is kept for each realm and machine, for all of the realm's programs here: a handshake for
// each proc would cost more than most of them read.
func (x *Reach) AttachAt(ctx context.Context, m sigma.MachineID, p sigma.Principal, realm sigma.RealmID) (sigma.File,
	<-chan struct{}, error) {
	const op = "kernel.attachAt"
	if m == x.cfg.Machine {
		return nil, nil, sigma.Errorf(op, sigma.KindInvalid, "machine %s is this one", m)
	}
	if !p.System && p.Realm != realm {
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "this program belongs to the realm %s", p.Realm)
	}
	return x.far(ctx, farKey{m, realm}, TargetSigmad, sigma.Principal{Realm: realm, System: true})
}

// far gives the root of a kept session, which it dials if need be.
func (x *Reach) far(ctx context.Context, key farKey, target string, from sigma.Principal) (sigma.File, <-chan struct{},
	error) {
	if _, err := x.cfg.Cluster.AwaitNode(ctx); err != nil {
		return nil, nil, err
	}

	for {
		x.mu.Lock()
		s := x.kept[key]
		if s != nil && s.client != nil {
			select {
			case <-s.client.Done():
				delete(x.kept, key)
				s = nil
			default:
				defer x.mu.Unlock()
				return s.root, s.client.Done(), nil
			}
		}
		if s != nil {
			wait := s.dialing
			x.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return nil, nil, sigma.Wrap("kernel.far", "", ctx.Err())
			}
		}
		if err := x.roomLocked(key); err != nil {
			x.mu.Unlock()
			return nil, nil, err
		}
		s = &farSession{dialing: make(chan struct{})}
		x.kept[key] = s
		x.mu.Unlock()
		return x.dialFar(ctx, key, s, link.Target{Kind: link.ToService, Name: target}, from)
	}
}

// dialFar makes a session and tells those who wait for it.
func (x *Reach) dialFar(ctx context.Context, key farKey, s *farSession, to link.Target,
	from sigma.Principal) (sigma.File, <-chan struct{}, error) {
	c, root, err := x.dialRoot(ctx, key.machine, to, from)

	x.mu.Lock()
	close(s.dialing)
	s.dialing = nil
	dropped := x.kept[key] != s
	switch {
	case dropped:
	case err != nil:
		delete(x.kept, key)
	default:
		s.client, s.root = c, root
	}
	x.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	if dropped {
		c.Close()
		return nil, nil, sigma.Errorf("kernel.far", sigma.KindUnavailable, "whoever asked machine %s is gone",
			key.machine)
	}
	x.cfg.Go(func() {
		select {
		case <-c.Done():
		case <-x.ctx.Done():
		}
		c.Close()
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.kept[key] == s {
			delete(x.kept, key)
		}
	})
	return root, c.Done(), nil
}

func (x *Reach) dialRoot(ctx context.Context, m sigma.MachineID, to link.Target,
	from sigma.Principal) (*session.Client, sigma.File, error) {
	l, err := x.cfg.Cluster.Node().Dial(ctx, m, to, from)
	if err != nil {
		return nil, nil, err
	}
	c, err := session.Dial(ctx, l.Session())
	if err != nil {
		return nil, nil, err
	}
	root, err := c.Attach(ctx, "")
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, root, nil
}

// roomLocked bounds the sessions that are kept.
func (x *Reach) roomLocked(key farKey) error {
	n := 0
	for other := range x.kept {
		if other.machine == key.machine {
			n++
		}
	}
	if n >= keptOfMachine && key.realm != "" {
		return sigma.Errorf("kernel.far", sigma.KindBusy, "%d sessions with machine %s are kept", n, key.machine)
	}
	return nil
}

// DropFar ends the sessions with other machines of a realm that is gone.
func (x *Reach) DropFar(realm sigma.RealmID) {
	if realm == "" { // that is how peers are named
		return
	}

	x.mu.Lock()
	var cs []*session.Client
	for key, s := range x.kept {
		if key.realm == realm {
			delete(x.kept, key)
			if s.client != nil {
				cs = append(cs, s.client)
			}
		}
	}
	x.mu.Unlock()
	for _, c := range cs {
		c.Close()
	}
}

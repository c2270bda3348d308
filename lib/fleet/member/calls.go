package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

const (
	// snapshotMax bounds a snapshot. The other member's call.Config.MessageMax has to allow it,
	// too.
	snapshotMax = 16<<20 - 64
	// snapshotWithin bounds the search for a member that gives one: the names of members whose
	// machine is lost stay for 10 s.
	snapshotWithin = 15 * time.Second
	// snapshotAgain is the pause between two rounds of it.
	snapshotAgain = 250 * time.Millisecond
)

// snapshotMethod is how a new member asks another one for its state.
var snapshotMethod = &call.Method{Name: "sigma.fleet.Member/Snapshot", Idempotent: true}

// ServeCalls is Serve for a call server, whose methods are registered. It sets the server's
// Observe: unary calls are counted, and those that failed by the server's fault, as a status of 500
// tells it in HTTP. A stream can count by Begin what it does for each message.
func (m *Member) ServeCalls(ctx context.Context, s *call.Server) error {
	if m.opts.Snapshot != nil {
		err := s.Handle(snapshotMethod, func(ctx context.Context, _, reply []byte) ([]byte, error) {
			state, err := m.opts.Snapshot(ctx)
			return append(reply, state...), err
		})
		if err != nil {
			return err
		}
	}
	if m.ranges != nil {
		if err := m.ranges.register(s); err != nil {
			return err
		}
	}
	end := func(err error) { m.load.end(err != nil && atFault(err)) }
	s.Observe = func() func(error) {
		m.load.begin()
		return end
	}
	m.renew = s.Renew
	return m.live(ctx, func(l sigma.Listener) error { return s.Serve(context.WithoutCancel(ctx), l) },
		func(ctx context.Context, l sigma.Listener) error { return errors.Join(l.Close(), s.Shutdown(ctx)) })
}

// atFault reports whether an error is the server's fault, and not the caller's.
func atFault(err error) bool {
	switch sigma.KindOf(err) {
	case sigma.KindOther, sigma.KindUnavailable, sigma.KindTimeout, sigma.KindLost, sigma.KindBusy, sigma.KindNoSpace:
		return true
	}
	return false
}

// takeOver begins with the state of another member, if there is one. A member of a version without
// snapshots has none to give.
func (m *Member) takeOver(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, snapshotWithin)
	defer cancel()
	for {
		state, left, err := m.snapshot(within)
		if err == nil && left == 0 {
			return m.opts.Join(ctx, state)
		}
		if !retry.Pause(within, snapshotAgain) {
			return &sigma.Error{Op: "member.Join", Path: m.dir, Kind: sigma.KindUnavailable,
				Msg: fmt.Sprintf("none of %d other members gave its state", left), Err: err}
		}
	}
}

// snapshot asks one member after another. left is how many may have a state and could not be asked;
// 0 = state is that of one, or nil if nobody has any.
func (m *Member) snapshot(ctx context.Context) (state []byte, left int, err error) {
	members, err := m.host.members(ctx, m.dir)
	if err != nil && sigma.KindOf(err) != sigma.KindNotFound { // it will be made
		return nil, 0, err
	}
	for _, dial := range members {
		state, e := askSnapshot(ctx, dial)
		switch {
		case e == nil:
			return state, 0, nil
		case sigma.KindOf(e) != sigma.KindUnsupported:
			left, err = left+1, e
		}
	}
	if left == 0 {
		err = nil
	}
	return nil, left, err
}

func askSnapshot(ctx context.Context, dial func(context.Context) (net.Conn, error)) ([]byte, error) {
	c := call.NewClient(dial, call.Config{MessageMax: snapshotMax})
	defer c.Close()
	state, err := c.Call(ctx, snapshotMethod, nil, []byte{})
	return state, err
}

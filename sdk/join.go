package sdk

import (
	"cmp"
	"context"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
)

const (
	// leaseOfMember is how long the name of a member outlives the sigmad that kept it; the name of
	// a proc that ends goes at once.
	leaseOfMember = 10 * time.Second
	// renewMember is the time between renewals of a member's lease.
	renewMember = leaseOfMember / 3
	// rejoinPause is the time between attempts to become a member again.
	rejoinPause = leaseOfMember / 40
)

// Join publishes e under the proc's id in the directory dir. Join makes dir, and what leads to dir,
// if they are missing. The proc is a member from then on until leave is called or the proc ends.
//
// A member that stands still for longer than its lease of 10 s, or that cannot reach the names for
// that long, loses its name: clients go to the other members. Join publishes the endpoint again as
// soon as the proc runs and reaches the names again, within half a second as a rule. The program
// need not do anything for that, and is not told.
//
// leave ends the membership and returns when the name is gone. A server that goes in good order
// leaves, and then shuts down: clients that found it before are served, no others come. leave may
// be called again after it failed. Errors of Join: KindPermission, if the proc's view lets it not
// write to dir, and those of MkdirAll, Lease and Publish.
func (c *Client) Join(ctx context.Context, dir string, e sigma.Endpoint) (leave func(context.Context) error,
	err error) {
	return c.JoinAfter(ctx, dir, e, atOnce)
}

// JoinAs is Join under a name of the program's own, by which a proc that is started again takes the
// place that it had. The name replaces that of another proc.
func (c *Client) JoinAs(ctx context.Context, dir, name string, e sigma.Endpoint) (leave func(context.Context) error,
	err error) {
	return c.join(ctx, dir, name, e, atOnce)
}

// JoinAfter is Join for a server that waits for something before clients may come. ready waits for
// it, while the names grant the lease. If ready fails, JoinAfter returns its error.
func (c *Client) JoinAfter(ctx context.Context, dir string, e sigma.Endpoint,
	ready func(context.Context) error) (leave func(context.Context) error, err error) {
	return c.join(ctx, dir, string(e.Proc), e, ready)
}

func (c *Client) join(ctx context.Context, dir, name string, e sigma.Endpoint,
	ready func(context.Context) error) (leave func(context.Context) error, err error) {
	leases, ok := c.root.(sigma.Leaser)
	if !ok {
		return nil, sigma.Errorf("sdk.Join", sigma.KindUnsupported, "this tree grants no leases")
	}
	return newMembership(c.Tree, leases, c.session.Done(), dir, name, e).join(ctx, ready)
}

func atOnce(context.Context) error { return nil }

// membership keeps an endpoint published in a directory under a lease, and publishes it again under
// another lease when that one has ended.
type membership struct {
	tree     *resolve.Tree
	leases   sigma.Leaser
	done     <-chan struct{} // closed when the session to the names' server ends for good
	dir      string
	path     string // of the name
	endpoint sigma.Endpoint

	lease sigma.LeaseID // 0 = it is no member now; of keep until ended is closed
	ended chan struct{}
}

func newMembership(tree *resolve.Tree, leases sigma.Leaser, done <-chan struct{}, dir, name string,
	e sigma.Endpoint) *membership {
	return &membership{tree: tree, leases: leases, done: done, dir: dir,
		path: strings.TrimSuffix(dir, "/") + "/" + name, endpoint: e, ended: make(chan struct{})}
}

// join is JoinAfter.
func (m *membership) join(ctx context.Context, ready func(context.Context) error) (leave func(context.Context) error,
	err error) {
	if err := m.enter(ctx, ready); err != nil {
		return nil, err
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	go m.keep(keeping)
	return func(ctx context.Context) error {
		stop()
		<-m.ended
		return m.leave(ctx)
	}, nil
}

// enter publishes the endpoint under a new lease, after ready. A file that is there already becomes
// the new lease's.
func (m *membership) enter(ctx context.Context, ready func(context.Context) error) error {
	var id sigma.LeaseID
	var granting error
	granted := make(chan struct{})
	go func() {
		id, granting = m.leases.Lease(ctx, leaseOfMember)
		close(granted)
	}()
	err := ready(ctx)
	<-granted
	if granting != nil {
		return cmp.Or(err, granting)
	}
	if err == nil {
		err = m.put(ctx, id)
	}
	if err != nil {
		m.leases.Revoke(context.WithoutCancel(ctx), id) // with the file, should it have been made after all
		return err
	}
	m.lease = id
	return nil
}

// put publishes the endpoint. The directory is made only if it is missing, which is rare.
func (m *membership) put(ctx context.Context, id sigma.LeaseID) error {
	for missing := false; ; missing = true {
		_, err := m.tree.Put(ctx, m.path, []byte(m.endpoint.String()), sigma.PutOptions{Kind: sigma.KindEndpoint,
			Lease: id})
		if missing || err == nil || sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		if err := m.tree.MkdirAll(ctx, m.dir, 0o755); err != nil {
			return err
		}
	}
}

// keep renews the lease, and becomes a member again when it has ended, until ctx ends.
func (m *membership) keep(ctx context.Context) {
	defer close(m.ended)
	for pause := renewMember; ; {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-m.done:
		}
		timer.Stop()
		if ctx.Err() != nil || sessionEnded(m.done) {
			return
		}
		within, cancel := context.WithTimeout(ctx, leaseOfMember)
		err := m.renew(within)
		cancel()
		if pause = renewMember; err != nil {
			pause = rejoinPause
		}
	}
}

// renew renews the lease. If the lease has ended, which its server alone decides, the proc becomes
// a member again under another.
func (m *membership) renew(ctx context.Context) error {
	if m.lease != 0 {
		err := m.leases.Renew(ctx, m.lease)
		if err == nil || sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		m.lease = 0
	}
	return m.enter(ctx, atOnce)
}

// leave ends the lease, and with it the file. A sigmad that was started again may not know the
// lease as this proc's: then the file is removed by its path, unless it is another proc's by now.
func (m *membership) leave(ctx context.Context) error {
	var err error
	if m.lease != 0 {
		err = m.leases.Revoke(ctx, m.lease)
	}
	if m.lease == 0 || err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		var text string
		if text, err = m.tree.ReadLink(ctx, m.path); err == nil && text == m.endpoint.String() {
			err = m.tree.Remove(ctx, m.path)
		}
	}
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return nil
	}
	return sigma.Wrap("sdk.Join", m.dir, err)
}

// sessionEnded reports whether done is closed; nil is a session that never ends.
func sessionEnded(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

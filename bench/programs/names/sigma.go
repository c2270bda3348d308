package main

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// names is sigmaOS, seen by a proc.
type names struct {
	ctx   context.Context
	c     *sdk.Client
	dir   string
	lease sigma.LeaseID
	bared sync.Once
	self  sigma.File
}

func openSigma(ctx context.Context, dir string) (store, string, error) {
	c, err := sdk.Open(ctx)
	if err != nil {
		return nil, "", err
	}
	dir += "/" + time.Now().Format("150405.000000")
	if err := c.MkdirAll(ctx, dir, 0o755); err != nil {
		return nil, "", err
	}
	lease, _, err := c.Lease(ctx, 30*time.Second)
	return &names{ctx: ctx, c: c, dir: dir, lease: lease}, dir, err
}

func (n *names) get(path string) error {
	_, _, err := n.c.Get(n.ctx, path)
	return err
}

func (n *names) newest(path string) (bool, error) {
	_, _, err := n.c.Get(sigma.WithSync(n.ctx), path)
	return true, err
}

func (n *names) put(path string, value []byte) error {
	_, err := n.c.Put(n.ctx, path, value, sigma.PutOptions{})
	return err
}

func (n *names) create(path string) error {
	_, err := n.c.Put(n.ctx, path, value, sigma.PutOptions{MustMake: true})
	return err
}

func (n *names) ephemeral(path string) error {
	_, err := n.c.Put(n.ctx, path, value, sigma.PutOptions{MustMake: true, Lease: n.lease})
	return err
}

func (n *names) directory(path string) error { return n.c.Mkdir(n.ctx, path, 0o755) }

func (n *names) list(path string) (int, error) {
	es, err := n.c.ReadDir(n.ctx, path)
	return len(es), err
}

func (n *names) rename(from, to string) (bool, error) { return true, n.c.Rename(n.ctx, from, to) }

func (n *names) watch(path string, ready func()) error {
	st, err := n.c.Stat(n.ctx, path)
	if err != nil {
		return err
	}
	ready()
	_, err = n.c.Watch(n.ctx, path, st.ID.Version)
	return err
}

// bare asks sigmad who we are: a call that looks at nothing.
func (n *names) bare() (bool, error) {
	var err error
	n.bared.Do(func() { n.self, err = n.c.Handle(n.ctx, "/sys/self") })
	if err != nil {
		return false, err
	}
	_, _, err = n.self.(sigma.Caller).Call(n.ctx, "info", nil, nil)
	return true, err
}

func (n *names) clean() { n.c.RemoveAll(n.ctx, n.dir) }

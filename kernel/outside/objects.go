package outside

import (
	"context"
	"os"
	"time"

	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Where the objects of realms are is s3d's to know, keys included: sigmad keeps only the addresses
// that it connects s3d to. A change of it has s3d started anew, so that no handle, here or
// elsewhere, goes on in the old store.

// storeChangeMax bounds a change with the new s3d's start.
const storeChangeMax = 30 * time.Second

// SetStoreCall is the call set-store: realm (the system's = all that have none of their own), what
// s3d is told (as JSON, "" = the local disk again), and the store's IP addresses with ports.
func (x *Outside) SetStoreCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.SetStore"
	var realm sigma.RealmID
	var text string
	var at []string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.RealmID(&realm)
		c.Str(&text)
		c.Strs(&at)
	}); err != nil {
		return nil, nil, err
	}
	s := x.cfg.Services.Local(services.S3)
	if s == nil {
		return nil, nil, &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
			Msg:  "this machine does not serve the objects",
			Hint: "ask on the first machine of the system: sigma machine ls shows them"}
	}
	if (text == "") != (len(at) == 0) {
		return nil, nil, sigma.Errorf(op, sigma.KindInvalid, "a store has an address")
	}
	if realm != sigma.SystemRealm {
		if err := x.cfg.HasRealm(ctx, realm); err != nil {
			return nil, nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, storeChangeMax)
	defer cancel()
	select {
	case x.changing <- struct{}{}:
		defer func() { <-x.changing }()
	case <-ctx.Done():
		return nil, nil, sigma.Errorf(op, sigma.KindBusy, "another store is being set")
	}
	was, err := x.note(op, services.S3, realm, storeName, at)
	if err != nil {
		return nil, nil, err
	}
	over := s.Ended()
	if _, err := x.cfg.Reach.AskRoot(ctx, services.S3, sigmap.CallSetStore, func(c *sigmap.Coder) {
		c.RealmID(&realm)
		c.Str(&text)
	}); err != nil {
		x.note(op, services.S3, realm, storeName, was) // the error that counts is the first
		return nil, nil, err
	}
	s.Terminate()
	select {
	case <-over:
	case <-ctx.Done():
		return nil, nil, sigma.Errorf(op, sigma.KindTimeout,
			"s3d does not end, and goes on in the old store until it does")
	}
	if err := s.WaitReady(ctx); err != nil {
		return nil, nil, sigma.Errorf(op, sigma.KindUnavailable, "s3d has not come up again: %v", err)
	}
	return nil, nil, nil
}

// StoresCall is the call stores, which s3d answers: the realm after which the list begins, whether
// each store is to be asked -> JSON.
func (x *Outside) StoresCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var after sigma.RealmID
	var ask bool
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&after); c.Bool(&ask) }); err != nil {
		return nil, nil, err
	}
	reply, err := x.cfg.Reach.AskRoot(ctx, services.S3, sigmap.CallStores, func(c *sigmap.Coder) {
		c.RealmID(&after)
		c.Bool(&ask)
	})
	return reply, nil, err
}

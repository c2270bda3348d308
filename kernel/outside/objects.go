package outside

import (
	"context"
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

// SetStore notes where a realm's object store is, and has s3d started anew with it.
func (x *Outside) SetStore(ctx context.Context, to sigmap.StoreAt) error {
	const op = "kernel.SetStore"
	s := x.cfg.Services.Local(services.S3)
	if s == nil {
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
			Msg:  "this machine does not serve the objects",
			Hint: "ask on the first machine of the system: sigma machine ls shows them"}
	}
	if (to.Text == "") != (len(to.Addresses) == 0) {
		return sigma.Errorf(op, sigma.KindInvalid, "a store has an address")
	}
	if to.Realm != sigma.SystemRealm {
		if err := x.cfg.HasRealm(ctx, to.Realm); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, storeChangeMax)
	defer cancel()
	select {
	case x.changing <- struct{}{}:
		defer func() { <-x.changing }()
	case <-ctx.Done():
		return sigma.Errorf(op, sigma.KindBusy, "another store is being set")
	}
	was, err := x.note(op, services.S3, to.Realm, storeName, to.Addresses)
	if err != nil {
		return err
	}
	over := s.Ended()
	if err := sigmap.CallUseStore.Tell(ctx, x.cfg.Reach.Root(services.S3), to.UseStore); err != nil {
		x.note(op, services.S3, to.Realm, storeName, was) // the error that counts is the first
		return err
	}
	s.Terminate()
	select {
	case <-over:
	case <-ctx.Done():
		return sigma.Errorf(op, sigma.KindTimeout,
			"s3d does not end, and goes on in the old store until it does")
	}
	if err := s.WaitReady(ctx); err != nil {
		return sigma.Errorf(op, sigma.KindUnavailable, "s3d has not come up again: %v", err)
	}
	return nil
}

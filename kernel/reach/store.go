package reach

import (
	"context"
	"slices"

	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// What sigmads ask each other about services.
var (
	// callService waits a while for a service that is being restarted.
	callService = sigmap.Method[string, sigma.Endpoint]{Name: "service", Request: (*sigmap.Coder).Str,
		Reply: (*sigmap.Coder).Endpoint}
	// callServiceOver waits until the service does not listen there any more.
	callServiceOver = sigmap.Method[listening, sigmap.None]{Name: "service-over", Request: codeListening}
	// callServiceUnused is answered by 1 if nobody ever wanted it.
	callServiceUnused = sigmap.Method[string, uint32]{Name: "service-unused", Request: (*sigmap.Coder).Str,
		Reply: (*sigmap.Coder).U32}
)

// listening is where a service listens.
type listening struct {
	service string
	at      sigma.Endpoint
}

func codeListening(c *sigmap.Coder, l *listening) {
	c.Str(&l.service)
	c.Endpoint(&l.at)
}

// toldMax bounds the endpoints of the object store that are remembered: it has another after each
// restart, and nobody who walks to it takes longer than a few of them.
const toldMax = 8

// OfRealms says whether a service has something of realms that is mounted in their trees: the
// object store, and a realm's databases.
func OfRealms(service string) bool {
	_, databases := services.DatabaseRealm(service)
	return databases || service == services.S3
}

// StoreEndpoint is where such a service listens, here or on another machine. fresh asks again
// whatever is known. What it tells of the object store is remembered, for isStore.
func (x *Reach) StoreEndpoint(ctx context.Context, service string, fresh bool) (sigma.Endpoint, error) {
	e, err := x.findStore(ctx, service, fresh)
	if err == nil && service == services.S3 {
		x.tell(e)
	}
	return e, err
}

func (x *Reach) tell(e sigma.Endpoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Contains(x.told[:], e) {
		copy(x.told[1:], x.told[:])
		x.told[0] = e
	}
}

func (x *Reach) wasTold(e sigma.Endpoint) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return e.ID != "" && slices.Contains(x.told[:], e)
}

func (x *Reach) findStore(ctx context.Context, service string, fresh bool) (sigma.Endpoint, error) {
	for s := x.cfg.Services.Local(service); s != nil; s = x.cfg.Services.Local(service) {
		if e, err := s.Address(ctx); err != services.ErrNotNeeded {
			return e, err
		}
	}

	x.mu.Lock()
	known := x.stores[service]
	x.mu.Unlock()
	if !fresh && known.ID != "" {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, services.ReconnectMax)
	defer cancel()
	said := map[sigma.MachineID]error{}
	for {
		ms := x.Candidates(service)
		for _, m := range ms {
			e, p, err := x.askStore(ctx, m, service)
			if err == nil {
				x.note(service, m)
				x.keepStore(service, e, p)
				return e, nil
			}
			if ctx.Err() == nil || said[m] == nil {
				said[m] = err
			}
		}
		if err := x.pause(ctx, nil); err != nil {
			return sigma.Endpoint{}, x.nobodyAnswers(service, ms, said)
		}
	}
}

// keepStore believes e until the machine there says that it is over, or cannot be asked any more.
func (x *Reach) keepStore(service string, e sigma.Endpoint, p sigma.Caller) {

	x.mu.Lock()
	same := x.stores[service] == e
	x.stores[service] = e
	x.mu.Unlock()
	if same {
		return
	}
	x.cfg.Go(func() {
		callServiceOver.Tell(x.ctx, p, listening{service, e}) // whatever it says
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.stores[service] == e {
			delete(x.stores, service)
		}
	})
}

func (x *Reach) askStore(ctx context.Context, m sigma.MachineID, service string) (e sigma.Endpoint, p sigma.Caller,
	err error) {
	dialling, cancel := context.WithTimeout(ctx, dialMost)
	p, err = x.Peer(dialling, m)
	cancel()
	if err != nil {
		return e, nil, err
	}
	e, err = callService.Ask(ctx, p, service)
	if err == nil && (e.Machine != m || e.Realm != sigma.SystemRealm || e.Form != sigma.FormTree) {
		err = sigma.Errorf("kernel.askStore", sigma.KindInvalid, "machine %s says that its %s listens elsewhere", m,
			service)
	}
	return e, p, err
}

// serviceOver answers callServiceOver.
func (x *Reach) serviceOver(ctx context.Context, l listening) (none sigmap.None, err error) {
	s := x.cfg.Services.Local(l.service)
	if s == nil || !OfRealms(l.service) {
		return none, nil
	}
	over := s.Ended() // before the look
	if now, _ := s.Listens(false); now != l.at {
		return none, nil
	}
	select {
	case <-over:
		return none, nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// Unused says that the machine that has the databases says that a realm never used any; no dbd is
// started to say so.
func (x *Reach) Unused(ctx context.Context, realm sigma.RealmID) bool {
	service := services.DatabaseService(realm)
	if x.cfg.Services.HasDatabases() {
		return x.cfg.Services.Unused(realm)
	}
	for _, m := range x.Candidates(service) {
		dialling, cancel := context.WithTimeout(ctx, dialMost)
		unused, err := callServiceUnused.Ask(dialling, x.At(m), service)
		cancel()
		if err == nil {
			return unused == 1
		}
	}
	return false
}

// serviceUnused answers callServiceUnused.
func (x *Reach) serviceUnused(_ context.Context, name string) (uint32, error) {
	realm, ok := services.DatabaseRealm(name)
	if !ok || !x.cfg.Services.HasDatabases() {
		return 0, sigma.Errorf("kernel.service", sigma.KindNotFound, "machine %s has no %.80q for other machines",
			x.cfg.Machine, name)
	}
	if x.cfg.Services.Unused(realm) {
		return 1, nil
	}
	return 0, nil
}

// serviceHere answers callService.
func (x *Reach) serviceHere(ctx context.Context, name string) (sigma.Endpoint, error) {
	s := x.cfg.Services.Local(name)
	if s == nil || !OfRealms(name) {
		return sigma.Endpoint{}, sigma.Errorf("kernel.service", sigma.KindNotFound,
			"machine %s has no %.80q for other machines", x.cfg.Machine, name)
	}
	ctx, cancel := context.WithTimeout(ctx, dialMost)
	defer cancel()
	return s.Address(ctx)
}

// IsStore says whether e is where the object store listens now, or did when somebody was told: a
// walk that met the link before the store was restarted means the store all the same. If it cannot
// be known, since the store is away, that is the error: a no would be for good.
func (x *Reach) IsStore(ctx context.Context, e sigma.Endpoint) (bool, error) {
	if e.Realm != sigma.SystemRealm {
		return false, nil
	}
	if x.wasTold(e) {
		return true, nil
	}
	now, err := x.StoreEndpoint(ctx, services.S3, false)
	if err == nil && e != now && now.Machine != x.cfg.Machine && e.Machine == now.Machine {
		now, err = x.StoreEndpoint(ctx, services.S3, true) // it may have been restarted just now
	}
	return err == nil && e == now, err
}

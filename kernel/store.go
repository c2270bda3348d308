package kernel

import (
	"context"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// callService asks a machine's sigmad where one of its services listens: name -> Endpoint. It waits for one that is being restarted.
const callService = "service"

// storeKept is how long another machine's answer to where its object store listens is believed without asking again. It changes when the store is restarted.
const storeKept = time.Second

// storeAt is what was answered last.
type storeAt struct {
	endpoint sigma.Endpoint
	asked    time.Time
}

// storeEndpoint is where the object store listens, here or on another machine. fresh asks again whatever is known.
func (k *Kernel) storeEndpoint(ctx context.Context, fresh bool) (sigma.Endpoint, error) {
	if s := k.local(serviceS3); s != nil {
		return s.address(ctx)
	}
	x := k.links
	x.mu.Lock()
	known := x.store
	x.mu.Unlock()
	if !fresh && known.endpoint.ID != "" && time.Since(known.asked) < storeKept {
		return known.endpoint, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reconnectMax)
	defer cancel()
	said := map[sigma.MachineID]error{}
	for {
		ms := k.candidates(serviceS3)
		for _, m := range ms {
			asked := time.Now()
			e, err := k.askStore(ctx, m)
			if err == nil {
				x.note(serviceS3, m)
				x.mu.Lock()
				x.store = storeAt{e, asked}
				x.mu.Unlock()
				return e, nil
			}
			if ctx.Err() == nil || said[m] == nil {
				said[m] = err
			}
		}
		if err := k.pause(ctx); err != nil {
			return sigma.Endpoint{}, k.nobodyAnswers(serviceS3, ms, said)
		}
	}
}

func (k *Kernel) askStore(ctx context.Context, m sigma.MachineID) (e sigma.Endpoint, err error) {
	dialling, cancel := context.WithTimeout(ctx, dialMost)
	p, err := k.peer(dialling, m)
	cancel()
	if err != nil {
		return e, err
	}
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { name := serviceS3; c.Str(&name) })
	if err != nil {
		return e, err
	}
	reply, _, err := p.Call(ctx, callService, payload, nil)
	if err == nil {
		err = sigmap.Parse(reply, func(c *sigmap.Coder) { c.Endpoint(&e) })
	}
	if err == nil && (e.Machine != m || e.Realm != sigma.SystemRealm || e.Form != sigma.FormTree) {
		err = sigma.Errorf("kernel.askStore", sigma.KindInvalid, "machine %s says that its object store listens elsewhere", m)
	}
	return e, err
}

// serviceCall answers callService.
func (k *Kernel) serviceCall(ctx context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var name string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&name) }); err != nil {
		return nil, err
	}
	s := k.local(name)
	if s == nil || name != serviceS3 {
		return nil, sigma.Errorf("kernel.service", sigma.KindNotFound, "machine %s has no %.80q for other machines", k.cfg.Machine, name)
	}
	ctx, cancel := context.WithTimeout(ctx, dialMost)
	defer cancel()
	e, err := s.address(ctx)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Endpoint(&e) })
}

// isStore says whether e is where the object store listens now.
func (k *Kernel) isStore(ctx context.Context, e sigma.Endpoint) bool {
	if e.Realm != sigma.SystemRealm {
		return false
	}
	now, err := k.storeEndpoint(ctx, false)
	if err == nil && e != now && now.Machine != k.cfg.Machine && e.Machine == now.Machine {
		now, err = k.storeEndpoint(ctx, true) // it may have been restarted since
	}
	return err == nil && e == now
}

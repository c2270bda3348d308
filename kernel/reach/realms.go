package reach

import (
	"context"

	"sigmaos.dev/kernel/services"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// Admin calls a method about a realm of a service's root.
func (x *Reach) Admin(ctx context.Context, service, method string, id sigma.RealmID) ([]byte, error) {
	return x.AskRoot(ctx, service, method, func(e *sigmap.Coder) { e.RealmID(&id) })
}

// AskRoot calls the root of a service that is found, once.
func (x *Reach) AskRoot(ctx context.Context, service, method string, encode func(*sigmap.Coder)) ([]byte, error) {
	var root sigma.Caller
	s, err := x.Find(ctx, service, func(ctx context.Context, s *session.Client) (err error) {
		root, err = Callee(ctx, s, service)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	payload, err := sigmap.Payload(encode)
	if err != nil {
		return nil, err
	}
	reply, _, err := root.Call(ctx, method, payload, nil)
	return reply, err
}

// Callee attaches to a service's root, which is called.
func Callee(ctx context.Context, s *session.Client, service string) (sigma.Caller, error) {
	root, err := s.Attach(ctx, "")
	if err != nil {
		return nil, err
	}
	c, ok := root.(sigma.Caller)
	if !ok {
		root.Close()
		return nil, sigma.Errorf("kernel.ask", sigma.KindUnsupported, "%s answers no calls", service)
	}
	return c, nil
}

// Realms asks named which realms there are.
func (x *Reach) Realms(ctx context.Context) ([]sigma.RealmInfo, error) {
	return sigmap.ListRealms(func(encode, decode func(*sigmap.Coder)) error {
		reply, err := x.AskRoot(ctx, services.Named, sigmap.CallList, encode)
		if err != nil {
			return err
		}
		return sigmap.Parse(reply, decode)
	})
}

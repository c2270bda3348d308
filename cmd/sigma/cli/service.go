package cli

import (
	"context"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Service is a file of /sys that answers calls.
type Service struct{ sigma.Caller }

// ServiceOf finds the file of that name in /sys, which ends with the client.
func ServiceOf(ctx context.Context, c *sdk.Client, name string) (Service, error) {
	f, _, err := c.Root().Walk(ctx, []string{sigma.NameSys, name})
	if err != nil {
		return Service{}, err
	}
	if caller, ok := f.(sigma.Caller); ok {
		return Service{caller}, nil
	}
	f.Close()
	return Service{}, sigma.PathError("sigma.service", sigma.KindNotFound, "/sys/"+name)
}

// Ask calls a method with what arg writes, and has reply read the answer. Each may be nil.
func (s Service) Ask(ctx context.Context, method string, arg, reply func(*sigmap.Coder)) (err error) {
	var payload []byte
	if arg != nil {
		if payload, err = sigmap.Payload(arg); err != nil {
			return err
		}
	}
	answer, _, err := s.Call(ctx, method, payload, nil)
	if err == nil && reply != nil {
		err = sigmap.Parse(answer, reply)
	}
	return err
}

package main

import (
	"context"
	"net"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
)

var (
	echoMethod = &call.Method{Name: "bench.Calls/Echo"}
	usedMethod = &call.Method{Name: "bench.Calls/Used"}
)

func serveSigma(ctx context.Context, transport ring.Transport, path string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	c.UseTransport(transport)
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	s, err := newServer()
	if err == nil {
		err = c.Publish(ctx, path, l.Endpoint(), 0)
	}
	if err == nil {
		err = c.Started(ctx)
	}
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

func newServer() (*call.Server, error) {
	s := call.NewServer(call.Config{})
	err := s.Handle(echoMethod, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		var m wrapperspb.BytesValue
		if err := proto.Unmarshal(arg, &m); err != nil {
			return nil, err
		}
		return proto.MarshalOptions{}.MarshalAppend(reply, &m)
	})
	if err == nil {
		err = s.Handle(usedMethod, func(_ context.Context, _, reply []byte) ([]byte, error) {
			return appendUsed(reply), nil
		})
	}
	return s, err
}

type sigmaCaller struct{ *call.Client }

func newSigma(ctx context.Context, transport ring.Transport, path string) (caller, error) {
	c, err := sdk.Open(ctx)
	if err != nil {
		return nil, err
	}
	c.UseTransport(transport)
	return sigmaCaller{call.NewClient(func(ctx context.Context) (net.Conn, error) {
		return c.Dialer(path).Dial(ctx, "")
	}, call.Config{})}, nil
}

func (c sigmaCaller) worker(arg []byte) func(context.Context) error {
	m := wrapperspb.Bytes(arg)
	var out, in []byte
	return func(ctx context.Context) (err error) {
		if out, err = (proto.MarshalOptions{}).MarshalAppend(out[:0], m); err != nil {
			return err
		}
		if in, err = c.Call(ctx, echoMethod, out, in[:0]); err != nil {
			return err
		}
		var answer wrapperspb.BytesValue
		err = proto.Unmarshal(in, &answer)
		return check(len(answer.Value), len(arg), err)
	}
}

func (c sigmaCaller) used(ctx context.Context) (time.Duration, error) {
	return readUsed(c.Call(ctx, usedMethod, nil, nil))
}

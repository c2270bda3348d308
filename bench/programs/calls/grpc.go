package main

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// serveGRPC serves what generated code would.
func serveGRPC(l net.Listener) error {
	method := func(name string, answer func(*wrapperspb.BytesValue) *wrapperspb.BytesValue) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, _ context.Context, decode func(any) error,
			_ grpc.UnaryServerInterceptor) (any, error) {
			var m wrapperspb.BytesValue
			if err := decode(&m); err != nil {
				return nil, err
			}
			return answer(&m), nil
		}}
	}
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "bench.Calls", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			method("Echo", func(m *wrapperspb.BytesValue) *wrapperspb.BytesValue { return m }),
			method("Used", func(*wrapperspb.BytesValue) *wrapperspb.BytesValue {
				return wrapperspb.Bytes(appendUsed(nil))
			}),
		}}, nil)
	return s.Serve(l)
}

type grpcCaller struct{ *grpc.ClientConn }

func newGRPC(dial func(context.Context) (net.Conn, error)) (caller, error) {
	c, err := grpc.NewClient("passthrough:///calls", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dial(ctx)
		}))
	return grpcCaller{c}, err
}

func (c grpcCaller) worker(arg []byte) func(context.Context) error {
	m := wrapperspb.Bytes(arg)
	return func(ctx context.Context) error {
		var answer wrapperspb.BytesValue
		err := c.Invoke(ctx, "/bench.Calls/Echo", m, &answer)
		return check(len(answer.Value), len(arg), err)
	}
}

func (c grpcCaller) used(ctx context.Context) (time.Duration, error) {
	var answer wrapperspb.BytesValue
	err := c.Invoke(ctx, "/bench.Calls/Used", &answer, &answer)
	return readUsed(answer.Value, err)
}

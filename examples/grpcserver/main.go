// Command grpcserver is a proc that serves a gRPC service by an unmodified grpc-go, as a member of
// the fleet that started it, or of the directory that it is given. When it is asked to go it ends
// what was begun, and goes.
//
// The service has no generated code, so that the example is all there is: one method that takes and
// gives a string.
package main

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
)

func main() {
	var opts member.Options
	if len(os.Args) > 1 {
		opts.Dir = os.Args[1]
	}
	if err := run(context.Background(), opts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type greeter struct{ name string }

// greet tells the caller, whom the machine vouches for, who it is.
func (g *greeter) greet(ctx context.Context, word string) string {
	caller := "somebody"
	if p, ok := peer.FromContext(ctx); ok {
		caller = p.Addr.String()
	}
	return fmt.Sprintf("%s, %s, this is %s", word, caller, g.name)
}

// service is what generated code would be.
func service() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: "example.Greeter", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Greet",
			Handler: func(g any, ctx context.Context, decode func(any) error, around grpc.UnaryServerInterceptor) (any,
				error) {
				var word wrapperspb.StringValue
				if err := decode(&word); err != nil {
					return nil, err
				}
				return around(ctx, &word, &grpc.UnaryServerInfo{Server: g, FullMethod: "/example.Greeter/Greet"},
					func(ctx context.Context, _ any) (any, error) {
						return wrapperspb.String(g.(*greeter).greet(ctx, word.Value)), nil
					})
			}}}}
}

// counting has the requests of a gRPC server counted.
func counting(m *member.Member) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, word any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		end := m.Begin()
		answer, err := handle(ctx, word)
		end(err != nil)
		return answer, err
	}
}

func run(ctx context.Context, opts member.Options) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	m, err := member.Open(c, opts)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(counting(m)))
	server.RegisterService(service(), &greeter{string(c.Info().Principal.Proc)})
	return m.Serve(ctx, server.Serve, func(context.Context) error {
		server.GracefulStop()
		return nil
	})
}

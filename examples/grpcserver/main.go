// Command grpcserver is a proc that serves a gRPC service by an unmodified grpc-go, as one of the
// members of the directory that it is given. When it is asked to go it leaves the directory, ends
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

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
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
			Handler: func(g any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any,
				error) {
				var word wrapperspb.StringValue
				if err := decode(&word); err != nil {
					return nil, err
				}
				return wrapperspb.String(g.(*greeter).greet(ctx, word.Value)), nil
			}}}}
}

func run(ctx context.Context, dir string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	server.RegisterService(service(), &greeter{string(c.Info().Principal.Proc)})
	leave, err := c.Join(ctx, dir, l.Endpoint())
	if err != nil {
		return err
	}
	left := make(chan error, 1)
	go func() {
		err := c.WaitEvict(ctx)
		if err == nil {
			err = leave(ctx)
		}
		server.GracefulStop()
		left <- err
	}()
	if err := c.Started(ctx); err != nil {
		return err
	}
	if err := server.Serve(l); err != nil {
		return err
	}
	if err := <-left; err != nil {
		return err
	}
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}

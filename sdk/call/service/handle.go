package service

import (
	"context"

	"google.golang.org/protobuf/proto"

	"sigmaos.dev/sdk/call"
)

// Unary registers a handler of a unary method.
func Unary[In, Out proto.Message](s *call.Server, m *call.Method, h func(context.Context, In) (Out, error)) error {
	return s.Handle(m, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		in := fresh[In]()
		if err := Read(arg, in); err != nil {
			return reply, err
		}
		out, err := h(ctx, in)
		return Append(reply, out, err)
	})
}

// Answers registers a handler that answers with any number of messages, by the function that it is
// given.
func Answers[In, Out proto.Message](s *call.Server, m *call.Method,
	h func(context.Context, In, func(Out) error) error) error {
	return s.HandleStream(m, func(ctx context.Context, stream *call.Stream) error {
		in := fresh[In]()
		if err := Argument(stream, in); err != nil {
			return err
		}
		return h(ctx, in, NewStream[Out, In](stream).Send)
	})
}

// Arguments registers a handler that gets any number of messages and answers with one.
func Arguments[In, Out proto.Message](s *call.Server, m *call.Method, h func(context.Context, *Receiver[In]) (Out,
	error)) error {
	return s.HandleStream(m, func(ctx context.Context, stream *call.Stream) error {
		both := NewStream[Out, In](stream)
		out, err := h(ctx, &both.Receiver)
		if err != nil {
			return err
		}
		return both.Send(out)
	})
}

// Both registers a handler of a method in which messages go both ways.
func Both[In, Out proto.Message](s *call.Server, m *call.Method,
	h func(context.Context, *Stream[Out, In]) error) error {
	return s.HandleStream(m, func(ctx context.Context, stream *call.Stream) error {
		return h(ctx, NewStream[Out, In](stream))
	})
}

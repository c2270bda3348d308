// Package service is calls whose messages are protobuf's: what the code that protoc-gen-sigma makes
// of a .proto file is made of. It promises what package call does; a message that cannot be read is
// refused with KindInvalid and hurts nobody. It assumes that both sides have the same service, or
// versions of it that protobuf calls compatible. Users: generated code, and programs that handle
// its streams.
//
// How the kinds of methods go over calls: a unary one is a unary call. The others are streams: one
// of a single argument or answer has it as its only message in that direction.
package service

import (
	"context"
	"fmt"
	"io"
	"iter"
	"sync"

	"google.golang.org/protobuf/proto"

	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// room is a buffer for an argument, an answer or a message.
type room struct{ out, in []byte }

// roomMost is the size of the largest buffer that is kept for reuse, in bytes.
const roomMost = 256 << 10

var rooms = sync.Pool{New: func() any { return &room{} }}

func (r *room) release() {
	if cap(r.out) <= roomMost && cap(r.in) <= roomMost {
		rooms.Put(r)
	}
}

// Caller makes unary calls: a *call.Client, or a call.Keyed for the member that owns a key.
type Caller interface {
	Call(ctx context.Context, m *call.Method, arg, reply []byte) ([]byte, error)
}

// Call makes a unary call and reads the answer into out. The error is that of c.Call.
func Call(ctx context.Context, c Caller, m *call.Method, in, out proto.Message) error {
	r := rooms.Get().(*room)
	defer r.release()
	var err error
	if r.out, err = Append(r.out[:0], in, nil); err != nil {
		return err
	}
	if r.in, err = c.Call(ctx, m, r.out, r.in[:0]); err != nil {
		return err
	}
	return Read(r.in, out)
}

// Answer is what became of a call to one member of a group.
type Answer[Out proto.Message] struct {
	Member  string
	Message Out // nil if Err is not
	Err     error
}

// All calls all members of a group, as call.Group.Call.
func All[Out proto.Message](ctx context.Context, g *call.Group, m *call.Method, in proto.Message) ([]Answer[Out],
	error) {
	arg, err := Append(nil, in, nil)
	if err != nil {
		return nil, err
	}
	answers, err := g.Call(ctx, m, arg)
	out := make([]Answer[Out], len(answers))
	for i, a := range answers {
		out[i].Member, out[i].Err = a.Member, a.Err
		if got := fresh[Out](); a.Err == nil {
			if out[i].Err = Read(a.Reply, got); out[i].Err == nil {
				out[i].Message = got
			}
		}
	}
	return out, err
}

// Append appends out to b, unless err says that there is none.
func Append(b []byte, out proto.Message, err error) ([]byte, error) {
	if err != nil {
		return b, err
	}
	grown, err := proto.MarshalOptions{}.MarshalAppend(b, out)
	if err != nil {
		return b, &sigma.Error{Op: "service.Append", Kind: sigma.KindInvalid, Msg: fmt.Sprintf("a %s cannot be written",
			out.ProtoReflect().Descriptor().FullName()), Hint: "are its strings UTF-8, and its required fields set?",
			Err: err}
	}
	return grown, nil
}

// Read reads b into a message, which keeps nothing of b.
func Read(b []byte, into proto.Message) error {
	if err := proto.Unmarshal(b, into); err != nil {
		return &sigma.Error{Op: "service.Read", Kind: sigma.KindInvalid, Msg: fmt.Sprintf("that is no %s",
			into.ProtoReflect().Descriptor().FullName()), Hint: "have client and server the same .proto file?",
			Err: err}
	}
	return nil
}

// fresh makes an empty message of a generated type, which is a pointer.
func fresh[M proto.Message]() M {
	var none M
	return none.ProtoReflect().Type().New().Interface().(M)
}

// Stream is a call in which messages go both ways, with the rules of call.Stream: Send is for one
// goroutine at a time, and so is Recv.
type Stream[Out, In proto.Message] struct {
	Receiver[In]
	out []byte
}

// NewStream makes a typed stream of s.
func NewStream[Out, In proto.Message](s *call.Stream) *Stream[Out, In] {
	return &Stream[Out, In]{Receiver: Receiver[In]{s: s}}
}

// Send sends a message, which it does not keep, when the other side has room for it. io.EOF: the
// call has ended, and Recv says how.
func (s *Stream[Out, In]) Send(m Out) (err error) {
	if cap(s.out) > roomMost {
		s.out = nil
	}
	if s.out, err = Append(s.out[:0], m, nil); err != nil {
		return err
	}
	return s.s.Send(s.out)
}

// CloseSend tells the server that the caller's last message was sent.
func (s *Stream[Out, In]) CloseSend() error { return s.s.CloseSend() }

// Receiver is a call of which messages come.
type Receiver[In proto.Message] struct {
	s  *call.Stream
	in []byte
}

// NewReceiver makes a typed receiver of s.
func NewReceiver[In proto.Message](s *call.Stream) *Receiver[In] { return &Receiver[In]{s: s} }

// Context is that of the call: on the server's side it ends with the caller's interest.
func (r *Receiver[In]) Context() context.Context { return r.s.Context() }

// Recv gives the next message. io.EOF after the last one if all is well, else the error that ended
// the call.
func (r *Receiver[In]) Recv() (m In, err error) {
	if cap(r.in) > roomMost {
		r.in = nil
	}
	if r.in, err = r.s.Recv(r.in[:0]); err != nil {
		return m, err
	}
	got := fresh[In]()
	if err := Read(r.in, got); err != nil {
		return m, err
	}
	return got, nil
}

// All gives the messages one after another; an error that ended the call comes last, with no
// message.
func (r *Receiver[In]) All() iter.Seq2[In, error] {
	return func(yield func(In, error) bool) {
		for {
			m, err := r.Recv()
			if err == io.EOF || !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the call of a client; messages that were not received are dropped. A server's ends
// when its handler returns.
func (r *Receiver[In]) Close() error { return r.s.Close() }

// Sender is a call to which a client sends messages, and which has one answer.
type Sender[Out, In proto.Message] struct{ stream *Stream[Out, In] }

// NewSender makes a typed sender of s.
func NewSender[Out, In proto.Message](s *call.Stream) *Sender[Out, In] {
	return &Sender[Out, In]{NewStream[Out, In](s)}
}

// Send sends a message, as Stream.Send.
func (s *Sender[Out, In]) Send(m Out) error { return s.stream.Send(m) }

// Finish says that the last message was sent, and gives the answer.
func (s *Sender[Out, In]) Finish() (m In, err error) {
	defer s.Close()
	if err := s.stream.CloseSend(); err != nil {
		return m, err
	}
	if m, err = s.stream.Recv(); err == io.EOF {
		err = sigma.Errorf("service.Finish", sigma.KindInvalid, "the server ended the call without an answer")
	}
	if err != nil {
		return m, err
	}
	if _, err := s.stream.Recv(); err != io.EOF { // the handler may have failed after all
		var none In
		if err == nil {
			err = sigma.Errorf("service.Finish", sigma.KindInvalid, "the server answered twice")
		}
		return none, err
	}
	return m, nil
}

// Close ends the call without an answer, if it has not ended.
func (s *Sender[Out, In]) Close() error { return s.stream.Close() }

// Ask begins a call of which messages come, with its argument.
func Ask[In proto.Message](ctx context.Context, c *call.Client, m *call.Method, arg proto.Message) (*Receiver[In],
	error) {
	s, err := c.Stream(ctx, m)
	if err != nil {
		return nil, err
	}
	b, err := Append(nil, arg, nil)
	if err == nil {
		err = s.Send(b)
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil && err != io.EOF { // which is for Recv to tell
		s.Close()
		return nil, err
	}
	return NewReceiver[In](s), nil
}

// Argument gives the only message of a caller's direction to a handler.
func Argument(s *call.Stream, into proto.Message) error {
	b, err := s.Recv(nil)
	if err == io.EOF {
		return sigma.Errorf("service.Argument", sigma.KindInvalid, "the call has no argument")
	}
	if err != nil {
		return err
	}
	return Read(b, into)
}

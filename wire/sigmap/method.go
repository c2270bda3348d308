package sigmap

import (
	"context"
	"os"

	"sigmaos.dev/sigma"
)

// Method is one method of a file that answers calls: its name, and the layouts of its request and
// its reply. Both sides use the same declaration, because a function of a Coder encodes and
// decodes. It is a package variable of the package that both sides import.
//
// A payload whose function is nil is empty; it is ignored by its receiver.
type Method[Q, R any] struct {
	Name    string
	Request func(*Coder, *Q)
	Reply   func(*Coder, *R)
}

// None is a request or a reply that is empty.
type None = struct{}

// exchange is a request with its reply, and what codes them: one allocation for each side.
type exchange[Q, R any] struct {
	c Coder
	q Q
	r R
}

// Ask makes the call. File descriptors that come with the reply are closed.
func (m Method[Q, R]) Ask(ctx context.Context, to sigma.Caller, q Q) (R, error) {
	r, files, err := m.AskFiles(ctx, to, q)
	closeFiles(files)
	return r, err
}

// Tell is Ask of a method whose reply is empty, or does not matter.
func (m Method[Q, R]) Tell(ctx context.Context, to sigma.Caller, q Q) error {
	_, err := Method[Q, None]{Name: m.Name, Request: m.Request}.Ask(ctx, to, q)
	return err
}

// AskFiles is Ask for a reply that has file descriptors, which the caller must close. There are
// none with an error.
func (m Method[Q, R]) AskFiles(ctx context.Context, to sigma.Caller, q Q) (r R, files []*os.File, err error) {
	var payload []byte
	x := m.exchange()
	if m.Request != nil {
		x.q = q
		if payload, err = encode(&x.c, m.Request, &x.q); err != nil {
			return r, nil, err
		}
	}
	reply, files, err := to.Call(ctx, m.Name, payload, nil)
	if err == nil && m.Reply != nil {
		err = decode(&x.c, m.Reply, &x.r, reply)
		r = x.r
	}
	if err != nil {
		closeFiles(files)
		files = nil
	}
	return r, files, err
}

// exchange makes one, unless both payloads are empty.
func (m Method[Q, R]) exchange() *exchange[Q, R] {
	if m.Request == nil && m.Reply == nil {
		return nil
	}
	return new(exchange[Q, R])
}

// Payload encodes a request.
func (m Method[Q, R]) Payload(q Q) ([]byte, error) { return encode(&Coder{}, m.Request, &q) }

// Parse decodes a request.
func (m Method[Q, R]) Parse(payload []byte) (q Q, err error) {
	return q, decode(&Coder{}, m.Request, &q, payload)
}

// Handler answers the calls of one method. Who says who asks whom.
type Handler[Who any] struct {
	Name string
	Call func(who Who, ctx context.Context, payload []byte) (reply []byte, files []*os.File, err error)
}

// Handlers are the methods of one file, by name.
type Handlers[Who any] map[string]Handler[Who]

// Table makes Handlers.
func Table[Who any](hs ...Handler[Who]) Handlers[Who] {
	t := make(Handlers[Who], len(hs))
	for _, h := range hs {
		t[h.Name] = h
	}
	return t
}

// On makes a Handler of a function, as a rule of a method of Who.
func On[Who, Q, R any](m Method[Q, R], f func(Who, context.Context, Q) (R, error)) Handler[Who] {
	return OnFiles(m, func(who Who, ctx context.Context, q Q) (R, []*os.File, error) {
		r, err := f(who, ctx, q)
		return r, nil, err
	})
}

// Do is On for a method whose reply is empty.
func Do[Who, Q any](m Method[Q, None], f func(Who, context.Context, Q) error) Handler[Who] {
	return OnFiles(m, func(who Who, ctx context.Context, q Q) (None, []*os.File, error) {
		return None{}, nil, f(who, ctx, q)
	})
}

// OnFiles is On for a reply that has file descriptors. They are the caller's also if there is an
// error.
func OnFiles[Who, Q, R any](m Method[Q, R], f func(Who, context.Context, Q) (R, []*os.File, error)) Handler[Who] {
	return Handler[Who]{m.Name, func(who Who, ctx context.Context, payload []byte) (reply []byte, files []*os.File,
		err error) {
		x := m.exchange()
		var q Q
		if m.Request != nil {
			if err := decode(&x.c, m.Request, &x.q, payload); err != nil {
				return nil, nil, err
			}
			q = x.q
		}
		r, files, err := f(who, ctx, q)
		if err == nil && m.Reply != nil {
			x.r = r
			reply, err = encode(&x.c, m.Reply, &x.r)
		}
		return reply, files, err
	}}
}

func encode[T any](c *Coder, f func(*Coder, *T), v *T) ([]byte, error) {
	if f == nil {
		return nil, nil
	}
	*c = Coder{}
	f(c, v)
	return payloadOf(c)
}

func decode[T any](c *Coder, f func(*Coder, *T), v *T, payload []byte) error {
	if f == nil {
		return nil
	}
	*c = Coder{buf: payload, decoding: true}
	f(c, v)
	return c.Finish()
}

// At is the file at a path of a tree, to be called there.
func At(t interface {
	Call(ctx context.Context, path, method string, payload []byte) ([]byte, error)
}, path string) Via {
	return func(ctx context.Context, method string, payload []byte) ([]byte, error) {
		return t.Call(ctx, path, method, payload)
	}
}

// Via is a sigma.Caller that passes no file descriptors.
type Via func(ctx context.Context, method string, payload []byte) ([]byte, error)

// Call implements sigma.Caller.
func (v Via) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	closeFiles(files)
	reply, err := v(ctx, method, payload)
	return reply, nil, err
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

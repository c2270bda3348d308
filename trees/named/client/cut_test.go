package client

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/wire/session"
)

// cut says where a connection is to break: after so many bytes of the first mutation's request went
// to the server, or of its reply to the client. Restart says that the server is torn down then, and
// what becomes of the mutation's commit is what it is.
type cut struct {
	reply   bool
	after   int
	restart bool
}

// cutter relays between a Realm and named byte by byte, and breaks the first connection on which a
// mutation passes.
type cutter struct {
	w *world

	mu    sync.Mutex
	armed *cut // mu; nil = all passes
	size  int  // mu; of the message that was cut
}

const typeWith = 144

// pair makes the ends of a connection that goes through the cutter.
func (c *cutter) pair() (client, server session.Conn, err error) {
	a, inner := net.Pipe()
	outer, b := net.Pipe()
	x := &cutting{cutter: c, ends: []net.Conn{inner, outer}}
	go x.pass(inner, outer, false)
	go x.pass(outer, inner, true)
	return session.NewStreamConn(a), session.NewStreamConn(b), nil
}

// cutting is one connection.
type cutting struct {
	*cutter
	ends []net.Conn

	mu  sync.Mutex
	tag int // mu; of the mutation whose reply is to be cut, plus 1; 0 = none
}

func (x *cutting) close() {
	for _, e := range x.ends {
		e.Close()
	}
}

// pass moves messages one way.
func (x *cutting) pass(from, to net.Conn, replies bool) {
	defer x.close()
	for {
		head := make([]byte, 7)
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		msg := make([]byte, binary.LittleEndian.Uint32(head))
		copy(msg, head)
		if _, err := io.ReadFull(from, msg[7:]); err != nil {
			return
		}
		n, whole, restart := x.most(msg, replies)
		_, err := to.Write(msg[:n])
		if restart {
			x.w.restart()
		}
		if err != nil || !whole {
			return
		}
	}
}

// most says how much of a message goes on, and whether the server is torn down then.
func (x *cutting) most(msg []byte, replies bool) (n int, whole, restart bool) {
	x.cutter.mu.Lock()
	defer x.cutter.mu.Unlock()
	armed := x.armed
	if armed == nil {
		return len(msg), true, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	tag := int(binary.LittleEndian.Uint16(msg[5:7])) + 1
	switch {
	case !replies && msg[4] == typeWith && armed.reply && x.tag == 0:
		x.tag = tag
		return len(msg), true, false
	case !replies && msg[4] == typeWith && !armed.reply, replies && armed.reply && x.tag == tag:
	default:
		return len(msg), true, false
	}
	x.size, x.armed = len(msg), nil
	return min(armed.after, len(msg)), false, armed.restart
}

// arm sets the next cut.
func (c *cutter) arm(next cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed, c.size = &next, 0
}

// result tells how long the message was that was cut, and takes the cut back.
func (c *cutter) result() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = nil
	return c.size
}

// mutation is one of which it shows whether it was made once.
type mutation struct {
	name    string
	prepare func(w *world, root *File)
	do      func(ctx context.Context, root *File) error
	check   func(w *world, root *File) string // "" = once
}

func content(root *File, name string) string {
	g, _, err := root.Get(context.Background(), []string{name}, 0, 1000)
	if err != nil {
		return err.Error()
	}
	return string(g.Data)
}

func put(w *world, root *File, name, data string) {
	_, _, err := root.Put(w.Context(), []string{name}, []byte(data), sigma.PutOptions{})
	w.must(err)
}

func mutations() []mutation {
	is := func(got, want string) string {
		if got != want {
			return "got " + got + ", want " + want
		}
		return ""
	}
	var at sigma.Version
	return []mutation{
		{"exclusive create", func(*world, *File) {}, func(ctx context.Context, root *File) error {
			f, err := root.Create(ctx, "f", sigma.OpenWrite|sigma.OpenExclusive, 0o644)
			if err == nil {
				f.Close()
			}
			return err
		}, func(w *world, root *File) string { return is(content(root, "f"), "") }},
		{"exclusive put", func(*world, *File) {}, func(ctx context.Context, root *File) error {
			_, _, err := root.Put(ctx, []string{"f"}, []byte("x"), sigma.PutOptions{MustMake: true})
			return err
		}, func(w *world, root *File) string { return is(content(root, "f"), "x") }},
		{"append", func(w *world, root *File) { put(w, root, "f", "a") }, func(ctx context.Context, root *File) error {
			_, _, err := root.Put(ctx, []string{"f"}, []byte("b"), sigma.PutOptions{Append: true})
			return err
		}, func(w *world, root *File) string { return is(content(root, "f"), "ab") }},
		{"rename", func(w *world, root *File) { put(w, root, "f", "x") }, func(ctx context.Context, root *File) error {
			return root.Rename(ctx, "f", root, "g")
		}, func(w *world, root *File) string { return is(content(root, "g"), "x") }},
		{"advance of an epoch", func(w *world, root *File) {
			id, _, err := root.Put(w.Context(), []string{"f"}, []byte("7"), sigma.PutOptions{})
			w.must(err)
			at = id.Version
		}, func(ctx context.Context, root *File) error {
			_, _, err := root.Put(ctx, []string{"f"}, []byte("8"), sigma.PutOptions{IfVersion: at})
			return err
		}, func(w *world, root *File) string { return is(content(root, "f"), "8") }},
	}
}

// TestCutEverywhere: with the connection broken after every byte of a mutation's request and of its
// reply, and with the server torn down as well, each mutation succeeds and is made once.
func TestCutEverywhere(t *testing.T) {
	for _, m := range mutations() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if wrong := cutAll(t, m, nil); len(wrong) > 0 {
				t.Errorf("%d times: %s", len(wrong), wrong[0])
			}
		})
	}
}

// TestCutWithoutMemory shows what the test above is good for: if named does not remember, mutations
// go wrong.
func TestCutWithoutMemory(t *testing.T) {
	for _, m := range mutations() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			forgets := func(kv named.KV) bool { return kv.Key[:2] == "o/" }
			if wrong := cutAll(t, m, forgets); len(wrong) == 0 {
				t.Error("nothing went wrong")
			}
		})
	}
}

// cutAll makes a mutation with every cut, and says what went wrong. Puts that drop names are not
// stored.
func cutAll(t *testing.T, m mutation, drop func(named.KV) bool) (wrong []string) {
	w := newWorld(t)
	w.store.drop = drop
	c := &cutter{w: w}
	w.pair = c.pair
	_, root := w.realm()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, restart := range []bool{false, true} {
		for _, reply := range []bool{false, true} {
			for after := 0; ; after++ {
				for _, name := range []string{"f", "g"} {
					if err := root.Remove(ctx, name); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
						t.Fatal(err)
					}
				}
				m.prepare(w, root)
				c.arm(cut{reply, after, restart})
				err := m.do(ctx, root)
				size := c.result()
				if err != nil {
					wrong = append(wrong, err.Error())
				} else if what := m.check(w, root); what != "" {
					wrong = append(wrong, what)
				}
				if size == 0 {
					t.Fatal("no mutation passed")
				}
				if after >= size {
					break
				}
			}
		}
	}
	return wrong
}

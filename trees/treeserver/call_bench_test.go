package treeserver_test

import (
	"context"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// question is a request of several fields.
type question struct {
	id    sigma.ProcID
	grace time.Duration
}

// askMethod has a request of several fields, and a reply of one.
var askMethod = sigmap.Method[question, uint64]{Name: "ask", Request: func(c *sigmap.Coder, q *question) {
	c.ProcID(&q.id)
	c.Duration(&q.grace)
}, Reply: (*sigmap.Coder).U64}

// callable is a tree of one file.
type callable struct{ *treeserver.Callable }

func (c callable) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return c.Callable, nil
}

// BenchmarkMethod measures one typed call over a session in one process, and its allocations on
// both sides.
func BenchmarkMethod(b *testing.B) {
	client, server, err := session.Pair()
	if err != nil {
		b.Fatal(err)
	}
	file := treeserver.Methods("f", 1, sigmap.None{}, sigmap.Table(sigmap.On(askMethod, func(_ sigmap.None,
		_ context.Context, q question) (uint64, error) {
		return uint64(len(q.id)), nil
	})))
	go treeserver.Serve(b.Context(), server, treeserver.Config{Tree: callable{file}})
	c, err := session.Dial(b.Context(), client)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	root, err := c.Attach(b.Context(), "")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		n, err := askMethod.Ask(b.Context(), root.(sigma.Caller), question{"p1", time.Second})
		if err != nil || n != 2 {
			b.Fatal(n, err)
		}
	}
}

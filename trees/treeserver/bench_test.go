package treeserver_test

import (
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// BenchmarkSession measures round trips of a session over a pair of packet sockets in one process.
func BenchmarkSession(b *testing.B) {
	client, server, err := session.Pair()
	if err != nil {
		b.Fatal(err)
	}
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	go treeserver.Serve(b.Context(), server, treeserver.Config{Tree: tree})
	c, err := session.Dial(b.Context(), client)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	root, err := c.Attach(b.Context(), "")
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{0, 4 << 10, 60 << 10} {
		name := fmt.Sprintf("f%d", size)
		if _, _, err := root.(sigma.Putter).Put(b.Context(), []string{name}, make([]byte, size),
			sigma.PutOptions{}); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("get/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, _, err := root.(sigma.Getter).Get(b.Context(), []string{name}, 0, size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("get/parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, _, err := root.(sigma.Getter).Get(b.Context(), []string{"f0"}, 0, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run("walk-stat-close", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, _, err := root.Walk(b.Context(), []string{"f0"})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := f.Stat(b.Context()); err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
}

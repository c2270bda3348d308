package diskfs

import (
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

func benchRoot(b *testing.B, policy Policy) sigma.File {
	b.Helper()
	tree, err := New(Config{Dir: b.TempDir(), Policy: policy})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(tree.Close)
	root, err := tree.Attach(b.Context(), sigma.Principal{Realm: "r"}, "")
	if err != nil {
		b.Fatal(err)
	}
	if err := root.Mkdir(b.Context(), "d", 0); err != nil {
		b.Fatal(err)
	}
	return root
}

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{0, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			root, data, i := benchRoot(b, Policy{Objects: true}), []byte(strings.Repeat("x", size)), 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				if _, _, err := root.(sigma.Putter).Put(b.Context(), []string{"d", fmt.Sprint(i % 1000)}, data,
					sigma.PutOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	for _, size := range []int{0, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			root := benchRoot(b, Policy{Objects: true})
			root.(sigma.Putter).Put(b.Context(), []string{"d", "f"}, make([]byte, size), sigma.PutOptions{})
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := root.(sigma.Getter).Get(b.Context(), []string{"d", "f"}, 0, 1<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpenAndPassFile(b *testing.B) {
	root := benchRoot(b, Policy{Objects: true})
	root.(sigma.Putter).Put(b.Context(), []string{"d", "f"}, []byte("x"), sigma.PutOptions{})
	b.ReportAllocs()
	for b.Loop() {
		f, _, err := root.Walk(b.Context(), []string{"d", "f"})
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Open(b.Context(), sigma.OpenRead); err != nil {
			b.Fatal(err)
		}
		p, err := f.(sigma.FilePasser).PassFile(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		p.Close()
		f.Close()
	}
}

func BenchmarkWriteAt(b *testing.B) {
	for _, size := range []int{100, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			root := benchRoot(b, inPlace)
			f, err := root.Create(b.Context(), "f", sigma.OpenWrite, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			data := make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.WriteAt(b.Context(), data, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

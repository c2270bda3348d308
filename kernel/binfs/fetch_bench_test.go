package binfs

import (
	"crypto/rand"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/s3"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// BenchmarkFetch takes three chunks at once from an object store behind a session, hashes included:
// what a cold start of a small program waits for.
func BenchmarkFetch(b *testing.B) {
	objects, err := s3.New(s3.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer objects.Close()
	ours, theirs, err := session.Pair()
	if err != nil {
		b.Fatal(err)
	}
	go treeserver.Serve(b.Context(), theirs, treeserver.Config{Tree: objects, Principal: sigma.Principal{Realm: "a"}})
	client, err := session.Dial(b.Context(), ours)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	root, err := client.Attach(b.Context(), "")
	if err != nil {
		b.Fatal(err)
	}
	tree := resolve.New(resolve.Config{Root: root})
	data := make([]byte, 3*chunkSize)
	rand.Read(data)
	if err := tree.Mkdir(b.Context(), "/bin", 0o755); err != nil {
		b.Fatal(err)
	}
	_, err = tree.Put(b.Context(), "/bin/p", data, sigma.PutOptions{})
	if err != nil {
		b.Fatal(err)
	}
	source := treeSource{func(sigma.RealmID) (Tree, error) { return tree, nil }}
	st, err := tree.Stat(b.Context(), "/bin/p")
	if err != nil {
		b.Fatal(err)
	}
	id := st.ID
	c := &Cache{cfg: Config{Source: source}, buffers: make(chan []byte, 2*aheadMax)}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		o, err := source.Object(Name{Realm: "a", Path: "/bin/p", ID: id, Size: int64(len(data))})
		if err != nil {
			b.Fatal(err)
		}
		p := &program{c: c, name: Name{Path: "/bin/p", ID: id, Size: int64(len(data))}, object: o,
			state: make([]chunkState, 3), hashes: make([]Hash, 3)}
		done := make(chan error, 3)
		for i := range 3 {
			go func() {
				data, _, err := p.fetch(b.Context(), i)
				if err == nil {
					c.recycle(data)
				}
				done <- err
			}()
		}
		for range 3 {
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
		o.Close()
	}
}

package s3

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// secret is what the victim's objects hold, and nothing that anybody else reads may.
const secret = "the victim's secret bytes"

// intruder asks in a realm of its own for what another realm has.
type intruder struct {
	*testing.T
	rng    *rand.Rand
	tree   *Tree
	root   sigma.File
	asked  int
	gotten int // answers with bytes of its own, so that it is known that asking works
}

// hostile are parts of paths that once led somewhere in some server.
var hostile = []string{"..", ".", "", "/", "mine", "secret", "own", "victim", "realms", "tree", "temp", "trash",
	"fences", "link", "../victim", "../../victim/tree/mine", "mine/secret", "/mine", "mine/", "..%2fvictim", "%2e%2e",
	"%2e%2e%2fvictim%2ftree", "..\\victim", "mine\x00", "\xc0\xae\xc0\xae", "\xc0\xaf", "....//", "~", "victim.mine",
	"mine@victim", "s3", "proc", "self", strings.Repeat("../", 40) + "etc", strings.Repeat("n", 255)}

func (x *intruder) names() []string {
	names := make([]string, 1+x.rng.IntN(6))
	for i := range names {
		names[i] = hostile[x.rng.IntN(len(hostile))]
	}
	return names
}

// look takes what was read.
func (x *intruder) look(what string, data []byte) {
	x.Helper()
	if bytes.Contains(data, []byte(secret)) {
		x.Fatalf("%s told the victim's bytes", what)
	}
	if bytes.Contains(data, []byte("own bytes")) {
		x.gotten++
	}
}

// ask tries one way. What fails may fail as it likes.
func (x *intruder) ask(ctx context.Context) {
	x.asked++
	names := x.names()
	if x.rng.IntN(10) == 0 {
		names = []string{"mine", "own"}
	}
	what := fmt.Sprintf("attempt %d, %.300q", x.asked, names)
	offset, count := []uint64{0, 1, 1 << 40, 1<<63 - 1, 1 << 63, 1<<64 - 1}[x.rng.IntN(6)],
		[]int{0, 1, 1 << 16, 1 << 30, -1}[x.rng.IntN(5)]
	if names[0] == "mine" && names[len(names)-1] == "own" {
		offset, count = 0, 1<<16
	}
	switch x.rng.IntN(7) {
	case 0:
		r, _, _ := x.root.(sigma.Getter).Get(ctx, names, offset, count)
		x.look(what+", Get", r.Data)
	case 1:
		f, _, err := x.root.Walk(ctx, names)
		if err != nil || f == nil {
			return
		}
		defer f.Close()
		x.read(ctx, what, f, offset)
	case 2:
		x.root.(sigma.Putter).Put(ctx, names, []byte("overwritten"),
			sigma.PutOptions{Kind: sigma.FileKind(x.rng.IntN(8))})
	case 3:
		f, err := x.root.Create(ctx, names[0], sigma.OpenReadWrite|sigma.OpenFlags(x.rng.IntN(64)), 0o777)
		if err == nil {
			x.read(ctx, what, f, offset)
			f.Close()
		}
	case 4:
		x.root.Rename(ctx, names[0], x.root, names[len(names)-1])
	case 5:
		x.root.Symlink(ctx, names[0], "../victim/tree/mine")
		if names[0] != "mine" { // it may be taken away from itself, but then nothing is left to ask with
			x.root.Remove(ctx, names[0])
		}
	case 6:
		f, err := x.tree.Attach(ctx, sigma.Principal{Realm: "intruder"}, []string{"victim", "../victim",
			"intruder/../victim", ".", "/"}[x.rng.IntN(5)])
		if err == nil {
			x.Errorf("%s: attached to another realm", what)
			f.Close()
		}
	}
}

// read reads a handle in every way there is.
func (x *intruder) read(ctx context.Context, what string, f sigma.File, offset uint64) {
	f.Open(ctx, sigma.OpenRead)
	buf := make([]byte, 1<<16)
	n, _ := f.ReadAt(ctx, buf, offset)
	x.look(what+", ReadAt", buf[:n])
	if p, err := f.(sigma.FilePasser).PassFile(ctx); err == nil {
		n, _ := p.Read(buf)
		x.look(what+", PassFile", buf[:n])
		p.Close()
	}
	entries, _, _, _ := f.ReadDir(ctx, 0, 100)
	for _, e := range entries {
		x.look(what+", ReadDir", []byte(e.Name))
		if e.Name == "only-the-victims" { // the intruder makes none of this name
			x.Errorf("%s lists the victim's object", what)
		}
	}
}

// TestAnotherRealmsBuckets asks on the local disk, and in a store that realms share.
func TestAnotherRealmsBuckets(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		dir := t.TempDir()
		anotherRealmsBuckets(t, newTree(t, dir), dir, 30)
	})
	t.Run("elsewhere", func(t *testing.T) {
		l := newLives(t)
		l.set(sigma.SystemRealm, at(s3server.Start(t), "/shared"))
		l.next()
		anotherRealmsBuckets(t, l.tree, "", 10)
	})
}

// anotherRealmsBuckets asks in thousands of ways for another realm's objects while their owner
// makes and removes buckets of the same name; the owner and the intruder read their own all the
// time.
func anotherRealmsBuckets(t *testing.T, tree *Tree, dir string, rounds int) {
	ctx := t.Context()
	attach := func(realm sigma.RealmID) sigma.File {
		f, err := tree.Attach(ctx, sigma.Principal{Realm: realm}, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		return f
	}
	victim, root := attach("victim"), attach("intruder")
	fill := func(root sigma.File, name, data string) {
		t.Helper()
		if err := root.Mkdir(ctx, "mine", 0o700); err != nil && sigma.KindOf(err) != sigma.KindExists {
			t.Fatal(err)
		}
		if _, _, err := root.(sigma.Putter).Put(ctx, []string{"mine", name}, []byte(data),
			sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	fill(victim, "secret", secret)
	fill(victim, "only-the-victims", secret)
	fill(root, "own", "own bytes")
	// Should the host hold such a link, nobody follows it.
	if dir != "" {
		if err := os.Symlink(filepath.Join(dir, "realms", "victim", "tree", "mine"),
			filepath.Join(dir, "realms", "intruder", "tree", "mine", "link")); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	x := &intruder{T: t, rng: rand.New(rand.NewPCG(seed, 0)), tree: tree, root: root}
	for round := range rounds {
		done := make(chan struct{})
		go func() { // the victim's bucket comes and goes meanwhile
			defer close(done)
			for range 5 {
				victim.Mkdir(ctx, "victim", 0o700)
				victim.(sigma.Putter).Put(ctx, []string{"victim", "secret"}, []byte(secret), sigma.PutOptions{})
				if b, _, err := victim.Walk(ctx, []string{"victim"}); err == nil {
					b.Remove(ctx, "secret")
					b.Close()
				}
				victim.Remove(ctx, "victim")
			}
		}()
		for range 100 {
			x.ask(ctx)
		}
		<-done
		fill(root, "own", "own bytes") // as it may have been overwritten
		if got := get(t, mustWalk(t, victim, "mine"), "secret"); got != secret {
			t.Fatalf("seed %d, round %d: the victim reads %q", seed, round, got)
		}
	}
	if x.asked < 100*rounds || x.gotten < rounds {
		t.Errorf("seed %d: asked %d times, and read its own bytes %d times: the test tests nothing", seed, x.asked,
			x.gotten)
	}
}

func mustWalk(t *testing.T, f sigma.File, name string) sigma.File {
	t.Helper()
	got, _, err := f.Walk(t.Context(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(got.Close)
	return got
}

// TestAnotherSessionsHandles: the numbers that one session gave its handles mean nothing in
// another.
func TestAnotherSessionsHandles(t *testing.T) {
	tree := newTree(t, t.TempDir())
	talk := func(realm sigma.RealmID) func(m sigmap.Message) sigmap.Message {
		a, b := net.Pipe()
		ours, theirs := session.NewStreamConn(a), session.NewStreamConn(b)
		served := make(chan error, 1)
		go func() {
			served <- treeserver.Serve(t.Context(), theirs,
				treeserver.Config{Tree: tree, Principal: sigma.Principal{Realm: realm}})
		}()
		t.Cleanup(func() { ours.Close(); <-served })
		return func(m sigmap.Message) sigmap.Message {
			t.Helper()
			buf, err := sigmap.Encode(nil, 1, m)
			if err == nil {
				err = ours.Send(buf, nil)
			}
			if err == nil {
				buf, _, err = ours.Recv()
			}
			if err != nil {
				t.Fatal(err)
			}
			_, answer, err := sigmap.Decode(buf)
			if err != nil {
				t.Fatal(err)
			}
			return answer
		}
	}
	victim, intruder := talk("victim"), talk("intruder")
	for _, session := range []func(sigmap.Message) sigmap.Message{victim, intruder} {
		session(&sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma})
		session(&sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid})
		session(&sigmap.Tmkdir{Fid: 1, Name: "mine", Mode: 0o700})
	}
	const handles = 300
	victim(&sigmap.Tput{Fid: 1, Names: []string{"mine", "secret"}, Data: []byte(secret)})
	for fid := uint32(2); fid < handles; fid++ {
		victim(&sigmap.Twalk{Fid: 1, NewFid: fid, Names: []string{"mine", "secret"}})
		victim(&sigmap.Tlopen{Fid: fid})
	}
	reads := func(session func(sigmap.Message) sigmap.Message, fid uint32) (n int) {
		for _, m := range []sigmap.Message{&sigmap.Tread{Fid: fid, Count: 100}, &sigmap.Tget{Fid: fid, Count: 100},
			&sigmap.Tget{Fid: fid, Names: []string{"mine", "secret"}, Count: 100}} {
			if strings.Contains(fmt.Sprintf("%s", session(m)), secret) {
				n++
			}
		}
		return n
	}
	own := 0
	for fid := uint32(1); fid < handles; fid++ {
		own += reads(victim, fid)
		if reads(intruder, fid) > 0 {
			t.Fatalf("handle %d of the victim's session is good in another", fid)
		}
	}
	if own < handles {
		t.Errorf("the victim read %d times by its own handles", own)
	}
}

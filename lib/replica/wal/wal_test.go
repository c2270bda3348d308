package wal

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/ux"
)

func files(t testing.TB, quota sigma.Bytes) sigma.Namespace {
	t.Helper()
	tree, err := ux.New(ux.Config{Dir: t.TempDir(), QuotaBytes: quota})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	root, err := tree.Attach(t.Context(), sigma.Principal{Realm: "r"}, "")
	if err != nil {
		t.Fatal(err)
	}
	ns := resolve.New(resolve.Config{Root: root})
	if err := ns.Mkdir(t.Context(), "/log", 0o700); err != nil {
		t.Fatal(err)
	}
	return ns
}

// all opens a log and gives what it has.
func all(t testing.TB, ns sigma.Namespace, first uint64) (l *Log, got []string, err error) {
	t.Helper()
	l, err = Open(t.Context(), Config{Files: ns, Dir: "/log", Reserve: 1 << 20}, first,
		func(_ uint64, record []byte) error {
			got = append(got, string(record))
			return nil
		})
	return l, got, err
}

// begin makes a log of one segment with records.
func begin(t testing.TB, ns sigma.Namespace, records ...string) *Log {
	t.Helper()
	l, _, err := all(t, ns, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Cut(t.Context(), 1, []byte("first")); err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if err := l.Append([]byte(r)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// Records of any size are there again, in order, over several segments; those of segments that were
// trimmed are not.
func TestLog(t *testing.T) {
	ns := files(t, 0)
	want := []string{"first", "x", string(make([]byte, 3<<20)), string(make([]byte, 15)), string(make([]byte, 17))}
	l := begin(t, ns, want[1:]...)
	for segment := uint64(2); segment < 5; segment++ {
		if err := l.Cut(t.Context(), 10*segment, fmt.Append(nil, segment)); err != nil {
			t.Fatal(err)
		}
		if err := l.Append([]byte("after")); err != nil {
			t.Fatal(err)
		}
		l.Close()
		want = append(want, fmt.Sprint(segment), "after")
		var got []string
		var err error
		if l, got, err = all(t, ns, 0); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatal(len(got), len(want), err)
		}
	}
	if err := l.Trim(t.Context(), 30); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, got, err := all(t, ns, 30); err != nil || fmt.Sprint(got) != "[3 after 4 after]" {
		t.Fatal(got, err)
	}
	if err := l.Append([]byte("x")); err == nil {
		t.Error("a closed log takes records")
	}
}

// What a crash cut off is dropped, and the log goes on; anything else that is wrong is an error.
func TestDamage(t *testing.T) {
	const path = "/log/0000000000000001.log"
	last := bytes.Repeat([]byte("last"), 5000)
	for name, c := range map[string]struct {
		change func(content []byte, second, third int)
		want   string // "" = an error
	}{
		"cut off":      {func(b []byte, _, third int) { clear(b[third+recordHead+100:]) }, "[first second]"},
		"no head":      {func(b []byte, _, third int) { clear(b[third : third+recordHead]) }, "[first second]"},
		"a bit at end": {func(b []byte, _, third int) { b[third+recordHead+7000] ^= 1 }, "[first second]"},
		"a bit before": {func(b []byte, second, _ int) { b[second+recordHead] ^= 1 }, ""},
		"a hole":       {func(b []byte, second, third int) { clear(b[second:third]) }, ""},
		"magic":        {func(b []byte, _, _ int) { b[0] ^= 1 }, ""},
		"nonce":        {func(b []byte, _, _ int) { b[9] ^= 1 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ns := files(t, 0)
			begin(t, ns, "second", string(last)).Close()
			content, _, err := ns.Get(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			second := headSize + int(length(5))
			c.change(content, second, second+int(length(6)))
			if _, err := ns.Put(t.Context(), path, content, sigma.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			l, got, err := all(t, ns, 0)
			if c.want == "" {
				if sigma.KindOf(err) != sigma.KindInvalid {
					t.Fatalf("got %d records and %v", len(got), err)
				}
				return
			}
			if err != nil || fmt.Sprint(got) != c.want {
				t.Fatal(got, err)
			}
			if err := l.Append([]byte("third")); err != nil {
				t.Fatal(err)
			}
			l.Close()
			if _, got, err := all(t, ns, 0); err != nil || fmt.Sprint(got) != "[first second third]" {
				t.Fatal(got, err)
			}
		})
	}
	ns := files(t, 0)
	l := begin(t, ns, "x")
	for n := uint64(2); n < 4; n++ {
		if err := l.Cut(t.Context(), n, []byte("y")); err != nil {
			t.Fatal(err)
		}
	}
	if err := ns.Remove(t.Context(), "/log/0000000000000002.log"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := all(t, ns, 1); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a missing segment: %v", err)
	}
}

// On a full disk the room that was made is used up, and nothing of what was acknowledged is lost.
func TestFull(t *testing.T) {
	ns := files(t, 4<<20)
	l := begin(t, ns)
	n := 0
	for ; n < 100; n++ {
		if err := l.Grow(); err != nil && sigma.KindOf(err) != sigma.KindNoSpace {
			t.Fatal(err)
		}
		room := l.Room()
		if err := l.Append(make([]byte, 100_000)); err != nil {
			if sigma.KindOf(err) != sigma.KindNoSpace || room >= 100_016 {
				t.Fatal(room, err)
			}
			break
		}
	}
	if err := l.Cut(t.Context(), 2, []byte("x")); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Error(err)
	}
	if n < 20 || n == 100 {
		t.Errorf("%d records fit", n)
	}
	l.Close()
	l, got, err := all(t, ns, 0)
	if err != nil || len(got) != n+1 {
		t.Fatalf("%d records of %d, %v", len(got), n+1, err)
	}
	if err := l.Append([]byte("a little")); err != nil {
		t.Error(err)
	}
}

// No bytes of a segment make Open fail otherwise than by an error, or give a record that was never
// written.
func FuzzOpen(f *testing.F) {
	f.Add(uint64(1), []byte("xyz"), uint16(70))
	f.Fuzz(func(t *testing.T, seed uint64, noise []byte, at uint16) {
		ns := files(t, 0)
		begin(t, ns, "second", "third").Close()
		const path = "/log/0000000000000001.log"
		content, _, err := ns.Get(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		content = content[:4096]
		rng := rand.New(rand.NewPCG(seed, 1))
		copy(content[int(at)%len(content):], noise)
		content = content[:rng.IntN(len(content)+1)]
		if _, err := ns.Put(t.Context(), path, content, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		l, got, err := all(t, ns, 0)
		if err != nil {
			return
		}
		l.Close()
		if want := []string{"first", "second", "third"}[:min(3, len(got))]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %q", got)
		}
	})
}

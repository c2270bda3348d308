package member

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
)

// file is what a server of names makes of a name.
type file interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Leaser
}

// serve runs a server alone on a store until the test ends or stop is called.
func serve(t testing.TB, cfg Config) (s *named.Server, stop func()) {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(logWriter{t}, nil))
	}
	s, err := openAlone(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- s.Run(context.Background()) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		s.Close()
		if err := <-ran; err != nil && sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

const testRealm = sigma.RealmID("acme")

// attach makes the realm if there is none and returns its root.
func attach(t testing.TB, s *named.Server) file {
	t.Helper()
	if err := s.Create(t.Context(), testRealm); err != nil && sigma.KindOf(err) != sigma.KindExists {
		t.Fatal(err)
	}
	f, err := s.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	return f.(file)
}

func put(t testing.TB, f file, name, data string) {
	t.Helper()
	if _, stopped, err := f.Put(t.Context(), []string{name}, []byte(data),
		sigma.PutOptions{}); err != nil || stopped != nil {
		t.Errorf("put %s: %v, %v", name, stopped, err)
	}
}

func get(t testing.TB, f file, names ...string) string {
	t.Helper()
	r, stopped, err := f.Get(t.Context(), names, 0, named.FileMax)
	if err != nil || stopped != nil {
		t.Errorf("get %q: %v, %v", names, stopped, err)
	}
	return string(r.Data)
}

func walk(t testing.TB, f file, names ...string) file {
	t.Helper()
	w, _, err := f.Walk(t.Context(), names)
	if err != nil || w == nil {
		t.Fatalf("walk %q: %v, %v", names, w, err)
	}
	return w.(file)
}

// list returns all names of a directory, in order of its listing.
func list(t testing.TB, f file, page int) (names []string) {
	t.Helper()
	d := walk(t, f)
	defer d.Close()
	if err := d.Open(t.Context(), sigma.OpenRead); err != nil {
		t.Fatal(err)
	}
	for cookie, more := uint64(0), true; more; {
		var entries []sigma.DirEntry
		var err error
		if entries, cookie, more, err = d.ReadDir(t.Context(), cookie, page); err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name)
		}
	}
	return names
}

func wantKind(t testing.TB, err error, want sigma.Kind) {
	t.Helper()
	if err == nil || sigma.KindOf(err) != want {
		t.Errorf("got error %v, want kind %v", err, want)
	}
}

// Goal: a leader's right to answer is measured by the monotonic clock, which nobody sets.
func TestClock(t *testing.T) {
	if a := newAuthority(nil, time.Second); !strings.Contains(a.start.String(), " m=") {
		t.Error("a leader's lease is measured by the wall clock")
	}
}

// Whatever the decoder of terms accepts has the same number and machine when it is written again,
// and what is cut or has more bytes is refused.
func FuzzTerm(f *testing.F) {
	for _, t := range []term{{number: 1, machine: "m1"}, {number: 1 << 63}} {
		f.Add(t.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		is, err := decodeTerm(b)
		if err != nil {
			return
		}
		again := is.encode()
		if got, err := decodeTerm(again); err != nil || got != is {
			t.Errorf("%+v becomes %+v, %v", is, got, err)
		}
		if _, err := decodeTerm(append(again, 0)); err == nil {
			t.Error("a byte too many is accepted")
		}
		if _, err := decodeTerm(again[:len(again)-1]); err == nil {
			t.Error("a byte too few is accepted")
		}
	})
}

func fencedAt(t testing.TB, name string, epoch sigma.Epoch) context.Context {
	return sigma.WithFence(t.Context(), sigma.Fence{Name: name, Epoch: epoch})
}

func numbered(t testing.TB, client, seq uint64, again bool) context.Context {
	return sigma.WithOnce(t.Context(), sigma.Once{Client: client, Seq: seq, Done: seq - 1, Again: again})
}

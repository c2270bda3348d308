package sigmap

import (
	"context"
	"errors"
	"os"
	"testing"

	"sigmaos.dev/sigma"
)

// TestFit: as many items go in one payload as it takes, one in any case, and all that are short.
func TestFit(t *testing.T) {
	for _, c := range []struct{ size, n, least, most int }{{10, 0, 0, 0}, {10, 1, 1, 1}, {10, 512, 512, 512},
		{4096, 512, 7, DataMax / 4096}, {DataMax, 5, 1, 1}, {2 * DataMax, 2, 1, 1}} {
		items := make([][]byte, c.n)
		for i := range items {
			items[i] = make([]byte, c.size)
		}
		code := func(co *Coder, some *[][]byte) {
			for i := range *some {
				co.Data(&(*some)[i])
			}
		}
		n := Fit(items, code)
		if n < c.least || n > c.most {
			t.Errorf("%d of %d items of %d bytes, not %d to %d", n, c.n, c.size, c.least, c.most)
		}
		if _, err := Payload(func(co *Coder) { some := items[:n]; code(co, &some) }); err != nil && n > 1 {
			t.Errorf("%d items of %d bytes: %v", n, c.size, err)
		}
	}
}

// Goal: both sides of a method agree, an empty payload is none, and a reply that cannot be read
// leaves no file descriptors.
func TestMethod(t *testing.T) {
	m := Method[string, uint64]{Name: "m", Request: (*Coder).Str, Reply: (*Coder).U64}
	table := Table(On(m, func(who int, _ context.Context, s string) (uint64, error) {
		return uint64(who + len(s)), nil
	}), Do(Method[None, None]{Name: "nothing"}, func(int, context.Context, None) error { return nil }))
	to := Via(func(ctx context.Context, method string, payload []byte) ([]byte, error) {
		if method == "nothing" && payload != nil {
			t.Errorf("nothing is %x", payload)
		}
		reply, _, err := table[method].Call(1, ctx, payload)
		return reply, err
	})
	if n, err := m.Ask(t.Context(), to, "abc"); n != 4 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if err := (Method[None, None]{Name: "nothing"}).Tell(t.Context(), to, None{}); err != nil {
		t.Error(err)
	}
	if _, _, err := table["m"].Call(1, t.Context(), []byte{1}); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a bad request: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, files, err := m.AskFiles(t.Context(), passing{w}, "")
	if sigma.KindOf(err) != sigma.KindInvalid || files != nil {
		t.Errorf("got %v, %v", files, err)
	}
	if _, err := w.Write([]byte{1}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file descriptor is open: %v", err)
	}
}

// passing answers with a file descriptor and a payload that is nothing.
type passing struct{ f *os.File }

func (p passing) Call(context.Context, string, []byte, []*os.File) ([]byte, []*os.File, error) {
	return []byte{1}, []*os.File{p.f}, nil
}

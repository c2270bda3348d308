package resolve_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"sigmaos.dev/sigma"
)

// drip gives its bytes in pieces of random size, as a pipe does.
type drip struct {
	rng  *rand.Rand
	data []byte
	end  error
}

func (d *drip) Read(p []byte) (int, error) {
	n := copy(p, d.data[:min(len(d.data), 1+d.rng.IntN(100_000))])
	if d.data = d.data[n:]; n == 0 {
		return 0, d.end
	}
	return n, nil
}

// TestCopy copies files of many sizes to and from a server by io.Copy, whose source gives what it
// likes, and checks the bytes and the position.
func TestCopy(t *testing.T) {
	w := newWorld(t, nil)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 1, 60 << 10, 60<<10 + 1, 1 << 20, 7<<20 + 3} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		h, err := w.Create(t.Context(), "/f", sigma.OpenTruncate|sigma.OpenReadWrite, 0o600)
		w.ok("Create", err)
		for at, part := range [][]byte{data[:size/3], data[size/3:]} { // the second goes on where the first ended
			if n, err := io.Copy(h, &drip{rng, part, io.EOF}); err != nil || n != int64(len(part)) {
				t.Fatalf("%d bytes, part %d: got %d, %v", size, at, n, err)
			}
		}
		_, err = h.Seek(1, io.SeekStart)
		w.ok("Seek", err)
		var got bytes.Buffer
		n, err := io.Copy(&got, h)
		if want := data[min(1, size):]; err != nil || n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%d bytes: got %d, %v, equal %t", size, n, err, bytes.Equal(got.Bytes(), want))
		}
		if at, err := h.Seek(0, io.SeekCurrent); err != nil || at != int64(max(size, 1)) {
			t.Errorf("%d bytes: the position is %d, %v", size, at, err)
		}
		w.ok("Close", h.Close())
	}
	h, err := w.Create(t.Context(), "/a", sigma.OpenAppend, 0o600)
	w.ok("Create", err)
	line := bytes.Repeat([]byte("0123456789"), 50_000) // several messages, which must not overtake each other
	for range 3 {
		_, err := h.Write(line)
		w.ok("Write", err)
	}
	w.ok("Close", h.Close())
	got, _, err := w.Get(t.Context(), "/a")
	if err != nil || !bytes.Equal(got, bytes.Repeat(line, 3)) {
		t.Errorf("appended %d bytes, %v", len(got), err)
	}
}

// TestCopyFails: whatever fails, source, server or sink, the copy says so and does not hang.
func TestCopyFails(t *testing.T) {
	w := newWorld(t, nil)
	w.put("/f", string(make([]byte, 3<<20)))
	broken := errors.New("broken")
	h, err := w.Create(t.Context(), "/g", sigma.OpenWrite, 0o600)
	w.ok("Create", err)
	if n, err := io.Copy(h, &drip{rand.New(rand.NewPCG(3, 4)), make([]byte, 1<<20), broken}); !errors.Is(err, broken) ||
		n != 1<<20 {
		t.Errorf("a broken source: %d, %v", n, err)
	}
	r, err := w.Open(t.Context(), "/f", sigma.OpenRead)
	w.ok("Open", err)
	if _, err := io.Copy(failing{broken}, r); !errors.Is(err, broken) {
		t.Errorf("a broken sink: %v", err)
	}
	if _, err := io.Copy(r, bytes.NewReader(make([]byte, 1<<20))); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a file open for reading: %v", err)
	}
	if _, err := io.Copy(io.Discard, h); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a file open for writing: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write(p []byte) (int, error) { return len(p) / 2, f.err }

package journal

import (
	"context"
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// open opens the journal in /j and gives what was applied.
func open(t *testing.T, n Names, epoch uint64) (*Journal, string) {
	t.Helper()
	all := ""
	j, err := Open(t.Context(), n, "/j", epoch, func(b []byte) error { all += string(b); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return j, all
}

func newNames(t *testing.T) *resolve.Tree {
	t.Helper()
	tree := memfs.New(memfs.Config{})
	t.Cleanup(tree.Close)
	root, err := tree.Attach(context.Background(), sigma.Principal{}, "")
	if err != nil {
		t.Fatal(err)
	}
	return resolve.New(resolve.Config{Root: root})
}

// write writes all that is due, but for the batches of which skip is true.
func write(t *testing.T, j *Journal, skip func(n uint64) bool) {
	t.Helper()
	for b := j.Next(); b != nil; b = j.Next() {
		if !skip(b.number) {
			if err := j.Write(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		j.Written()
	}
}

func none(uint64) bool { return false }

// Goal: what was settled is read in order; a batch beyond a gap, of an earlier leader, never is,
// also when a later one has filled the gap; a snapshot takes the place of what was before it, and
// the ring is used again and again.
func TestGapsAndSnapshots(t *testing.T) {
	n := newNames(t)
	j, _ := open(t, n, 1)
	for i := range 3 {
		j.Add(fmt.Append(nil, "a", i))
		write(t, j, none)
	}
	j.Add([]byte("lost"))
	write(t, j, func(n uint64) bool { return n == 4 })
	// a batch beyond the gap, which its leader could not settle
	if _, err := n.Put(t.Context(), j.slot(5), append([]byte{5, 1}, "never"...), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	j, all := open(t, n, 2)
	if all != "a0a1a2" {
		t.Fatalf("the log has %q", all)
	}
	j.Add([]byte("b"))
	write(t, j, none)
	if j, all = open(t, n, 3); all != "a0a1a2b" {
		t.Fatalf("after the gap was filled the log has %q", all)
	}
	finish := func() {
		t.Helper()
		w, done := j.Snapshot([][]byte{[]byte("S"), []byte("T")})
		write(t, j, none)
		if err := w(t.Context()); err != nil {
			t.Fatal(err)
		}
		done()
	}
	finish()
	j.Add([]byte("c"))
	write(t, j, none)
	if j, all = open(t, n, 4); all != "STc" {
		t.Errorf("after a snapshot the log has %q", all)
	}
	for range 2*slots + 5 {
		j.Add([]byte("x"))
		if write(t, j, none); j.SnapshotDue() {
			finish()

		}
	}
	if _, all = open(t, n, 5); all[:2] != "ST" || len(all) > slots {
		t.Errorf("after two turns of the ring the log has %d bytes: %.20s", len(all), all)
	}
	_, err := Open(t.Context(), n, "/j", 1, func([]byte) error { return nil })
	if sigma.KindOf(err) != sigma.KindInvalid || sigma.HintOf(err) == "" {
		t.Errorf("an epoch that was before: %v", err)
	}
}

// FuzzFiles: no file of the ring or head is a panic.
func FuzzFiles(f *testing.F) {
	f.Add([]byte("\x05\x01records"))
	f.Add([]byte(`{"chunks":2,"set":1,"from":9,"epoch":3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, records := decodeBatch(b); len(records) > len(b) {
			t.Error(records)
		}
		if h, err := decodeHead(b); err == nil && (h.From == 0 || h.Chunks < 0) {
			t.Error(h)
		}
	})
}

// Goal: records that come while a batch is being written are written together, and full batches
// beside one another.
func TestRecordsGoTogether(t *testing.T) {
	j, _ := open(t, newNames(t), 1)
	j.Add([]byte("first"))
	if j.Next() == nil {
		t.Fatal("a record waits for nothing")
	}
	for range 10 {
		j.Add([]byte("later"))
		if j.Next() != nil {
			t.Fatal("a record is written beside another")
		}
	}
	j.Written()
	if b := j.Next(); b == nil || len(b.records) != 50 {
		t.Errorf("then %v is written", b)
	}
	for range putsMax {
		j.Add(make([]byte, BatchMax))
	}
	full := 0
	for j.Next() != nil {
		full++
	}
	if full != putsMax-1 {
		t.Errorf("%d full batches are written beside one that is not, of %d", full, putsMax)
	}
}

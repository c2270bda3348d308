package changeboard

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// TestChanges: a mark is the same until its file, or everything, changed; a view cannot be written.
func TestChanges(t *testing.T) {
	b, err := New()
	if err != nil {
		t.Fatal(err)
	}
	f, err := b.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	old := v.Snapshot()
	one, other := old.Mark(1), old.Mark(2)
	b.Changed(1)
	if v.Same(one) || !v.Same(other) {
		t.Errorf("after a change of file 1: got %t for it and %t for file 2, want false and true", v.Same(one),
			v.Same(other))
	}
	if now := v.Snapshot().Mark(1); !v.Same(now) {
		t.Error("a new mark is not the same")
	}
	b.AllChanged()
	if v.Same(other) {
		t.Error("a change of everything was missed")
	}
	if _, err := unix.Mmap(int(f.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("a reader could map the board for writing")
	}
	if err := f.Truncate(0); err == nil {
		t.Error("a reader could cut the board")
	}
}

// TestOpen refuses what could be cut short under the reader.
func TestOpen(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(pageSize)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("got %v, want KindInvalid", err)
	}
	var none *Board
	none.Changed(1)
	none.AllChanged()
	if _, err := none.File(); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("got %v, want KindUnsupported", err)
	}
}

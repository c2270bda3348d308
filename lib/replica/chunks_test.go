package replica

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
)

// Goal: a snapshot in memory is what was read into it, at any place, and is freed while it is read.
func TestChunks(t *testing.T) {
	for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 3*chunkSize + 7} {
		want := make([]byte, size)
		rand.NewChaCha8([32]byte{1}).Read(want)
		c := &chunks{}
		if n, err := c.ReadFrom(iotest.HalfReader(bytes.NewReader(want))); err != nil || n != int64(size) ||
			c.Size() != n {
			t.Fatalf("%d of %d bytes, %v", n, size, err)
		}
		if got, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size())); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes: ReadAt gives other bytes, %v", size, err)
		}
		part := max(size-4, 0)
		got, err := io.ReadAll(iotest.OneByteReader(c.drain(int64(part))))
		if err != nil || !bytes.Equal(got, want[:part]) {
			t.Fatalf("%d bytes: drain gives other bytes, %v", size, err)
		}
		for i := range part / chunkSize {
			if c.all[i] != nil {
				t.Errorf("%d bytes: piece %d is kept", size, i)
			}
		}
	}
}

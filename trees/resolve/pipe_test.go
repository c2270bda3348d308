package resolve_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// TestPipe copies more than a pipe holds through one, in order, and gives up a read by closing.
func TestPipe(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Put(t.Context(), "/p", nil, sigma.PutOptions{Kind: sigma.KindPipe})
	w.ok("Put", err)
	r, err := w.Open(t.Context(), "/p", sigma.OpenRead)
	w.ok("Open", err)
	out, err := w.Open(t.Context(), "/p", sigma.OpenWrite)
	w.ok("Open", err)
	var data strings.Builder
	for i := range 200_000 {
		data.WriteByte(byte(i>>8) ^ byte(i))
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(out, strings.NewReader(data.String()))
		if err == nil {
			err = out.Close()
		}
		copied <- err
	}()
	var got bytes.Buffer
	if n, err := io.Copy(&got, r); err != nil || n != 200_000 || got.String() != data.String() {
		t.Errorf("got %d bytes, %v, equal %t", n, err, got.String() == data.String())
	}
	w.ok("Copy", <-copied)
	_, err = r.Seek(0, io.SeekStart)
	w.fails("Seek", err, sigma.KindInvalid, "/p")
	_, err = r.ReadAt(make([]byte, 1), 0)
	w.fails("ReadAt", err, sigma.KindInvalid, "/p")
	waiting, err := w.Open(t.Context(), "/p", sigma.OpenRead)
	w.ok("Open", err)
	read := make(chan error, 1)
	go func() {
		_, err := waiting.Read(make([]byte, 1))
		read <- err
	}()
	w.ok("Close", waiting.Close())
	if err := <-read; sigma.KindOf(err) != sigma.KindCanceled && sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a read of a pipe that is closed meanwhile: %v", err)
	}
	w.ok("Close", r.Close())
}

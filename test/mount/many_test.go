//go:build system

package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// A program that opens files of a mount without end is told at a bound, by an errno that says that
// there are too many; other realms are served meanwhile, and when it has closed them so is it.
func TestOpenWithoutEnd(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	_, work := mounted(t, s)
	s.Must(t, "realm", "create", "beside-mount")
	t.Cleanup(func() { s.CLI(t, "realm", "rm", "--force", "beside-mount") })
	other := s.Connect(ctx, t, "beside-mount")
	var held []*os.File
	defer func() {
		for _, f := range held {
			f.Close()
		}
	}()
	var err error
	for n := 0; err == nil && n < 100_000; n++ {
		var f *os.File
		if f, err = os.Create(filepath.Join(work, fmt.Sprint(n))); err == nil {
			held = append(held, f)
		}
	}
	var path *os.PathError
	if !errors.As(err, &path) || !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.EMFILE) &&
		!errors.Is(err, syscall.ENFILE) || len(held) < 2000 {
		t.Errorf("after %d files: %v", len(held), err)
	}
	t.Logf("after %d files: %v", len(held), err)
	if _, err := other.Put(ctx, "/ux/~local/f", []byte("text"), sigma.PutOptions{}); err != nil {
		t.Errorf("another realm: %v", err)
	}
	for _, f := range held {
		must(t, f.Close())
	}
	held = nil
	testenv.Eventually(t, "files can be opened again", func() error { // nobody waits for the server to have closed them
		f, err := os.Create(filepath.Join(work, "again"))
		if err == nil {
			err = f.Close()
		}
		return err
	})
}

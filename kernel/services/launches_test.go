package services

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Goal: starts are counted over the death of who counts them, also if the file holds something
// else.
func TestLaunches(t *testing.T) {
	path := filepath.Join(t.TempDir(), "launches")
	open := func() *launches { return newLaunches(slog.New(slog.DiscardHandler), path) }
	for want := range uint32(3) {
		l := open()
		if got := l.begun("named"); got != want || l.restarts("named") != want || l.restarts("other") != 0 {
			t.Errorf("start %d: %d before, %d restarts, %d of another", want, got, l.restarts("named"),
				l.restarts("other"))
		}
	}
	l := open()
	if l.forget("named"); l.restarts("named") != 0 || open().restarts("named") != 0 {
		t.Error("what nobody needs is not forgotten")
	}
	for _, text := range []string{"", "null", "[1]", `{"named":-1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := open().begun("named"); got != 0 {
			t.Errorf("%q counts as %d starts", text, got)
		}
	}
}

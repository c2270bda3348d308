package proclog

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: a writer without end is read to its end; the first and the last bytes are kept, with a mark
// that says how many are missing; another process goes on with the file.
func TestFirstAndLast(t *testing.T) {
	for _, more := range []int{0, 1, 100, Tail + 5, 3*Tail + 77} {
		budget, path := new(Budget), filepath.Join(t.TempDir(), "a")
		l, all := New(path, budget), numbered(Head+Tail+more)
		l.Copy(bytes.NewReader(all))
		if kept := budget.used.Load(); kept != Head+Tail || l.Dropped() != uint64(more) {
			t.Errorf("kept %d, dropped %d of %d more", kept, l.Dropped(), more)
		}
		want := string(all)
		if more > 0 {
			want = string(all[:Head]) + Mark(uint64(more)) + string(all[len(all)-Tail:])
		}
		f := l.File("a", 1)
		if st, err := f.Stat(t.Context()); err != nil || st.Size != uint64(len(want)) || st.Size > LogMax {
			t.Errorf("%d more: it is %+v, %v", more, st, err)
		}
		if read(t, f, LogMax, 0) != want || read(t, f, 100, Head-50) != want[Head-50:Head+50] {
			t.Errorf("%d more: it is read otherwise", more)
		}
		next := New(path, new(Budget))
		if err := next.Resume(); err != nil {
			t.Fatal(err)
		}
		next.write([]byte("END"))
		next.End()
		f = next.File("a", 1)
		if got := read(t, f, LogMax, 0); got[:Head] != want[:Head] || got[Head:Head+MarkLen] != Mark(uint64(more+3)) ||
			!strings.HasSuffix(got, string(all[len(all)-100:])+"END") {
			t.Errorf("%d more: the next does not go on", more)
		}
	}
}

// Goal: logs of a realm keep together what they may.
func TestBudget(t *testing.T) {
	budget := new(Budget)
	budget.used.Store(RealmMax - 10)
	m := New(filepath.Join(t.TempDir(), "b"), budget)
	m.Copy(strings.NewReader(strings.Repeat("x", 25)))
	if m.size != 10 || m.Dropped() != 15 || budget.used.Load() != RealmMax {
		t.Errorf("kept %d, dropped %d, %d are counted", m.size, m.Dropped(), budget.used.Load())
	}
}

// numbered are n bytes that differ from place to place.
func numbered(n int) []byte {
	b := make([]byte, 0, n+10)
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, "%09d\n", i)
	}
	return b[:n]
}

// Goal: an open file does not move when more is written; what went missing under it is told as an
// error, and who opens it again goes on.
func TestMissingWhileRead(t *testing.T) {
	l := New(filepath.Join(t.TempDir(), "a"), new(Budget))
	all := numbered(Head + 4*Tail)
	l.write(all[:Head+Tail+100])
	f, at := l.File("a", 1), uint64(Head+MarkLen)
	before := read(t, f, 100, at)
	l.write(all[Head+Tail+100 : Head+Tail+lead])
	if got := read(t, f, 100, at); got != before || got != string(all[Head+100+lead:][:100]) {
		t.Errorf("it is read as %q and then as %q", before, got)
	}
	l.write(all[Head+Tail+lead:])
	if _, err := f.ReadAt(t.Context(), make([]byte, 10), at); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("what is gone is read: %v", err)
	}
	if err := f.Open(t.Context(), sigma.OpenRead); err != nil ||
		read(t, f, 100, at) != string(all[Head+3*Tail+lead:][:100]) {
		t.Errorf("opened again it does not go on: %v", err)
	}
}

// Goal: times of a log that grows for ever cost a bound; the first one stays, and there are new
// ones.
func TestStampsAreBounded(t *testing.T) {
	l, begin := New(filepath.Join(t.TempDir(), "a"), new(Budget)), time.Now()
	for i := range 100_000 {
		l.noteLocked(uint64(i), begin.Add(time.Duration(i)*time.Second))
	}
	s := l.Stamps()
	if len(s) > stampsMax || len(s) < stampsMax/2 || s[0].At != 0 || s[len(s)-1].At < 99_000 {
		t.Errorf("%d times, from %+v to %+v", len(s), s[0], s[len(s)-1])
	}
	l.Remove()
	if used := l.budget.memory.Load(); used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}

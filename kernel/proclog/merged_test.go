package proclog

import (
	"path/filepath"
	"strings"
	"testing"
)

// Goal: what came to two logs is read in the order in which it came, in pieces of any size, while
// it grows and afterwards; it ends where there were too many turns, and costs nothing when it is
// removed.
func TestMerged(t *testing.T) {
	budget := new(Budget)
	a, b := New(filepath.Join(t.TempDir(), "a"), budget), New(filepath.Join(t.TempDir(), "b"), budget)
	m := Merge(a, b)
	f := m.File("log", 1)
	var want strings.Builder
	for i := range 300 {
		text := strings.Repeat(string(rune('a'+i%26)), 1+i*7%50) // beyond what is kept in memory
		[]*Log{a, b}[i*i%3%2].write([]byte(text))
		want.WriteString(text)
		if got := read(t, f, 10*len(text), uint64(want.Len()-len(text))); got != text {
			t.Fatalf("piece %d is %q, want %q", i, got, text)
		}
	}
	for _, n := range []int{1, 7, 100, want.Len()} {
		got := ""
		for at := 0; at < want.Len(); at += n {
			got += read(t, f, n, uint64(at))
		}
		if got != want.String() {
			t.Errorf("in pieces of %d it is read otherwise", n)
		}
	}
	st, err := f.Stat(t.Context())
	if err != nil || st.Size != uint64(want.Len()) {
		t.Errorf("it is %+v, %v", st, err)
	}
	if v, err := f.(*mergedFile).Watch(t.Context(), st.ID.Version-1); v != st.ID.Version || err != nil {
		t.Errorf("a watch tells %d, %v", v, err)
	}
	a.End()
	if v, err := f.(*mergedFile).Watch(t.Context(), st.ID.Version); v <= st.ID.Version || err != nil {
		t.Errorf("after the end of a log a watch tells %d, %v", v, err)
	}
	a.Remove()
	b.Remove()
	m.Remove()
	if memory := budget.memory.Load(); memory != 0 {
		t.Errorf("%d bytes are still counted", memory)
	}
	if got := read(t, f, 10, 0); got != "" {
		t.Errorf("got %q of what was removed", got)
	}
}

// Goal: streams that take turns for ever cost a bound.
func TestMergedTurns(t *testing.T) {
	budget := new(Budget)
	a, b := New(filepath.Join(t.TempDir(), "a"), budget), New(filepath.Join(t.TempDir(), "b"), budget)
	m := Merge(a, b)
	for range turnsMax {
		a.write([]byte("a"))
		b.write([]byte("b"))
	}
	f := m.File("log", 1)
	if got := read(t, f, 3*turnsMax, 0); got != strings.Repeat("ab", turnsMax/2) {
		t.Errorf("it has %d bytes", len(got))
	}
	if len(m.turns) > turnsMax {
		t.Errorf("it notes %d turns", len(m.turns))
	}
}

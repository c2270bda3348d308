package proclog

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func openArchive(t *testing.T, path string) *Archive {
	t.Helper()
	a, err := OpenArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func add(t *testing.T, a *Archive, id sigma.ProcID, text string) {
	t.Helper()
	a.Expect(id)
	if err := a.Add([]Record{{id, []byte(text)}}); err != nil {
		t.Fatal(err)
	}
}

func has(t *testing.T, a *Archive) string {
	t.Helper()
	var all []string
	if err := a.Each(func(r Record) { all = append(all, fmt.Sprintf("%s=%s", r.ID, r.Data)) }); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// Goal: an archive that is opened again has what it had, also after a crash that cut the last
// record, and goes on; what was forgotten before it was added is not in it, and what was forgotten
// is not on the disk once it is compacted.
func TestArchive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ended")
	a := openArchive(t, path)
	if !a.Empty() {
		t.Error("a new one has something")
	}
	add(t, a, "p1", "one")
	add(t, a, "p2", "two")
	a.Expect("p3")
	a.Forget("p3")
	if err := a.Add([]Record{{"p3", []byte("three")}, {"p9", []byte("nobody expects it")}}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	add(t, a, "p4", "four")
	if got := has(t, a); got != "p1=one p2=two p4=four" {
		t.Errorf("it has %q", got)
	}
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := len(whole); n < len(all); n++ { // wherever a crash cuts
		if err := os.WriteFile(path, all[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		a = openArchive(t, path)
		if got := has(t, a); got != "p1=one p2=two" || a.Has("p4") {
			t.Fatalf("cut after %d bytes it has %q", n, got)
		}
		add(t, a, "p5", "five")
		if got := has(t, a); got != "p1=one p2=two p5=five" {
			t.Fatalf("cut after %d bytes it has then %q", n, got)
		}
	}
	a.Forget("p2")
	if err := a.Compact(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte("two")) ||
		!bytes.Contains(b, []byte("five")) {
		t.Errorf("after compaction: %q, %v", b, err)
	}
	if got := has(t, openArchive(t, path)); got != "p1=one p5=five" {
		t.Errorf("opened again it has %q", got)
	}
}

// Goal: the file of many procs, most of them forgotten, stays within its bound.
func TestArchiveBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ended")
	a := openArchive(t, path)
	text := strings.Repeat("x", 10<<10)
	for i := range 1000 {
		add(t, a, sigma.ProcID(fmt.Sprint(i)), text)
		if i >= 10 {
			a.Forget(sigma.ProcID(fmt.Sprint(i - 10)))
		}
		if st, err := os.Stat(path); err != nil || st.Size() > archiveSlack+24*(10<<10+20) {
			t.Fatalf("%v, %v", st.Size(), err)
		}
	}
	if n := len(strings.Fields(has(t, a))); n != 10 {
		t.Errorf("it has %d records", n)
	}
}

// Goal: two logs that ended are the same for the next process: in memory or in a file, their order
// and times, what is missing, what is counted.
func TestCode(t *testing.T) {
	dir := t.TempDir()
	pair := func() (*Merged, *Budget) {
		b := new(Budget)
		return Merge(New(filepath.Join(dir, "out"), b), New(filepath.Join(dir, "err"), b)), b
	}
	m, budget := pair()
	m.logs[0].write([]byte("a"))
	m.logs[1].write([]byte("B"))
	m.logs[0].write([]byte("c"))
	m.logs[1].write(bytes.Repeat([]byte("D"), memoryMax+1))
	for _, l := range m.logs {
		l.End()
	}
	c := sigmap.NewEncoder(nil)
	m.Code(c)
	again, counted := pair()
	d := sigmap.NewDecoder(c.Bytes())
	if again.Code(d); d.Finish() != nil {
		t.Fatal(d.Finish())
	}
	for i, l := range again.logs {
		was := m.logs[i]
		if got, want := read(t, l.File("l", 1), 1<<20, 0), read(t, was.File("l", 1), 1<<20, 0); got != want ||
			l.Written() != was.Written() || l.Dropped() != was.Dropped() {
			t.Errorf("log %d has %d bytes of %d, %d dropped", i, len(got), l.Written(), l.Dropped())
		}
		if a, b := l.Stamps(), was.Stamps(); len(a) != len(b) || !a[0].Time.Equal(b[0].Time) {
			t.Errorf("log %d has the times %v, want %v", i, a, b)
		}
	}
	both := make([]byte, 5)
	if n, err := again.File("log", 1).ReadAt(t.Context(), both, 0); string(both[:n]) != "aBcDD" || err != nil {
		t.Errorf("both are %q, %v", both, err)
	}
	if got, want := []int64{counted.used.Load(), counted.memory.Load()},
		[]int64{budget.used.Load(), budget.memory.Load()}; !slices.Equal(got, want) {
		t.Errorf("%v is counted, want %v", got, want)
	}
	for _, l := range again.logs {
		l.Remove()
	}
	again.Remove()
	if used, memory := counted.used.Load(), counted.memory.Load(); used != 0 || memory != 0 {
		t.Errorf("%d bytes are still counted, %d in memory", used, memory)
	}
}

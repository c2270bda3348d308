package decision

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

func open(t *testing.T, path string) *Log {
	t.Helper()
	l, err := Open(path, "m1", func(*Record) {})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// told are the procs of a realm's records.
func told(l *Log, realm sigma.RealmID) string {
	text, _, _ := l.After(realm, 0, 1<<20)
	var out []string
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(line, `"proc":"`)
		proc, _, _ := strings.Cut(rest, `"`)
		out = append(out, proc)
	}
	return strings.Join(out, " ")
}

// Goal: a Log that is opened again has what it had, but for what is older than a day and a line
// that a crash cut, and goes on with greater numbers.
func TestOpenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions")
	l := open(t, path)
	old := New("besched", "a", "p0", Memory, "long ago")
	old.Time = time.Now().Add(-Age - time.Minute)
	l.Note(old)
	l.Note(New("besched", "a", "p1", Memory, "no room"))
	l.Note(New("lcsched", "b", "p2", Labels, "no labels"))
	if got := told(l, "a") + "; " + told(l, ""); got != "p1; p1 p2" {
		t.Errorf("told are %q", got)
	}
	_, last, _ := l.After("", 0, 1<<20)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"seq":99999999999999999,"realm":"a","pro`)
	f.Close()
	l = open(t, path)
	l.Note(New("schedd", "a", "p3", Failed, strings.Repeat("x", 10_000)))
	if got := told(l, "a") + "; " + told(l, "b"); got != "p1 p3; p2" {
		t.Errorf("told again are %q", got)
	}
	if _, again, _ := l.After("", last, 1<<20); again <= last {
		t.Errorf("number %d follows %d", again, last)
	}
	l.Forget("a")
	if got := told(open(t, path), ""); got != "p2" {
		t.Errorf("after a realm is gone told are %q", got)
	}
}

// Goal: a realm keeps so many bytes, in memory and in the file, and takes nothing from another; of
// the like no more than some are noted in a second.
func TestBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions")
	l := open(t, path)
	l.Note(New("besched", "quiet", "q", Memory, "no room"))
	for i := range 40 * pendingMax {
		r := New("besched", "loud", sigma.ProcID(fmt.Sprint("p", i)), Memory, strings.Repeat("\x01", whyMax))
		r.Time = time.Now().Add(time.Duration(i/second-2000) * time.Second)
		l.Note(r)
		if i%pendingMax == pendingMax-1 {
			l.flush()
		}
	}
	if n := l.realms["loud"].bytes; n > realmMost || n < realmMost/2 || l.kept > realmMost+1000 {
		t.Errorf("%d bytes are kept of a realm, %d of all", n, l.kept)
	}
	if st, err := os.Stat(path); err != nil || st.Size() > 4*realmMost+2<<20 {
		t.Errorf("the file: %v, %v", st.Size(), err)
	}
	if told(l, "quiet") != "q" {
		t.Error("one realm's records drove out another's")
	}
	now := time.Now()
	for i := range 2 * second {
		r := New("besched", "many", sigma.ProcID(fmt.Sprint("p", i)), Memory, "no room")
		r.Time = now
		l.Note(r)
	}
	if n := len(strings.Fields(told(l, "many"))); n != second {
		t.Errorf("%d records of one second are kept", n)
	}
}

package decision

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// Bounds of what is kept.
const (
	Age       = 24 * time.Hour         // of the oldest record
	realmMost = 256 << 10              // bytes of a realm's records
	allMost   = 8 << 20                // bytes of all; with more the realm goes that had none for the longest time
	writeEach = 100 * time.Millisecond // between writes
	lineMost  = 64 << 10               // bytes of a line that is read; one that is bounded has less, escapes included
)

// Log keeps the decisions that were told to one machine, those of each realm apart, in memory and
// in a file that outlives the machine's programs. Safe for concurrent use.
type Log struct {
	inbox
	at       string // the machine
	path     string
	complete func(*Record)

	mu    sync.Mutex
	limit Limit // mu
	// mu; of the latest; begins with the time in microseconds, so that it grows over restarts
	seq    uint64
	realms map[string]*history // mu
	kept   int                 // mu; bytes in realms
	file   *os.File            // mu; nil after an error of it
	size   int                 // mu; of the file
}

// history is one realm's records.
type history struct {
	lines []line // oldest first
	bytes int
}

type line struct {
	seq  uint64
	at   time.Time
	text []byte
}

// Open reads what a file keeps; without it, or with one that cannot be read, it begins anew, and
// the error says why. complete may add to records before they are kept; it is called without locks.
func Open(path string, machine sigma.MachineID, complete func(*Record)) (*Log, error) {
	l := &Log{inbox: newInbox(), at: string(machine), path: path, complete: complete,
		seq: uint64(time.Now().UnixMicro()), realms: map[string]*history{}}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return l, sigma.Wrap("decision.Open", path, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, lineMost)
	for lines.Scan() {
		var r Record
		if json.Unmarshal(lines.Bytes(), &r) == nil && r.Seq > 0 { // a crash may have cut the last
			l.seq = max(l.seq, r.Seq)
			l.addLocked(&r, append(bytes.Clone(lines.Bytes()), '\n'))
		}
	}
	return l, l.rewriteLocked()
}

// Run keeps what is noted until ctx ends, and what was noted before.
func (l *Log) Run(ctx context.Context) {
	l.each(ctx, writeEach, l.flush)
	l.flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// flush enters what was noted.
func (l *Log) flush() {
	rs := l.take()
	for i := range rs {
		l.complete(&rs[i])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var text []byte
	for i := range rs {
		r := &rs[i]
		if !l.limit.Allows(r.Realm+" "+string(r.Reason), r.Time) {
			continue
		}
		l.seq++
		r.Seq, r.At, r.Missing = l.seq, l.at, ""
		r.bound()
		one, err := json.Marshal(r)
		if err != nil {
			continue
		}
		one = append(one, '\n')
		l.addLocked(r, one)
		text = append(text, one...)
	}
	l.writeLocked(text)
}

// addLocked enters a line, and drops what is too old or too much.
func (l *Log) addLocked(r *Record, text []byte) {
	of := l.realms[r.Realm]
	if of == nil {
		of = &history{}
		l.realms[r.Realm] = of
	}
	of.lines = append(of.lines, line{r.Seq, r.Time, text})
	of.bytes += len(text)
	l.kept += len(text)
	for of.bytes > realmMost || time.Since(of.lines[0].at) > Age && len(of.lines) > 1 {
		n := len(of.lines[0].text)
		of.lines, of.bytes, l.kept = of.lines[1:], of.bytes-n, l.kept-n
	}
	for l.kept > allMost {
		l.dropLocked(l.oldestLocked())
	}
}

// oldestLocked is the realm whose last record is the oldest.
func (l *Log) oldestLocked() (oldest string) {
	var least uint64
	for id, of := range l.realms {
		if last := of.lines[len(of.lines)-1].seq; oldest == "" || last < least {
			oldest, least = id, last
		}
	}
	return oldest
}

func (l *Log) dropLocked(realm string) {
	if of := l.realms[realm]; of != nil {
		l.kept -= of.bytes
		delete(l.realms, realm)
	}
}

// writeLocked adds to the file, which is made anew when most of it is not kept any more.
func (l *Log) writeLocked(text []byte) {
	if l.file == nil || len(text) == 0 {
		return
	}
	if _, err := l.file.Write(text); err != nil {
		l.file.Close()
		l.file = nil
		return
	}
	if l.size += len(text); l.size > 2*l.kept+1<<20 {
		_ = l.rewriteLocked() // then it is kept in memory alone
	}
}

// rewriteLocked makes the file anew of what is kept.
func (l *Log) rewriteLocked() error {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
	var all []byte
	for _, one := range l.afterLocked("", 0) {
		all = append(all, one.text...)
	}
	f, err := os.OpenFile(l.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err == nil {
		if _, err = f.Write(all); err == nil {
			err = os.Rename(l.path+".new", l.path)
		}
		if err != nil {
			f.Close()
		}
	}
	if err != nil {
		return sigma.Wrap("decision.Log", l.path, err)
	}
	l.file, l.size = f, len(all)
	return nil
}

// afterLocked are the lines of a realm, or of all (""), later than a number and not too old, in
// order.
func (l *Log) afterLocked(realm string, seq uint64) (out []line) {
	for id, of := range l.realms {
		if realm != "" && id != realm {
			continue
		}
		for _, one := range of.lines {
			if one.seq > seq && time.Since(one.at) <= Age {
				out = append(out, one)
			}
		}
	}
	slices.SortFunc(out, func(a, b line) int { return cmp.Compare(a.seq, b.seq) })
	return out
}

// After gives lines of JSON of a realm, or of all (""), later than a number, up to most bytes but
// for the last, what was noted just before included; the number of the last; and whether there are
// more.
func (l *Log) After(realm sigma.RealmID, seq uint64, most int) (text []byte, last uint64, more bool) {
	l.flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	last = seq
	for _, one := range l.afterLocked(string(realm), seq) {
		if len(text) >= most {
			return text, last, true
		}
		text, last = append(text, one.text...), one.seq
	}
	return text, last, false
}

// Forget drops what is kept of a realm that is gone, also on disk.
func (l *Log) Forget(realm sigma.RealmID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.realms[string(realm)] == nil {
		return
	}
	l.dropLocked(string(realm))
	if l.file != nil {
		_ = l.rewriteLocked() // else it is kept in memory alone
	}
}

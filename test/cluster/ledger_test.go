//go:build system

package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// ledger is what writers were told of the files that they wrote. What a file has says which write
// of which file it is, so whoever reads it can tell whether it is whole, and whether it may be
// that.
type ledger struct {
	c      *testenv.Cluster
	large  int // bytes of the largest file
	places []string

	mu    sync.Mutex
	files map[string]*entry // mu; by path
	count map[string]int    // mu
	wrong []string          // mu
}

// entry is one file. One writer changes it, and never again after a change of which it does not
// know whether it was made.
type entry struct {
	acked   uint32          // the last write that was acknowledged; 0 = none
	maybe   map[uint32]bool // writes that may be the last
	removed bool            // the last change that was acknowledged
	absent  bool            // it may not be there
	over    bool            // there is a change of unknown outcome
}

const (
	filesEach = 24 // of one writer at once; beyond it removes
	openMost  = 15 * time.Second
)

func (x *ledger) note(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count[what]++
}

func (x *ledger) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	x.c.Note("WRONG: %s", text)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrong = append(x.wrong, text)
}

// bytesOf is what a write of a file puts there: sizes from nothing to large, most small.
func (x *ledger) bytesOf(file string, n uint32) []byte {
	h := fnv.New64a()
	h.Write([]byte(file))
	random := rand.New(rand.NewPCG(h.Sum64(), uint64(n)))
	most := x.large
	if strings.HasPrefix(file, "/ledger/") || random.IntN(2) == 0 {
		most = 4000
	}
	head := binary.LittleEndian.AppendUint32(nil, n)
	b := append(head, make([]byte, random.IntN(most))...)
	for i := len(head); i < len(b); i++ {
		b[i] = byte(random.Uint32())
	}
	return b
}

// judge checks what was read of a file, or that there is none.
func (x *ledger) judge(who, file string, e *entry, got []byte, there bool) {
	x.mu.Lock()
	may := *e
	may.maybe = maps.Clone(e.maybe)
	x.mu.Unlock()
	if !there {
		if may.acked > 0 && !may.removed && !may.absent {
			x.fault("%s: %s is not there: write %d was acknowledged", who, file, may.acked)
		}
		return
	}
	n := uint32(0)
	if len(got) >= 4 {
		n = binary.LittleEndian.Uint32(got)
	}
	want := x.bytesOf(file, n)
	switch {
	case n == 0 || !bytes.Equal(got, want):
		x.fault("%s: %s is not whole: %d bytes that say write %d, which has %d", who, file, len(got), n, len(want))
	case n == may.acked && !may.removed || may.maybe[n]:
	default:
		x.fault("%s: %s has write %d; the last that was acknowledged is %d (removed: %v), possible are %v", who, file,
			n, may.acked, may.removed, slices.Sorted(maps.Keys(may.maybe)))
	}
}

// clear checks that an error says which file it is about and what is wrong.
func (x *ledger) clear(what, file string, err error) {
	kind := sigma.KindOf(err)
	x.note(kind.String())
	text := err.Error()
	named := strings.Contains(text, file) ||
		strings.Contains(text, path.Dir(file)) // the directory, if that was what could not be reached
	cause := strings.TrimLeft(strings.Replace(text, file, "", 1), ": ")
	if kind == sigma.KindOther || !named || len(cause) < 5 {
		x.fault("the error of a %s of %s is unclear: %v (%v)", what, file, err, kind)
	}
}

// writer writes, reads and removes files by way of one machine until ctx ends.
func (x *ledger) writer(ctx context.Context, m *testenv.Machine, id int, seed uint64) {
	random := rand.New(rand.NewPCG(seed, uint64(id)))
	var mine []string
	for n := uint32(1); ctx.Err() == nil; {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callMax)
		client, err := m.Client(call, sigma.DefaultRealm)
		cancel()
		if err != nil {
			pause(ctx, retryPace)
			continue
		}
		for ctx.Err() == nil && !ended(client) {
			switch k := random.IntN(10); {
			case k < 6 && len(mine) < filesEach || len(mine) == 0:
				file := fmt.Sprintf("%s/w%d-%d", x.places[random.IntN(len(x.places))], id, n)
				e := &entry{maybe: map[uint32]bool{}, absent: true}
				x.mu.Lock()
				x.files[file] = e
				x.mu.Unlock()
				if x.write(ctx, client, file, e, n, random) {
					mine = append(mine, file)
				}
			case k < 8:
				x.write(ctx, client, mine[random.IntN(len(mine))], nil, n, random)
			default:
				i := random.IntN(len(mine))
				x.remove(ctx, client, mine[i])
				mine = slices.Delete(mine, i, i+1)
			}
			n++
			mine = slices.DeleteFunc(mine, func(f string) bool {
				x.mu.Lock()
				defer x.mu.Unlock()
				return x.files[f].over
			})
			pause(ctx, pace)
		}
		client.Close()
	}
}

// write publishes a file in one of the ways that there are, and notes what came of it. It reports
// whether the file is there for certain.
func (x *ledger) write(ctx context.Context, client *sdk.Client, file string, e *entry, n uint32,
	random *rand.Rand) bool {
	x.mu.Lock()
	if e == nil {
		e = x.files[file]
	}
	e.maybe[n] = true
	x.mu.Unlock()
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), openMost)
	defer cancel()
	b := x.bytesOf(file, n)
	route, err := "put", error(nil)
	switch k := random.IntN(3); {
	case strings.HasPrefix(file, "/ledger/") || len(b) <= 4000 && k > 0:
		_, err = client.Put(call, file, b, sigma.PutOptions{})
	case strings.HasPrefix(file, "/s3/") && k > 0:
		route = "create"
		err = x.stream(call, client, file, b, sigma.OpenWrite|sigma.OpenTruncate, random)
	default:
		route = "create hidden"
		err = x.stream(call, client, file, b, sigma.OpenWrite|sigma.OpenHidden, random)
	}
	if err != nil {
		x.clear(route, file, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		e.over = true
		return false
	}
	x.count[route]++
	e.acked, e.removed, e.absent = n, false, false
	clear(e.maybe)
	return true
}

// stream writes a file piece by piece; a few are given up half-way, and must leave nothing.
func (x *ledger) stream(ctx context.Context, client *sdk.Client, file string, b []byte, f sigma.OpenFlags,
	random *rand.Rand) error {
	h, err := client.Create(ctx, file, f, 0o644)
	if err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(len(b), 1+random.IntN(200<<10))
		if _, err := h.Write(b[:n]); err != nil {
			h.Discard()
			return err
		}
		b = b[n:]
	}
	return h.Close()
}

func (x *ledger) remove(ctx context.Context, client *sdk.Client, file string) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), openMost)
	defer cancel()
	x.mu.Lock()
	e := x.files[file]
	e.absent = true
	x.mu.Unlock()
	err := client.Remove(call, file)
	x.mu.Lock()
	if err == nil {
		e.removed = true
		x.count["remove"]++
	} else {
		e.over = true
	}
	x.mu.Unlock()
	if err != nil {
		x.clear("remove", file, err)
	}
}

// reader reads what was acknowledged, by way of one machine, whoever wrote it.
func (x *ledger) reader(ctx context.Context, m *testenv.Machine, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 100+uint64(m.Index())))
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callMax)
		client, err := m.Client(call, sigma.DefaultRealm)
		cancel()
		if err != nil {
			pause(ctx, retryPace)
			continue
		}
		for ctx.Err() == nil && !ended(client) {
			x.mu.Lock()
			files := slices.Sorted(maps.Keys(x.files))
			x.mu.Unlock()
			if len(files) > 0 {
				x.readOne(ctx, m, client, files[random.IntN(len(files))])
			}
			pause(ctx, pace)
		}
		client.Close()
	}
}

// readOne reads a file that others may be changing. If they did so meanwhile, any state that it had
// may be read; only half of one may not.
func (x *ledger) readOne(ctx context.Context, m *testenv.Machine, client *sdk.Client, file string) {
	x.mu.Lock()
	e := x.files[file]
	before := *e
	before.maybe = maps.Clone(e.maybe)
	x.mu.Unlock()
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), openMost)
	defer cancel()
	got, there, err := content(call, client, file)
	if err != nil {
		x.clear("read", file, err)
		return
	}
	x.mu.Lock()
	same := before.acked == e.acked && before.removed == e.removed && before.absent == e.absent &&
		maps.Equal(before.maybe, e.maybe)
	x.mu.Unlock()
	x.note("read")
	if same {
		x.judge("a reader at "+string(m.Name), file, e, got, there)
	} else if there {
		n := uint32(0)
		if len(got) >= 4 {
			n = binary.LittleEndian.Uint32(got)
		}
		if n == 0 || !bytes.Equal(got, x.bytesOf(file, n)) {
			x.fault("a reader at %s: %s is not whole: %d bytes that say write %d", m.Name, file, len(got), n)
		}
	}
}

// content reads a whole file; there is false if it is not there.
func content(ctx context.Context, client *sdk.Client, file string) (got []byte, there bool, err error) {
	if strings.HasPrefix(file, "/ledger/") {
		got, _, err = client.Get(sigma.WithSync(ctx), file)
	} else {
		var h sigma.Handle
		if h, err = client.Open(ctx, file, sigma.OpenRead); err == nil {
			got, err = io.ReadAll(h)
			h.Close()
		}
	}
	if sigma.KindOf(err) == sigma.KindNotFound && err != nil {
		return nil, false, nil
	}
	return got, err == nil, err
}

// audit reads everything, when no fault is upon the system any more: what was acknowledged is
// there, whole, and nothing else is.
func (x *ledger) audit(ctx context.Context, m *testenv.Machine) error {
	client, err := m.Client(ctx, sigma.DefaultRealm)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, file := range slices.Sorted(maps.Keys(x.files)) {
		got, there, err := content(ctx, client, file)
		if err != nil {
			return err
		}
		x.judge("the audit", file, x.files[file], got, there)
		x.note("audited")
	}
	for _, dir := range x.places {
		list, err := client.ReadDir(ctx, dir)
		if err != nil {
			return err
		}
		for _, d := range list {
			if x.files[dir+"/"+d.Name] == nil {
				x.fault("in %s there is %q, which nobody wrote", dir, d.Name)
			}
		}
	}
	return nil
}

// verdict says what was wrong.
func (x *ledger) verdict() error {
	if n := len(x.wrong); n > 0 {
		return errors.New(fmt.Sprintf("%d things are wrong:\n", n) + strings.Join(x.wrong[:min(n, 30)], "\n"))
	}
	return nil
}

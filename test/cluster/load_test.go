//go:build system

package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Bounds of the load.
const (
	batchMost   = 4                      // procs in one Spawn
	waitingMost = 24                     // waiters of one machine at once, those of procs that stay included
	staysEach   = 6                      // procs that stay, spawned at each machine
	pace        = 40 * time.Millisecond  // between two batches of one machine
	callMax     = 20 * time.Second       // for what is no wait
	retryPace   = 100 * time.Millisecond // between attempts to connect
	procMemory  = 32 * sigma.MiB
)

// load spawns procs at every machine of a cluster, waits for them there, and writes names. What it
// sees that must not be, it collects in wrong.
type load struct {
	t       *testing.T
	ctx     context.Context // of the whole test
	c       *testenv.Cluster
	program string
	workers sync.WaitGroup
	waiters sync.WaitGroup

	mu      sync.Mutex
	waiting map[*waiter]bool          // mu
	faults  int                       // mu; how many there were that may end procs
	active  map[*testenv.Machine]bool // mu; those that a fault is upon, until they are back
	count   map[string]int            // mu
	wrong   []string                  // mu
	names   map[string]string         // mu; acknowledged writes
	clients []*sdk.Client             // mu; to close at the end
}

// waiter is somebody who waits for a proc.
type waiter struct {
	id     sigma.ProcID
	at     *testenv.Machine // where it was spawned, and is waited for
	stays  bool
	code   int // its exit code if nobody interferes
	calm   int // how many faults there had been, -1 if one was active
	since  time.Time
	done   chan struct{} // closed with the answer
	when   time.Time
	status sigma.Status
	err    error
}

func newLoad(ctx context.Context, t *testing.T, c *testenv.Cluster, program string) *load {
	return &load{t: t, ctx: ctx, c: c, program: program, waiting: map[*waiter]bool{},
		active: map[*testenv.Machine]bool{}, count: map[string]int{}, names: map[string]string{}}
}

func (x *load) note(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count[what]++
}

// fault is called for what must not be.
func (x *load) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	x.c.Note("WRONG: %s", text)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrong = append(x.wrong, text)
}

// disturb says that from now on procs may end by what is done to a machine; calm that it is over.
func (x *load) disturb(m *testenv.Machine) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.faults++
	x.active[m] = true
}

func (x *load) calm(m *testenv.Machine) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.active, m)
	x.faults++ // what began meanwhile may still be answered by it
}

// work loads one machine until ctx ends; it connects anew whenever the connection has ended.
func (x *load) work(ctx context.Context, m *testenv.Machine, seed uint64) {
	random := rand.New(rand.NewPCG(seed, uint64(len(m.Name))))
	for n := 0; ctx.Err() == nil; {
		call, cancel := context.WithTimeout(x.ctx, callMax)
		client, err := m.Client(call, sigma.DefaultRealm)
		cancel()
		if err != nil {
			pause(ctx, retryPace)
			continue
		}
		for ctx.Err() == nil && !ended(client) {
			n++
			x.spawn(ctx, m, client, random)
			x.write(m, client, fmt.Sprintf("%s-%d-%d", m.Name, seed, n))
			pause(ctx, pace)
		}
		x.mu.Lock()
		x.clients = append(x.clients, client) // those who wait by it still do
		x.mu.Unlock()
	}
}

// settle waits until every machine has its procs that stay.
func (x *load) settle(ctx context.Context) {
	for end := time.Now().Add(callMax); ctx.Err() == nil && time.Now().Before(end); pause(ctx, pace) {
		stays := 0
		x.mu.Lock()
		for w := range x.waiting {
			if w.stays && time.Since(w.since) > pace {
				stays++
			}
		}
		x.mu.Unlock()
		if stays >= staysEach*x.c.Size() {
			return
		}
	}
}

// failed tells whether anything was wrong.
func (x *load) failed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.wrong) > 0
}

// close ends all connections, and with them those who still wait.
func (x *load) close() {
	x.mu.Lock()
	clients := x.clients
	x.clients = nil
	x.mu.Unlock()
	for _, c := range clients {
		c.Close()
	}
	x.waiters.Wait()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func ended(c *sdk.Client) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// spawn makes a few procs and a waiter for each.
func (x *load) spawn(ctx context.Context, m *testenv.Machine, client *sdk.Client, random *rand.Rand) {
	mine, stays := 0, 0
	x.mu.Lock()
	for w := range x.waiting {
		if w.at == m {
			mine++
			if w.stays {
				stays++
			}
		}
	}
	calm := x.faults
	if len(x.active) > 0 {
		calm = -1
	}
	x.mu.Unlock()
	n := min(1+random.IntN(batchMost), waitingMost-mine)
	if n <= 0 {
		return
	}
	ds, ws := make([]sigma.Descriptor, n), make([]*waiter, n)
	for i := range ds {
		w := &waiter{at: m, calm: calm, since: time.Now(), done: make(chan struct{})}
		args := []string{"doze", fmt.Sprint(random.IntN(300))}
		switch k := random.IntN(10); {
		case stays < staysEach:
			args, w.stays = []string{"stay", "0"}, true
			stays++
		case k < 3:
			w.code = random.IntN(50)
			args = []string{"exit", fmt.Sprint(w.code)}
		case k < 4:
			args = []string{"spin", fmt.Sprint(random.IntN(100))}
		}
		ds[i], ws[i] = sigma.Descriptor{Program: x.program, Args: args, Memory: procMemory}, w
	}
	call, cancel := context.WithTimeout(x.ctx, callMax)
	defer cancel()
	ids, err := client.Spawn(call, ds...)
	if err != nil {
		x.note("spawn " + sigma.KindOf(err).String())
		if x.undisturbed(calm) {
			x.fault("spawn at %s: %v", m.Name, err)
		}
		pause(ctx, retryPace)
		return
	}
	for i, id := range ids {
		w := ws[i]
		w.id = id
		x.mu.Lock()
		x.waiting[w] = true
		x.count["spawned"]++
		x.mu.Unlock()
		x.waiters.Go(func() { x.wait(w, client) })
	}
}

// undisturbed tells whether nothing has happened since, that could have changed an answer.
func (x *load) undisturbed(calm int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return calm >= 0 && calm == x.faults && len(x.active) == 0
}

func (x *load) wait(w *waiter, client *sdk.Client) {
	w.status, w.err = client.WaitExit(x.ctx, w.id)
	w.when = time.Now()
	close(w.done)
	x.mu.Lock()
	delete(x.waiting, w)
	if w.err == nil {
		x.count["ended "+w.status.Code.String()]++
	} else {
		x.count["wait "+sigma.KindOf(w.err).String()]++
	}
	x.mu.Unlock()
	switch {
	case x.ctx.Err() != nil:
		x.fault("nobody told the waiter at %s for %s, which was spawned %v before", w.at.Name, w.id,
			w.when.Sub(w.since))
	case w.err == nil && w.status.ExitCode == w.code && (w.status.OK() || w.code != 0):
	case w.err == nil && strings.Contains(w.status.Msg, "twice"):
		x.fault("%s spawned at %s: %+v", w.id, w.at.Name, w.status)
	case !x.undisturbed(w.calm):
	case w.err != nil:
		x.fault("wait at %s for %s: %v", w.at.Name, w.id, w.err)
	default:
		x.fault("%s spawned at %s was to exit with %d and ended as %+v, though nothing was done to any machine", w.id,
			w.at.Name, w.code, w.status)
	}
}

// write writes a name, and remembers it if that was acknowledged.
func (x *load) write(m *testenv.Machine, client *sdk.Client, name string) {
	x.mu.Lock()
	calm := x.faults
	if len(x.active) > 0 {
		calm = -1
	}
	x.mu.Unlock()
	path := "/written/" + name
	text := fmt.Sprint(path, " at ", time.Now().UnixNano())
	ctx, cancel := context.WithTimeout(x.ctx, callMax)
	defer cancel()
	_, err := client.Put(ctx, path, []byte(text), sigma.PutOptions{})
	switch {
	case err == nil:
		x.mu.Lock()
		x.names[path] = text
		x.count["written"]++
		x.mu.Unlock()
	case x.undisturbed(calm):
		x.fault("write at %s: %v", m.Name, err)
	default:
		x.note("write " + sigma.KindOf(err).String())
	}
}

// finish ends all procs, those included whose waiter was lost with its machine, and returns when
// all waiters are answered, or late.
func (x *load) finish(m *testenv.Machine, most time.Duration) {
	x.mu.Lock()
	x.faults++ // procs are killed
	x.mu.Unlock()
	client, err := m.Client(x.ctx, sigma.DefaultRealm)
	if err != nil {
		x.fault("%v", err)
		return
	}
	defer client.Close()
	for end := time.Now().Add(most); ; pause(x.ctx, retryPace) {
		list, err := client.List(x.ctx, false)
		for _, p := range list {
			client.Kill(x.ctx, p.ID)
		}
		x.mu.Lock()
		left := slices.Collect(maps.Keys(x.waiting))
		x.mu.Unlock()
		if err == nil && len(left)+len(list) == 0 {
			return
		}
		if time.Now().Before(end) && x.ctx.Err() == nil {
			continue
		}
		for _, w := range left {
			x.fault("no answer at %s for %s (stays: %v), spawned %v ago", w.at.Name, w.id, w.stays, time.Since(w.since))
		}
		x.fault("%d procs could not be killed, %v", len(list), err)
		return
	}
}

// checkNames fails for acknowledged writes that are not there.
func (x *load) checkNames(m *testenv.Machine) {
	client, err := m.Client(x.ctx, sigma.DefaultRealm)
	if err != nil {
		x.fault("%v", err)
		return
	}
	defer client.Close()
	lost := 0
	for path, want := range x.names {
		if got, _, err := client.Get(x.ctx, path); err != nil || string(got) != want {
			if lost++; lost < 5 {
				x.fault("%s was written and acknowledged as %q, and is %q, %v", path, want, got, err)
			}
		}
	}
	if lost > 0 {
		x.fault("%d of %d acknowledged writes are lost", lost, len(x.names))
	}
}

// checkStarts reads on the disks of all machines which procs were started there.
func (x *load) checkStarts() {
	started := map[string][]string{}
	for _, m := range x.c.Machines() {
		filepath.WalkDir(filepath.Join(m.DataDir, "sigmad", "ux"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.Contains(path, "/started/") {
				return nil
			}
			if strings.HasPrefix(d.Name(), "twice-") {
				x.fault("%s was started twice, once at %s", d.Name(), m.Name)
				return nil
			}
			started[d.Name()] = append(started[d.Name()], string(m.Name))
			return nil
		})
	}
	for id, where := range started {
		if len(where) > 1 {
			x.fault("%s was started at %v", id, where)
		}
	}
	x.mu.Lock()
	x.count["started"] = len(started)
	x.mu.Unlock()
}

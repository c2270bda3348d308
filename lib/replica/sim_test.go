package replica

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/ux"
)

// ledger is a machine for tests: a list of commands, of which "get N" and "inc" have results.
type ledger struct {
	mu     sync.Mutex
	Values map[string]string
	Count  map[string]int // how often each command was applied
	Last   uint64
}

func newLedger() *ledger { return &ledger{Values: map[string]string{}, Count: map[string]int{}} }

// Apply takes "KEY=VALUE", and gives the old value.
func (l *ledger) Apply(index uint64, command []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index != l.Last+1 {
		panic(fmt.Sprint("command ", index, " after ", l.Last))
	}
	l.Last = index
	key, value, _ := bytes.Cut(command, []byte("="))
	old := l.Values[string(key)]
	l.Values[string(key)] = string(value)
	l.Count[string(command)]++
	return []byte(old)
}

func (l *ledger) Snapshot() (func(io.Writer) error, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := json.Marshal(l)
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}, err
}

func (l *ledger) Restore(r io.Reader) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Values, l.Count = map[string]string{}, map[string]int{}
	return json.NewDecoder(r).Decode(l)
}

func (l *ledger) get(key string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Values[key]
}

// network connects members of a test, with faults.
type network struct {
	mu      sync.Mutex
	rand    *rand.Rand
	members map[uint64]*Replica
	cut     map[[2]uint64]bool // by from and to
	loss    float64            // of messages
	twice   float64            // repeated, later
	wg      sync.WaitGroup
	quit    chan struct{}
	files   sigma.Namespace
}

func newNetwork(t testing.TB, seed uint64) *network {
	n := &network{rand: rand.New(rand.NewPCG(seed, 1)), members: map[uint64]*Replica{}, cut: map[[2]uint64]bool{},
		quit: make(chan struct{})}
	t.Cleanup(func() {
		close(n.quit)
		n.wg.Wait()
	})
	return n
}

// disks makes a machine's scratch storage in a directory.
func disks(t testing.TB, dir string, quota sigma.Bytes) sigma.Namespace {
	t.Helper()
	tree, err := ux.New(ux.Config{Dir: dir, QuotaBytes: quota})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	root, err := tree.Attach(t.Context(), sigma.Principal{Realm: "r"}, "")
	if err != nil {
		t.Fatal(err)
	}
	return resolve.New(resolve.Config{Root: root})
}

// port is the Transport of one member.
type port struct {
	n    *network
	from uint64
	in   chan func()
}

// delivery is a member's goroutine that takes what was sent to it.
func (n *network) port(id uint64) *port {
	p := &port{n, id, make(chan func(), 4096)}
	n.wg.Go(func() {
		for {
			select {
			case f := <-p.in:
				f()
			case <-n.quit:
				return
			}
		}
	})
	return p
}

func (n *network) fate(from, to uint64) (r *Replica, twice bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut[[2]uint64{from, to}] || n.rand.Float64() < n.loss {
		return nil, false
	}
	return n.members[to], n.rand.Float64() < n.twice
}

func (p *port) peer() Peer { return Peer{p.from, fmt.Sprint("m", p.from)} }

func (p *port) Send(to Peer, message []byte) {
	r, twice := p.n.fate(p.from, to.ID)
	if r == nil {
		return
	}
	for range 1 + map[bool]int{true: 1}[twice] {
		select {
		case p.in <- func() { r.Step(context.Background(), p.peer(), bytes.Clone(message)) }:
		default:
		}
	}
}

func (p *port) SendSnapshot(ctx context.Context, to Peer, message []byte, write func(io.Writer) error) error {
	r, _ := p.n.fate(p.from, to.ID)
	if r == nil {
		return sigma.Errorf("port.SendSnapshot", sigma.KindUnavailable, "cut off")
	}
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	return r.StepSnapshot(ctx, p.peer(), message, &b)
}

// isolate cuts a member off, or connects it again.
func (n *network) isolate(id uint64, off bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.members {
		n.cut[[2]uint64{id, other}], n.cut[[2]uint64{other, id}] = off, off
	}
}

// site is a member of a test, which can be stopped and opened again.
type site struct {
	*Replica
	machine *ledger
	cfg     Config
	stop    func()
}

// open opens a member and runs it.
func (n *network) open(t testing.TB, cfg Config) *site {
	t.Helper()
	s := &site{machine: newLedger(), cfg: cfg}
	cfg.Machine = s.machine
	if cfg.Dir != "" {
		cfg.Files = n.files
	}
	if cfg.Tick == 0 {
		cfg.Tick = 10 * time.Millisecond
	}
	cfg.Transport = n.port(cfg.ID)
	r, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Replica = r
	n.mu.Lock()
	n.members[cfg.ID] = r
	n.mu.Unlock()
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		if err := r.Run(ctx); ctx.Err() == nil && sigma.KindOf(err) != sigma.KindCanceled {
			t.Error("Run:", err)
		}
	}()
	s.stop = func() {
		n.mu.Lock()
		if n.members[cfg.ID] == r {
			delete(n.members, cfg.ID)
		}
		n.mu.Unlock()
		cancel()
		<-done
	}
	t.Cleanup(s.stop)
	return s
}

// group opens n members, durable ones if dir is not "".
func (n *network) group(t testing.TB, count int, dir string, change func(*Config)) map[uint64]*site {
	t.Helper()
	peers := map[uint64]string{}
	if dir != "" && n.files == nil {
		n.files = disks(t, dir, 0)
	}
	for id := range uint64(count) {
		peers[id+1] = fmt.Sprint("m", id+1)
	}
	all := map[uint64]*site{}
	for id := range peers {
		cfg := Config{ID: id, Peers: maps.Clone(peers)}
		if dir != "" {
			cfg.Dir = "/" + peers[id]
		}
		if change != nil {
			change(&cfg)
		}
		all[id] = n.open(t, cfg)
	}
	return all
}

// leader waits for one.
func leader(t testing.TB, all map[uint64]*site) *site {
	t.Helper()
	var found *site
	wait(t, "a leader", func() bool {
		for _, s := range all {
			if s.Leads() && s.Read(within(t, time.Second)) == nil {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

func wait(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(end) {
			t.Fatal("waited for a minute for ", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// propose proposes until it is acknowledged.
func propose(t testing.TB, all map[uint64]*site, s Session, command string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		for _, m := range all {
			if !m.Leads() {
				continue
			}
			got, err := m.Propose(within(t, 2*time.Second), s, []byte(command))
			if err == nil {
				return string(got)
			}
			if sigma.KindOf(err) == sigma.KindLost && s == (Session{}) {
				t.Fatal(err)
			}
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Fatal("waited for a minute for ", command)
	return ""
}

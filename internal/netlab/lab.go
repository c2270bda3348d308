// Package netlab is a network for tests that need several machines on one host: each machine is a
// network namespace whose only way out is a TUN device, and this package is the switch between
// them. It moves IPv4 packets itself, so it can drop, delay, throttle and lose them, in each
// direction apart; what runs in the namespaces meets a real kernel's TCP on a bad network.
//
// It promises that nothing of it is visible outside: addresses (10.77.0.N) exist in its own
// namespaces only, namespaces have no names, nothing is mounted, no tool, bridge, nftables rule or
// kernel module but TUN is needed; and that nothing of it stays, whether it is closed or its
// process is killed: devices end with their file descriptors, namespaces with the processes in
// them, and processes started with Start with the lab (SIGKILL).
//
// It assumes root (CAP_NET_ADMIN and CAP_SYS_ADMIN) and /dev/net/tun. Order of packets is kept in
// each direction. Users: tests of test/... only.
//
// Locks: Lab.mu guards the rules and queues; nothing blocks under it.
package netlab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits.
const (
	MachinesMax = 50
	// packets that are on their way in one direction; more are dropped, as a router's full queue
	// does
	queueMax  = 4096
	queueTime = 200 * time.Millisecond // what waits longer for a Rate is dropped, too
	outputMax = 64 << 10               // of what Run's command prints
	mtu       = 1500
)

// Rule is what happens to packets in one direction. The zero value passes all at once.
type Rule struct {
	Cut   bool          // all are dropped, those under way too
	Delay time.Duration // each arrives so much later
	Rate  int           // bytes per second; 0 = no limit
	Loss  float64       // share that is dropped, 0 to 1
}

// Counts of one direction. Their sum is how many packets were sent.
type Counts struct{ Passed, Dropped, Late uint64 }

// Lab is a network. Safe for concurrent use.
type Lab struct {
	machines []*Machine
	poller   *poller
	ends     sync.Once
	ended    error         // once ends was done
	over     chan struct{} // closed by Close
	switched chan struct{} // closed when the switch has ended

	mu         sync.Mutex
	random     *rand.Rand                 // mu
	directions map[[2]*Machine]*direction // mu; from, to
	busy       []*direction               // mu; those with late packets
}

// direction is one direction between two machines.
type direction struct {
	to     *Machine
	rule   Rule
	counts Counts
	free   time.Time // when the last packet will have left, if there is a Rate
	queue  []late    // in their order
}

type late struct {
	packet []byte
	at     time.Time
}

// Machine is one namespace. Safe for concurrent use.
type Machine struct {
	Addr netip.Addr

	lab  *Lab
	tun  int         // the device
	ns   *os.File    // the namespace
	work chan func() // for the thread that lives in the namespace
	gone chan struct{}
}

// New makes a network of n machines, 10.77.0.1 and on. The seed chooses which packets are lost.
func New(n int, seed uint64) (*Lab, error) {
	if n < 1 || n > MachinesMax {
		return nil, fmt.Errorf("netlab: %d machines, 1 to %d are possible", n, MachinesMax)
	}
	l := &Lab{random: rand.New(rand.NewPCG(seed, 0)), directions: map[[2]*Machine]*direction{},
		over: make(chan struct{}), switched: make(chan struct{})}
	var err error
	if l.poller, err = newPoller(); err != nil {
		return nil, fmt.Errorf("netlab: %w", err)
	}
	for i := range n {
		m := &Machine{Addr: netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)}), lab: l, work: make(chan func()),
			gone: make(chan struct{})}
		created := make(chan error)
		go m.live(created)
		if err = <-created; err == nil {
			l.machines = append(l.machines, m)
			err = l.poller.add(m.tun, i)
		}
		if err != nil {
			close(l.switched)
			return nil, errors.Join(fmt.Errorf("netlab: machine %d: %w", i+1, err), l.Close())
		}
	}
	go func() {
		defer close(l.switched)
		l.run()
	}()
	return l, nil
}

// Machine gives the i-th, from 0.
func (l *Lab) Machine(i int) *Machine { return l.machines[i] }

// Close ends the network and everything that Start started in it, and returns when all is gone.
func (l *Lab) Close() error {
	l.ends.Do(func() {
		close(l.over)
		l.poller.interrupt()
		<-l.switched
		var errs []error
		for _, m := range l.machines {
			<-m.gone
			errs = append(errs, unix.Close(m.tun))
		}
		l.poller.close()
		l.ended = errors.Join(errs...)
	})
	return l.ended
}

// Set changes the rule of one direction.
func (l *Lab) Set(from, to *Machine, r Rule) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.direction(from, to).rule = r
}

// Change alters the rule of one direction.
func (l *Lab) Change(from, to *Machine, f func(*Rule)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.direction(from, to).rule)
}

// Both changes the rules of both directions.
func (l *Lab) Both(a, b *Machine, r Rule) {
	l.Set(a, b, r)
	l.Set(b, a, r)
}

// Partition cuts everything between each of these machines and all others, in both directions, and
// heals nothing.
func (l *Lab) Partition(these ...*Machine) {
	inside := map[*Machine]bool{}
	for _, m := range these {
		inside[m] = true
	}
	for m := range inside {
		for _, o := range l.machines {
			if !inside[o] {
				l.Both(m, o, Rule{Cut: true})
			}
		}
	}
}

// Heal takes all rules away.
func (l *Lab) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.directions {
		w.rule = Rule{}
	}
}

// Counts tells what became of the packets of one direction so far.
func (l *Lab) Counts(from, to *Machine) Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.direction(from, to)
	c := w.counts
	c.Late = uint64(len(w.queue))
	return c
}

// way finds a direction; l.mu is held.
func (l *Lab) direction(from, to *Machine) *direction {
	w := l.directions[[2]*Machine{from, to}]
	if w == nil {
		w = &direction{to: to}
		l.directions[[2]*Machine{from, to}] = w
	}
	return w
}

// live is the thread that makes a namespace and starts programs there. It never leaves the
// namespace, so it ends with its goroutine (runtime.LockOSThread without Unlock), and with it
// whatever was started with Pdeathsig.
func (m *Machine) live(created chan<- error) {
	runtime.LockOSThread()
	defer close(m.gone)
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		m.ns, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	}
	if err == nil {
		m.tun, err = device(m.Addr)
	}
	created <- err
	if err != nil {
		m.ns.Close() // of nil too
		return
	}
	defer m.ns.Close()
	for {
		select {
		case f := <-m.work:
			f()
		case <-m.lab.over:
			return
		}
	}
}

// ErrClosed is the error of everything that is asked of a closed network.
var ErrClosed = errors.New("netlab: the network is closed")

// Do runs f on a thread within the machine's namespace and waits for it: sockets that f itself
// makes (net.Listen and net.Dial with an address in digits do) belong to the machine, also later.
func (m *Machine) Do(f func()) error {
	done := make(chan error, 1)
	go func() {
		// and never unlocks, so that the thread, which is in another namespace now, ends with this
		// goroutine
		runtime.LockOSThread()
		err := ErrClosed
		select {
		case <-m.lab.over:
		default:
			if err = unix.Setns(int(m.ns.Fd()), unix.CLONE_NEWNET); err == nil {
				f()
			}
		}
		done <- err
	}()
	return <-done
}

// stay does f on the thread that lives as long as the lab.
func (m *Machine) stay(f func()) error {
	done := make(chan struct{})
	select {
	case m.work <- func() { defer close(done); f() }:
		<-done
		return nil
	case <-m.lab.over:
		return ErrClosed
	}
}

// Start starts a command in the namespace. It is killed when the lab is closed or this process
// dies; wait for it as usual.
func (m *Machine) Start(cmd *exec.Cmd) (err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if derr := m.stay(func() { err = cmd.Start() }); derr != nil {
		return derr
	}
	return err
}

// Dial connects from the machine; address is host:port in digits.
func (m *Machine) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	if derr := m.Do(func() { c, err = new(net.Dialer).DialContext(ctx, network, address) }); derr != nil {
		return nil, derr
	}
	return c, err
}

// Listen listens at a port of the machine; 0 chooses one.
func (m *Machine) Listen(port uint16) (ln net.Listener, err error) {
	if derr := m.Do(func() { ln, err = net.Listen("tcp4", netip.AddrPortFrom(m.Addr, port).String()) }); derr != nil {
		return nil, derr
	}
	return ln, err
}

// Run is Start that waits and gives what was printed.
func (m *Machine) Run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	out, err := os.CreateTemp("", "netlab-")
	if err != nil {
		return "", err
	}
	defer out.Close()
	if err := os.Remove(out.Name()); err != nil {
		return "", err
	}
	cmd.Stdout, cmd.Stderr = out, out
	if err := m.Start(cmd); err != nil {
		return "", err
	}
	err = cmd.Wait()
	text := make([]byte, outputMax)
	n, _ := out.ReadAt(text, 0)
	return string(text[:n]), err
}

package netlab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The switch is one thread that waits for packets of all machines, of which it takes several at a
// time, and for the moment when a late one is due. It is one thread, and one of high priority, so
// that what a test does with the host's processors hardly delays packets: machines that seem lost
// because the network of the test starved would be false alarms. A packet costs it about 5 µs, in
// which the kernel has also done its sending and receiving; 1500 bytes a packet leave loss and
// throttling as fine as on a real network.
const (
	batchMax = 32 // packets of one machine before the others have their turn
	priority = -20
)

// open opens the file that makes TUN devices, also where a container's /dev lacks it.
func open() (int, error) {
	const flags = unix.O_RDWR | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Open("/dev/net/tun", flags, 0)
	if err != unix.ENOENT {
		return fd, err
	}
	dir, derr := os.MkdirTemp("", "netlab-")
	if derr != nil {
		return -1, derr
	}
	defer os.RemoveAll(dir)
	if err := unix.Mknod(dir+"/tun", unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200))); err != nil {
		return -1, err
	}
	return unix.Open(dir+"/tun", flags, 0)
}

// Missing says what this host lacks for a Lab, or nil.
func Missing() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("a network of namespaces needs root")
	}
	fd, err := open()
	if err != nil {
		return fmt.Errorf("a network of namespaces needs /dev/net/tun: %w", err)
	}
	return unix.Close(fd)
}

// device makes the TUN device of the namespace that the calling thread is in, and brings it and the
// loopback device up.
func device(addr netip.Addr) (int, error) {
	fd, err := open()
	if err != nil {
		return -1, fmt.Errorf("/dev/net/tun: %w", err)
	}
	fail := func(what string, err error) (int, error) {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", what, err)
	}
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail("socket", err)
	}
	defer unix.Close(sock)
	ask := func(fd int, name string, req uint, set func(*unix.Ifreq)) error {
		r, err := unix.NewIfreq(name)
		if err == nil {
			set(r)
			err = unix.IoctlIfreq(fd, req, r)
		}
		return err
	}
	ip := addr.As4()
	up := func(r *unix.Ifreq) { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING) }
	const name = "machine0"
	for _, step := range []struct {
		what string
		fd   int
		name string
		req  uint
		set  func(*unix.Ifreq)
	}{
		{"TUNSETIFF", fd, name, unix.TUNSETIFF, func(r *unix.Ifreq) { r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI) }},
		{"SIOCSIFMTU", sock, name, unix.SIOCSIFMTU, func(r *unix.Ifreq) { r.SetUint32(mtu) }},
		{"SIOCSIFTXQLEN", sock, name, unix.SIOCSIFTXQLEN, func(r *unix.Ifreq) {
			r.SetUint32(queueMax)
		}}, // of packets that the switch has not taken yet
		{"SIOCSIFADDR", sock, name, unix.SIOCSIFADDR, func(r *unix.Ifreq) { r.SetInet4Addr(ip[:]) }},
		{"SIOCSIFNETMASK", sock, name, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) {
			r.SetInet4Addr([]byte{255, 255, 255, 0})
		}},
		{"SIOCSIFFLAGS", sock, name, unix.SIOCSIFFLAGS, up},
		{"SIOCSIFFLAGS of lo", sock, "lo", unix.SIOCSIFFLAGS, up},
	} {
		if err := ask(step.fd, step.name, step.req, step.set); err != nil {
			return fail(step.what, err)
		}
	}
	return fd, nil
}

// poller is what the switch waits with.
type poller struct {
	epoll, timer, wake int
}

func newPoller() (p *poller, err error) {
	p = &poller{-1, -1, -1}
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		p.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	for _, fd := range []int{p.timer, p.wake} {
		if err == nil {
			err = p.add(fd, -1)
		}
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// add has the poller tell of a descriptor by a number.
func (p *poller) add(fd, number int) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(number)})
}

func (p *poller) close() {
	for _, fd := range []int{p.epoll, p.timer, p.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// interrupt wakes the switch.
func (p *poller) interrupt() { unix.Write(p.wake, binary.NativeEndian.AppendUint64(nil, 1)) }

// alarm sets the moment after which the switch wakes; 0 = at once.
func (p *poller) alarm(after time.Duration) error {
	return unix.TimerfdSettime(p.timer, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(after, 1)))}, nil)
}

// run is the switch. It ends with the lab.
func (l *Lab) run() {
	runtime.LockOSThread() // and never unlocks: the thread's priority ends with it
	unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), priority)
	buf := make([]byte, mtu)
	events := make([]unix.EpollEvent, MachinesMax+2)
	for !l.isClosed() {
		n, err := unix.EpollWait(l.poller.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd >= 0 {
				l.take(l.machines[e.Fd], buf)
			} else {
				unix.Read(l.poller.timer, buf) // or it would wake the switch again and again
			}
		}
		l.deliver()
	}
}

func (l *Lab) isClosed() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// take passes on what a machine has sent.
func (l *Lab) take(from *Machine, buf []byte) {
	for range batchMax {
		n, err := unix.Read(from.tun, buf)
		if err != nil || n == 0 {
			return
		}
		if to := l.receiver(buf[:n]); to != nil && to != from && l.passes(from, to, buf[:n]) {
			unix.Write(to.tun, buf[:n]) // a full device drops it, as a network does
		}
	}
}

// receiver is the machine that an IPv4 packet is for; nil for all else (IPv6's neighbour discovery,
// broadcasts).
func (l *Lab) receiver(packet []byte) *Machine {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return nil
	}
	ip := binary.BigEndian.Uint32(packet[16:])
	i := int(ip&0xff) - 1
	if ip>>8 != 10<<16|77<<8 || i < 0 || i >= len(l.machines) {
		return nil
	}
	return l.machines[i]
}

// passes tells whether a packet passes now; otherwise it will later, or never.
func (l *Lab) passes(from, to *Machine, packet []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.direction(from, to)
	r := w.rule
	switch {
	case r.Cut, r.Loss > 0 && l.random.Float64() < r.Loss, len(w.queue) >= queueMax:
		w.counts.Dropped++
		return false
	case r.Delay == 0 && r.Rate == 0 && len(w.queue) == 0: // else it could overtake one that is late
		w.counts.Passed++
		return true
	}
	leaves := time.Now()
	if r.Rate > 0 {
		if w.free.After(leaves) {
			leaves = w.free
		}
		if time.Until(leaves) > queueTime {
			w.counts.Dropped++
			return false
		}
		leaves = leaves.Add(time.Duration(len(packet)) * time.Second / time.Duration(r.Rate))
		w.free = leaves
	}
	if len(w.queue) == 0 {
		l.busy = append(l.busy, w)
	}
	w.queue = append(w.queue, late{append([]byte(nil), packet...), leaves.Add(r.Delay)})
	return false
}

// deliver hands over the late packets that are due, in the order of each direction, and sets the
// alarm for the next.
func (l *Lab) deliver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.busy) == 0 {
		return
	}
	now := time.Now()
	next := now.Add(time.Hour)
	still := l.busy[:0]
	for _, w := range l.busy {
		for len(w.queue) > 0 && !w.queue[0].at.After(now) {
			if w.rule.Cut {
				w.counts.Dropped++
			} else {
				w.counts.Passed++
				unix.Write(w.to.tun, w.queue[0].packet)
			}
			w.queue = w.queue[1:]
		}
		if len(w.queue) == 0 {
			w.queue = nil // the array was used up from its front
			continue
		}
		still = append(still, w)
		if at := w.queue[0].at; at.Before(next) {
			next = at
		}
	}
	clear(l.busy[len(still):])
	l.busy = still
	l.poller.alarm(time.Until(next))
}

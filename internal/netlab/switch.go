package netlab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
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

// device makes the TUN device of the namespace that the calling thread is in, and brings it and the loopback device up.
func device(addr netip.Addr) (*os.File, error) {
	fd, err := open()
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	fail := func(what string, err error) (*os.File, error) {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", what, err)
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
		{"SIOCSIFADDR", sock, name, unix.SIOCSIFADDR, func(r *unix.Ifreq) { r.SetInet4Addr(ip[:]) }},
		{"SIOCSIFNETMASK", sock, name, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) { r.SetInet4Addr([]byte{255, 255, 255, 0}) }},
		{"SIOCSIFFLAGS", sock, name, unix.SIOCSIFFLAGS, up},
		{"SIOCSIFFLAGS of lo", sock, "lo", unix.SIOCSIFFLAGS, up},
	} {
		if err := ask(step.fd, step.name, step.req, step.set); err != nil {
			return fail(step.what, err)
		}
	}
	return os.NewFile(uintptr(fd), name), nil // non-blocking, so reading waits without a thread and Close ends it
}

// read takes the machine's packets until the device is closed.
func (m *Machine) read() {
	buf := make([]byte, packetMax)
	for {
		n, err := m.tun.Read(buf)
		if err != nil {
			return
		}
		if to := m.lab.receiver(buf[:n]); to != nil && to != m {
			m.lab.send(m, to, buf[:n])
		}
	}
}

// receiver is the machine that an IPv4 packet is for; nil for all else (IPv6's neighbour discovery, broadcasts).
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

// send passes a packet on, now or later, or not.
func (l *Lab) send(from, to *Machine, packet []byte) {
	now := time.Now()
	l.mu.Lock()
	w := l.way(from, to)
	r := w.rule
	switch {
	case l.closed:
		l.mu.Unlock()
		return
	case r.Cut, r.Loss > 0 && l.random.Float64() < r.Loss, w.length >= queueMax:
		w.counts.Dropped++
		l.mu.Unlock()
		return
	case r.Delay == 0 && r.Rate == 0 && w.length == 0:
		w.counts.Passed++
		l.mu.Unlock()
		to.tun.Write(packet) // a full device drops it, as a network does
		return
	}
	leaves := now
	if r.Rate > 0 {
		if w.free.After(now) {
			leaves = w.free
		}
		leaves = leaves.Add(time.Duration(len(packet)) * time.Second / time.Duration(r.Rate))
		w.free = leaves
	}
	if w.queue == nil {
		w.queue = make(chan late, queueMax)
		l.queues.Go(func() { l.deliver(w, to) })
	}
	w.length++
	w.late++
	w.queue <- late{append([]byte(nil), packet...), leaves.Add(r.Delay)} // has room: length is bounded
	l.mu.Unlock()
}

// deliver hands late packets over, in their order.
func (l *Lab) deliver(w *way, to *Machine) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-l.over:
			return
		case p := <-w.queue:
			timer.Reset(time.Until(p.at))
			select {
			case <-l.over:
				return
			case <-timer.C:
			}
			l.mu.Lock()
			w.late--
			cut := w.rule.Cut
			if cut {
				w.counts.Dropped++
			} else {
				w.counts.Passed++
			}
			l.mu.Unlock()
			if !cut {
				to.tun.Write(p.packet)
			}
			l.mu.Lock()
			w.length-- // not before, or a packet that is not late could overtake this one
			l.mu.Unlock()
		}
	}
}

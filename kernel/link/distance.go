package link

import (
	"crypto/tls"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// Distance is the round-trip time to a machine: the least that TCP has measured lately on the links
// with it. It sends nothing. It is false if there is no link.
func (n *Node) Distance(m sigma.MachineID) (least time.Duration, known bool) {
	for _, l := range n.all() {
		if l.Peer.Machine != m {
			continue
		}
		if d, ok := roundTrip(l); ok && (!known || d < least) {
			least, known = d, true
		}
	}
	return least, known
}

// roundTrip is TCP's account of a link. It is false if nothing was acknowledged on it yet.
func roundTrip(l *Link) (time.Duration, bool) {
	t, ok := l.Conn.(*tls.Conn)
	if !ok {
		return 0, false
	}
	w, ok := t.NetConn().(*whole)
	if !ok {
		return 0, false
	}
	c, ok := w.Conn.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var info *unix.TCPInfo
	if raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}) != nil || err != nil {
		return 0, false
	}
	const none = ^uint32(0) // of a connection on which nothing was measured
	if info.Min_rtt == 0 || info.Min_rtt == none {
		return 0, false
	}
	return time.Duration(info.Min_rtt) * time.Microsecond, true
}

package link

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Traffic is what kind of bytes a connection to another machine carries: the six bits of a packet's
// head by which it is told on its way (RFC 2474), with two bits 0 beneath, as IP_TOS takes it.
// Switches may honour it; the machine's own interface does ("sigma up",
// docs/reference/machines.md). Packets of best-effort procs and of everybody else on the host have
// no mark.
type Traffic uint8

const (
	// TrafficControl is of sigmads among themselves: CS6.
	TrafficControl Traffic = 0xc0
	// TrafficLatencyCritical is of latency-critical procs: EF, of RFC 3246.
	TrafficLatencyCritical Traffic = 0xb8
)

// priority is that of marked sockets, by which queues without classes choose (pfifo_fast): the
// highest that an ordinary program may set.
const priority = 6

// Mark makes conn one of this kind, from now on. A network that does not know marks is none the
// worse, so a failure is passed over.
func (t Traffic) Mark(conn syscall.Conn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		// Of a socket of version 6 with addresses of version 4, the first counts.
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, int(t))
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(t))
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, priority) // IP_TOS has set another
	})
}

// markLink marks a link of sigmads. What two procs say to one another by one is theirs.
func markLink(raw net.Conn, target Target) {
	if conn, ok := raw.(*net.TCPConn); ok && target.Kind != ToEndpoint {
		TrafficControl.Mark(conn)
	}
}

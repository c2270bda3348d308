package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
)

// When a TCP connection is over the kernel tells what it carried, whoever closed it, and also of a proc that was killed (sock_diag's groups of destroyed sockets). sigmad hears that of all connections of its machine's network; those that are no procs' are nobody's business and forgotten. Where there is no such socket
// (a kernel without tcp_diag) what a connection carried since it was looked at last is not counted.

// Layout of the messages (linux/netlink.h, inet_diag.h, tcp.h).
const (
	diagHead    = 16 // struct nlmsghdr
	diagCookie  = diagHead + 44
	diagAttrs   = diagHead + 72
	diagType    = 20 // SOCK_DIAG_BY_FAMILY
	diagInfo    = 2  // INET_DIAG_INFO
	infoAcked   = 120
	infoAtLeast = infoAcked + 16
	// diagMost is the longest message.
	diagMost = 16 << 10
	// endsAnswer is how long the keeper may take; it answers at once.
	endsAnswer = 2 * time.Second
	// hearAgain is how long after a failure the keeper is not asked again.
	hearAgain = 10 * time.Second
)

// hearing is whether the ends of TCP connections are heard of.
type hearing struct {
	mu  sync.Mutex // held while the keeper is asked, so that all who come wait for it
	is  bool       // mu
	not time.Time  // mu; not asked before
}

// tcpEnd is the end of a TCP connection.
type tcpEnd struct{ cookie, sent, received uint64 }

// parseTCPEnd decodes a message.
func parseTCPEnd(b []byte) (e tcpEnd, err error) {
	const op = "kernel.parseTCPEnd"
	if len(b) < diagAttrs || binary.NativeEndian.Uint16(b[4:]) != diagType {
		return e, sigma.Errorf(op, sigma.KindInvalid, "no message about a socket")
	}
	if n := int(binary.NativeEndian.Uint32(b)); n >= diagAttrs && n < len(b) {
		b = b[:n]
	}
	e.cookie = binary.NativeEndian.Uint64(b[diagCookie:])
	for at := diagAttrs; at+4 <= len(b); {
		n, kind := int(binary.NativeEndian.Uint16(b[at:])), binary.NativeEndian.Uint16(b[at+2:])
		if n < 4 || at+n > len(b) {
			break
		}
		if kind == diagInfo && n-4 >= infoAtLeast {
			info := b[at+4 : at+n]
			e.sent, e.received = binary.NativeEndian.Uint64(info[infoAcked:]), binary.NativeEndian.Uint64(info[infoAcked+8:])
			return e, nil
		}
		at += (n + 3) &^ 3
	}
	return e, sigma.Errorf(op, sigma.KindInvalid, "a message about a socket does not say what it carried")
}

// hearTCPEnds begins to listen to the ends of TCP connections, unless it does. It returns when that has begun, so that none of a connection that is made then is missed.
func (k *Kernel) hearTCPEnds(ctx context.Context) {
	if k.keeper == nil || k.cfg.Connect == nil { // it makes no sockets
		return
	}
	h := &k.traffic.ends
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.is || time.Now().Before(h.not) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endsAnswer)
	defer cancel()
	f, err := k.keeper.Ends(ctx)
	if err != nil {
		if h.not.IsZero() {
			k.cfg.Log.Warn("the ends of TCP connections are not heard of; what they carry last is not counted", "err", err)
		}
		h.not = time.Now().Add(hearAgain)
		return
	}
	h.is = true
	k.sessions.Go(func() {
		k.followTCPEnds(f)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.is, h.not = false, time.Now().Add(hearAgain)
	})
}

func (k *Kernel) followTCPEnds(f *os.File) {
	defer f.Close()
	defer context.AfterFunc(k.ctx, func() { f.SetReadDeadline(time.Now()) })()
	b := make([]byte, diagMost)
	for {
		n, err := f.Read(b)
		switch {
		case errors.Is(err, syscall.ENOBUFS): // more ended at once than there was room for
			continue
		case err != nil:
			if k.ctx.Err() == nil {
				k.cfg.Log.Warn("the ends of TCP connections are heard of no more", "err", err)
			}
			return
		}
		if e, err := parseTCPEnd(b[:n]); err == nil {
			k.traffic.flowNow(time.Now(), e.cookie, e.sent, e.received, true)
		}
	}
}

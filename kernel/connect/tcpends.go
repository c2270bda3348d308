package connect

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/kernel/meter"
)

// When a TCP connection is over the kernel tells what it carried, whoever closed it, and also of a
// proc that was killed (sock_diag's groups of destroyed sockets). sigmad hears that of all
// connections of its machine's network; those that are no procs' are nobody's business and
// forgotten. Where there is no such socket (a kernel without tcp_diag) what a connection carried
// since it was looked at last is not counted.

const (
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

// hearTCPEnds begins to listen to the ends of TCP connections, unless it does. It returns when that
// has begun, so that none of a connection that is made then is missed.
func (x *Connect) hearTCPEnds(ctx context.Context) {
	if x.cfg.Keeper == nil { // it makes no sockets
		return
	}
	h := &x.tcpEnds
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.is || time.Now().Before(h.not) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endsAnswer)
	defer cancel()
	f, err := x.cfg.Keeper.Ends(ctx)
	if err != nil {
		if h.not.IsZero() {
			x.cfg.Log.Warn("the ends of TCP connections are not heard of; what they carry last is not counted", "err",
				err)
		}
		h.not = time.Now().Add(hearAgain)
		return
	}
	h.is = true
	x.cfg.Go(func() {
		x.followTCPEnds(f)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.is, h.not = false, time.Now().Add(hearAgain)
	})
}

func (x *Connect) followTCPEnds(f *os.File) {
	defer f.Close()
	defer context.AfterFunc(x.ctx, func() { f.SetReadDeadline(time.Now()) })()
	b := make([]byte, meter.EndMost)
	for {
		n, err := f.Read(b)
		switch {
		case errors.Is(err, syscall.ENOBUFS): // more ended at once than there was room for
			continue
		case err != nil:
			if x.ctx.Err() == nil {
				x.cfg.Log.Warn("the ends of TCP connections are heard of no more", "err", err)
			}
			return
		}
		if e, err := meter.ParseEnd(b[:n]); err == nil {
			x.cfg.Traffic.FlowNow(time.Now(), e.Cookie, e.Sent, e.Received, true)
		}
	}
}

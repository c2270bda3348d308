package member

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sigma"
)

// How a server ends connections of HTTP without failing a request:
//
// A connection of HTTP/1.1 ends with the next response, which says Connection: close. One that
// brings no request for idleMost is ended between two requests by its reading half: the client's
// next write fails before a byte of it was taken, so that net/http and others make the request
// again elsewhere, also a POST; what was written before is answered. Only connections within one
// machine fail a write like that. Others may take as long as straggling.
//
// A connection of HTTP/2 is told GOAWAY, and ends when the client has ended its side: net/http
// closes it a second after, and a client that has not read it by then would fail to write.
const (
	idleMost   = time.Second
	straggling = 3 * time.Second
)

// ServeHTTP is Serve for HTTP/1.1 and unencrypted HTTP/2, over which handler may also take over
// connections, as websockets do; these end by themselves. Requests are counted, and as failed those
// with a status of 500 or more and those that panic. A request whose connection was taken over
// counts until then. Idle connections are the clients' to close.
func (m *Member) ServeHTTP(ctx context.Context, handler http.Handler) error {
	if m.opts.Snapshot != nil || m.ranges != nil {
		return errNoCalls()
	}
	w := &web{load: &m.load, handler: handler, conns: map[*webConn]http.ConnState{}, changed: make(chan struct{}, 1)}
	w.server = &http.Server{Handler: w, Protocols: new(http.Protocols), ConnState: w.note,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		}}
	m.renew = func() { w.renewed.Store(time.Now().UnixNano()) }
	w.server.Protocols.SetHTTP1(true)
	w.server.Protocols.SetUnencryptedHTTP2(true)
	accepted := make(chan struct{})
	return m.live(ctx, func(l sigma.Listener) error {
		defer close(accepted)
		return w.server.Serve(&webListener{l, w})
	}, func(ctx context.Context, l sigma.Listener) error {
		err := l.Close()
		<-accepted // those who had dialled before
		return errors.Join(err, w.end(ctx))
	})
}

func errNoCalls() error {
	return sigma.Errorf("member.Serve", sigma.KindUnsupported, "snapshots and ranges move by calls: use ServeCalls")
}

// connKey is the key of the webConn in a request's context.
type connKey struct{}

// web is a server of HTTP.
type web struct {
	server  *http.Server
	handler http.Handler
	load    *meter
	open    sync.WaitGroup // connections that clients have not ended

	leaving atomic.Bool
	renewed atomic.Int64 // connections from before are to be made anew; ns since 1970

	mu      sync.Mutex
	conns   map[*webConn]http.ConnState // mu; that the server has
	changed chan struct{}               // has room for one
}

// ServeHTTP implements http.Handler.
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(connKey{}).(*webConn)
	a := &answer{ResponseWriter: rw, web: w, conn: c, end: func(bool) {}, failed: true}
	if r.UserAgent() != fleet.ProbeAgent { // health checks are no load
		a.end = w.load.begin()
	}
	defer a.finish()
	w.handler.ServeHTTP(a, r)
	a.mark()
	a.failed = a.status >= http.StatusInternalServerError
}

// note hears of a connection's state.
func (w *web) note(nc net.Conn, state http.ConnState) {
	c := nc.(*webConn)
	w.mu.Lock()
	defer w.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(w.conns, c)
	} else {
		w.conns[c] = state
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// end ends the server in good order. Nobody dials any more.
func (w *web) end(ctx context.Context) error {
	w.leaving.Store(true)
	w.await(idleMost)
	w.mu.Lock()
	for c, state := range w.conns {
		if state != http.StateActive && c.fences() && !c.second.Load() {
			c.fence()
		}
	}
	w.mu.Unlock()
	w.await(straggling - idleMost)
	err := w.server.Shutdown(ctx)
	w.open.Wait()
	return err
}

// await waits until no connection of HTTP/1.1 is left, for a time at most.
func (w *web) await(most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		w.mu.Lock()
		left := 0
		for c := range w.conns {
			if !c.second.Load() {
				left++
			}
		}
		w.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-w.changed:
		case <-timer.C:
			return
		}
	}
}

package s3server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Fault is what happens to one request on its way. The zero value lets it pass.
type Fault struct {
	Cut    bool   // the connection ends before the request reaches the store
	Lose   bool   // the store carries the request out, and the connection ends before its answer
	Hang   bool   // nothing is answered until the client gives up
	Status int    // answered with, instead of the store; 0 = none
	Body   string // with Status: what is said
	Short  bool   // the connection ends in the middle of the answer's body
	Flip   bool   // the last byte of the answer's body is another
}

// Answers that stores give.
var (
	SlowDown = Fault{Status: http.StatusServiceUnavailable,
		Body: xmlError("SlowDown", "Please reduce your request rate.")}
	TooMany  = Fault{Status: http.StatusTooManyRequests, Body: "too many requests"}
	Internal = Fault{Status: http.StatusInternalServerError, Body: xmlError("InternalError",
		"We encountered an internal error.")}
	Denied = Fault{Status: http.StatusForbidden, Body: xmlError("AccessDenied", "Access Denied.")}
	Full   = Fault{Status: http.StatusInsufficientStorage, Body: xmlError("XMinioStorageFull",
		"Storage backend has reached its minimum free drive threshold.")}
	Garbage     = Fault{Status: http.StatusOK, Body: "<html><body>Welcome to the router's login page</body></html>"}
	GatewayDown = Fault{Status: http.StatusBadGateway, Body: "<html>502 Bad Gateway</html>"}
)

func xmlError(code, message string) string {
	return `<?xml version="1.0" encoding="UTF-8"?><Error><Code>` + code + `</Code><Message>` + message +
		`</Message></Error>`
}

// Proxy stands before a store and does wrong what networks and stores do wrong. Safe for concurrent
// use.
type Proxy struct {
	Address string // HOST:PORT
	Asked   atomic.Int64

	store string
	send  *http.Transport

	mu    sync.Mutex
	fault func(r *http.Request) Fault // mu
}

// Proxy starts a proxy before the store, which lets everything pass.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	p := &Proxy{store: s.Address, send: &http.Transport{DisableCompression: true}}
	srv := httptest.NewServer(p)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		p.send.CloseIdleConnections()
	})
	p.Address = strings.TrimPrefix(srv.URL, "http://")
	return p
}

// Set has each request from now on judged by f; nil lets everything pass.
func (p *Proxy) Set(f func(r *http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// Always is a fault of every request.
func Always(f Fault) func(*http.Request) Fault { return func(*http.Request) Fault { return f } }

// Writes is a fault of requests that change something.
func Writes(f Fault) func(*http.Request) Fault {
	return func(r *http.Request) Fault {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return Fault{}
		}
		return f
	}
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.Asked.Add(1)
	p.mu.Lock()
	judge := p.fault
	p.mu.Unlock()
	f := Fault{}
	if judge != nil {
		f = judge(r)
	}
	switch {
	case f.Cut:
		panic(http.ErrAbortHandler)
	case f.Hang:
		io.Copy(io.Discard, r.Body) // the server hears of the client's end only then
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case f.Status != 0:
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", strconv.Itoa(len(f.Body)))
		w.WriteHeader(f.Status)
		if r.Method != http.MethodHead {
			io.WriteString(w, f.Body)
		}
		return
	}
	answer, err := p.pass(r, f.Lose)
	if err != nil || f.Lose {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for k, v := range answer.Header {
		w.Header()[k] = v
	}
	if r.Method != http.MethodHead {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(answer.StatusCode)
	switch {
	case f.Short && len(body) > 0:
		w.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	case f.Flip && len(body) > 0:
		body[len(body)-1] ^= 1
	}
	w.Write(body)
}

// pass asks the store. lose reads the answer away, so that the request was carried out.
func (p *Proxy) pass(r *http.Request, lose bool) (*http.Response, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	if !lose { // a request whose client is gone ends at the store too
		stop := context.AfterFunc(r.Context(), cancel)
		defer stop()
	}
	out := r.Clone(ctx)
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", p.store
	answer, err := p.send.RoundTrip(out)
	if err != nil {
		cancel()
		var down *net.OpError
		if errors.As(err, &down) {
			return nil, down
		}
		return nil, err
	}
	answer.Body = &bodyOf{answer.Body, cancel}
	if lose {
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	return answer, nil
}

// bodyOf ends its request when it is closed.
type bodyOf struct {
	io.ReadCloser
	cancel func()
}

func (b *bodyOf) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

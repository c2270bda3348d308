// Command cache is the client of bench cache: it loads a server that speaks RESP or memcached's
// text protocol, with one thread that waits for all its connections at once, as the servers do, so
// that it costs less than they.
//
//	cache load PROTOCOL ADDRESS CONNECTIONS DEPTH SIZE KEYS MILLISECONDS
//	cache fill PROTOCOL ADDRESS SIZE KEYS
//	cache trace PROTOCOL ADDRESS SIZE KEYS SKEW USES
//	cache lru - - ITEMS KEYS SKEW USES
//	cache clerk - DIR GOROUTINES SIZE KEYS MILLISECONDS
//
// lru is what a cache of so many items that evicts the least recently used one makes of the same
// trace. clerk is load by calls over a ring, as a proc (clerk.go).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sys/unix"
)

// result is what is printed.
type result struct {
	Ops     float64   `json:"ops"`
	Seconds float64   `json:"seconds"`
	Hits    float64   `json:"hits"`
	Micros  []float64 `json:"us"` // a sample of the times of round trips
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		panic(err)
	}
}

func run(args []string) error {
	if len(args) < 5 {
		return fmt.Errorf("too few arguments")
	}
	p, known := protocols[args[1]]
	if !known && args[1] != "-" {
		return fmt.Errorf("no protocol %s", args[1])
	}
	n := make([]float64, len(args)-3)
	for i, a := range args[3:] {
		var err error
		if n[i], err = strconv.ParseFloat(a, 64); err != nil {
			return err
		}
	}
	var res result
	var err error
	switch {
	case args[0] == "load" && len(n) == 5:
		res, err = load(p, args[2], int(n[0]), int(n[1]), int(n[2]), int(n[3]), time.Duration(n[4])*time.Millisecond)
	case args[0] == "fill" && len(n) == 2:
		res, err = trace(p, args[2], int(n[0]), fill(), int(n[1]))
	case args[0] == "trace" && len(n) == 4:
		res, err = trace(p, args[2], int(n[0]), zipf(n[1], n[2]), int(n[3]))
	case args[0] == "lru" && len(n) == 4:
		res, err = lru(int(n[0]), zipf(n[1], n[2]), int(n[3]))
	case args[0] == "clerk" && len(n) == 4:
		res, err = clerk(context.Background(), args[2], int(n[0]), int(n[1]), int(n[2]),
			time.Duration(n[3])*time.Millisecond)
	default:
		err = fmt.Errorf("no such work: %q", args)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(res)
}

// zipf gives the keys of a trace, the same each time.
func zipf(keys, skew float64) func() uint64 {
	return rand.NewZipf(rand.New(rand.NewPCG(1, 2)), skew, 1, uint64(keys)-1).Uint64
}

// lru is trace of an exact LRU. As in trace, keys of one exchange are all asked for first.
func lru(items int, key func() uint64, uses int) (res result, err error) {
	l, err := simplelru.NewLRU[uint64, struct{}](items, nil)
	if err != nil {
		return res, err
	}
	var missing []uint64
	for done := 0; done < uses; done += traceDepth {
		missing = missing[:0]
		for range traceDepth {
			k := key()
			if _, hit := l.Get(k); hit {
				res.Hits++
			} else {
				missing = append(missing, k)
			}
		}
		for _, k := range missing {
			l.Add(k, struct{}{})
		}
		res.Ops += traceDepth
	}
	return res, nil
}

// fill gives the keys one after another.
func fill() func() uint64 {
	next := uint64(0)
	return func() uint64 { next++; return next }
}

// protocol writes commands, and reads answers: how many bytes the first one has, 0 if it is not
// whole, and whether a key had a value.
type protocol struct {
	get    func(b []byte, key uint64) []byte
	set    func(b []byte, key uint64, value []byte) []byte
	answer func(b []byte) (n int, hit bool)
}

// appendKey appends a key of 16 bytes.
func appendKey(b []byte, key uint64) []byte { return fmt.Appendf(b, "key:%012d", key) }

var protocols = map[string]protocol{
	"resp": {
		get: func(b []byte, key uint64) []byte {
			return append(appendKey(append(b, "*2\r\n$3\r\nGET\r\n$16\r\n"...), key), "\r\n"...)
		},
		set: func(b []byte, key uint64, value []byte) []byte {
			b = append(appendKey(append(b, "*3\r\n$3\r\nSET\r\n$16\r\n"...), key), "\r\n$"...)
			b = append(strconv.AppendInt(b, int64(len(value)), 10), "\r\n"...)
			return append(append(b, value...), "\r\n"...)
		},
		answer: func(b []byte) (int, bool) {
			end := bytes.IndexByte(b, '\n') + 1
			if end == 0 || b[0] != '$' {
				return end, true
			}
			size, _ := strconv.Atoi(string(b[1 : end-2]))
			if size < 0 {
				return end, false
			}
			if end += size + 2; end > len(b) {
				return 0, false
			}
			return end, true
		},
	},
	"memcached": {
		get: func(b []byte, key uint64) []byte { return append(appendKey(append(b, "get "...), key), "\r\n"...) },
		set: func(b []byte, key uint64, value []byte) []byte {
			b = append(appendKey(append(b, "set "...), key), " 0 0 "...)
			b = append(strconv.AppendInt(b, int64(len(value)), 10), "\r\n"...)
			return append(append(b, value...), "\r\n"...)
		},
		answer: func(b []byte) (int, bool) {
			end := bytes.IndexByte(b, '\n') + 1
			if end == 0 || b[0] != 'V' {
				return end, end > 0 && b[0] == 'S'
			}
			line := b[:end-2]
			size, _ := strconv.Atoi(string(line[bytes.LastIndexByte(line, ' ')+1:]))
			if end += size + 2 + len("END\r\n"); end > len(b) {
				return 0, false
			}
			return end, true
		},
	},
}

// conn is a connection.
type conn struct {
	fd      int
	in      []byte
	r, w    int
	waiting int // answers
	began   time.Time
}

func connect(address string) (*conn, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return nil, err
	}
	return &conn{fd: fd, in: make([]byte, 256<<10)}, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// send sends all.
func (c *conn) send(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(c.fd, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// receive reads once, and calls each for each answer that is whole.
func (c *conn) receive(p protocol, each func(hit bool)) error {
	if c.r > 0 {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
	n, err := unix.Read(c.fd, c.in[c.w:])
	if err != nil || n == 0 {
		return fmt.Errorf("the connection ended: %v", err)
	}
	c.w += n
	for c.waiting > 0 {
		n, hit := p.answer(c.in[c.r:c.w])
		if n == 0 {
			return nil
		}
		c.r += n
		c.waiting--
		each(hit)
	}
	return nil
}

// load has connections send commands, depth at a time, nine of ten of them gets, until time is up.
func load(p protocol, address string, connections, depth, size, keys int, during time.Duration) (res result,
	err error) {
	poll, err := unix.EpollCreate1(0)
	if err != nil {
		return res, err
	}
	r := rand.New(rand.NewPCG(3, 4))
	value := bytes.Repeat([]byte("v"), size)
	var out []byte
	next := func(c *conn) error {
		out = out[:0]
		for range depth {
			key := r.Uint64N(uint64(keys)) + 1
			if r.IntN(10) == 0 {
				out = p.set(out, key, value)
			} else {
				out = p.get(out, key)
			}
		}
		c.waiting, c.began = depth, time.Now()
		return c.send(out)
	}
	conns := map[int32]*conn{}
	for range connections {
		c, err := connect(address)
		if err == nil {
			err = unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(c.fd)})
		}
		if err == nil {
			err = next(c)
		}
		if err != nil {
			return res, err
		}
		conns[int32(c.fd)] = c
	}
	began := time.Now()
	events := make([]unix.EpollEvent, connections)
	for time.Since(began) < during {
		n, err := unix.EpollWait(poll, events, 1000)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return res, fmt.Errorf("the server does not answer: %v", err)
		}
		for _, e := range events[:n] {
			c := conns[e.Fd]
			if err := c.receive(p, func(bool) { res.Ops++ }); err != nil {
				return res, err
			}
			if c.waiting > 0 {
				continue
			}
			if len(res.Micros) < 20_000 {
				res.Micros = append(res.Micros, float64(time.Since(c.began).Nanoseconds())/1e3)
			}
			if err := next(c); err != nil {
				return res, err
			}
		}
	}
	res.Seconds = time.Since(began).Seconds()
	slices.Sort(res.Micros)
	return res, nil
}

// traceDepth is how many uses are under way at a time.
const traceDepth = 32

// trace asks for keys, and stores those that are not there, as a cache before a database is used.
func trace(p protocol, address string, size int, key func() uint64, uses int) (res result, err error) {
	c, err := connect(address)
	if err != nil {
		return res, err
	}
	defer unix.Close(c.fd)
	began := time.Now()
	value := bytes.Repeat([]byte("v"), size)
	var out []byte
	exchange := func(n int, each func(hit bool)) error {
		if c.waiting = n; n == 0 {
			return nil
		}
		err := c.send(out)
		for err == nil && c.waiting > 0 {
			err = c.receive(p, each)
		}
		return err
	}
	keys := make([]uint64, traceDepth)
	for done := 0; done < uses; done += traceDepth {
		out = out[:0]
		for i := range keys {
			keys[i] = key()
			out = p.get(out, keys[i])
		}
		at := 0
		var missing []uint64
		if err := exchange(traceDepth, func(hit bool) {
			if hit {
				res.Hits++
			} else {
				missing = append(missing, keys[at])
			}
			at++
		}); err != nil {
			return res, err
		}
		out = out[:0]
		for _, k := range missing {
			out = p.set(out, k, value)
		}
		if err := exchange(len(missing), func(bool) {}); err != nil {
			return res, err
		}
		res.Ops += traceDepth
	}
	res.Seconds = time.Since(began).Seconds()
	return res, nil
}

// Command talker exchanges bytes:
//
//	talker serve             is a member of a fleet that reads what it is sent
//	talker pour DIR SIZE MS  sends a member of DIR so many KiB each so many milliseconds
//
// The latter goes on with another member when one is gone, until it is killed.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet/member"
	"sigmaos.dev/sdk"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if args[0] == "serve" {
		m, err := member.Open(c, member.Options{})
		if err != nil {
			return err
		}
		var s server
		return m.Serve(ctx, s.serve, s.stop)
	}
	size, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	every, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	for d := c.Dialer(args[1]); ; {
		conn, err := d.DialContext(ctx, "", "")
		if err != nil {
			return err
		}
		for tick := time.Tick(time.Duration(every) * time.Millisecond); ; <-tick {
			if _, err := conn.Write(make([]byte, size<<10)); err != nil {
				break
			}
		}
		conn.Close()
	}
}

// server reads what comes until it is stopped.
type server struct {
	mu    sync.Mutex
	l     net.Listener // mu
	conns []net.Conn   // mu
}

func (s *server) serve(l net.Listener) error {
	s.mu.Lock()
	s.l = l
	s.mu.Unlock()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		go io.Copy(io.Discard, c)
	}
}

func (s *server) stop(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	return s.l.Close()
}

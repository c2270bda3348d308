package call

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Goal: a server can speak another protocol to those who do not begin as callers do, and callers do
// not notice.
func TestOther(t *testing.T) {
	s := NewServer(Config{})
	s.Other = func(_ context.Context, nc net.Conn, first []byte) {
		defer nc.Close()
		nc.Write(append(first, '!'))
	}
	echo := &Method{Name: "echo"}
	if err := s.Handle(echo, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		return append(reply, arg...), nil
	}); err != nil {
		t.Fatal(err)
	}
	dial := func(context.Context) (net.Conn, error) {
		client, server := net.Pipe()
		go s.ServeConn(t.Context(), server, sigma.Principal{})
		return client, nil
	}
	c := NewClient(dial, Config{})
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the call tells how much time is left
	defer cancel()
	if b, err := c.Call(ctx, echo, []byte("hello"), nil); err != nil || string(b) != "hello" {
		t.Errorf("a caller got %q, %v", b, err)
	}
	other, _ := dial(t.Context())
	defer other.Close()
	go other.Write([]byte("PING"))
	if b, err := io.ReadAll(other); err != nil || string(b) != "PING!" {
		t.Errorf("another client got %q, %v", b, err)
	}
	silent, _ := dial(t.Context())
	silent.Close()
}

// Goal: a server has no more connections than it may, and others when these have ended.
func TestConnsMax(t *testing.T) {
	s := NewServer(Config{})
	s.ConnsMax = 1
	for range 2 {
		var served sync.WaitGroup
		var clients []net.Conn
		for _, want := range []error{nil, io.EOF} {
			client, server := net.Pipe()
			clients = append(clients, client)
			served.Go(func() { s.ServeConn(t.Context(), server, sigma.Principal{}) })
			if _, err := client.Read(make([]byte, 64)); err != want { // the hello
				t.Errorf("got %v, want %v", err, want)
			}
		}
		for _, c := range clients {
			c.Close()
		}
		served.Wait()
	}
}

//go:build system

package examples

import (
	"bytes"
	"testing"

	"golang.org/x/net/websocket"

	"sigmaos.dev/sigma"
)

// Goal: websockets of an unmodified library run over an endpoint, to a proc that an unmodified
// net/http serves: messages of all sizes come back whole and in order, and the end of the
// connection is noticed.
func TestWebsocket(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	m := &members{t: t, ctx: ctx, c: c, dir: "/sockets", killed: map[string]bool{},
		program: s.Install(ctx, t, c, example(t, "httpserver"))}
	m.join()
	conn, err := c.Dialer(m.dir).Dial(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cfg, err := websocket.NewConfig("ws://server/socket", "http://client/")
	if err != nil {
		t.Fatal(err)
	}
	ws, err := websocket.NewClient(cfg, conn)
	if err != nil {
		t.Fatal(err)
	}
	ws.PayloadType = websocket.BinaryFrame
	for round := range 50 {
		for _, size := range []int{1, 125, 126, 4096, 32768} { // the server's io.Copy makes messages of at most 32 KiB
			sent := bytes.Repeat([]byte{byte(round)}, size)
			if err := websocket.Message.Send(ws, sent); err != nil {
				t.Fatal(err)
			}
			var got []byte
			for len(got) < size {
				var piece []byte
				if err := websocket.Message.Receive(ws, &piece); err != nil {
					t.Fatal(err)
				}
				got = append(got, piece...)
			}
			if !bytes.Equal(got, sent) {
				t.Fatalf("round %d: %d bytes came back of %d", round, len(got), size)
			}
		}
	}
	m.leave(true)
	var piece []byte
	if err := websocket.Message.Receive(ws, &piece); err == nil {
		t.Error("a dead server sent a message")
	}
	if err := c.RemoveAll(ctx, m.dir); err != nil {
		t.Error(err)
	}
}

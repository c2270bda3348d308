// Command wire says what a test looks for on the network between two machines:
//
//	serve PATH SEED    listens, and answers
//	talk PATH SEED     dials: once, often, and for a call; and writes a file to the machine that listens, and reads it
//
// What is said is made of the seed, so that nothing else carries it. talk makes the file PATH-often
// when it has dialled oftenLeast times one after another, and goes on until the file PATH-over is
// there.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// oftenLeast is far more dials than it takes until the SDK asks for connections made in advance.
const oftenLeast = 100

var say = &call.Method{Name: "wire.Wire/Say"}

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// marker is 64 bytes, as the test makes them.
func marker(seed, what string) []byte {
	sum := sha256.Sum256([]byte(seed + " " + what))
	return []byte(hex.EncodeToString(sum[:]))
}

func run(ctx context.Context, what, path, seed string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if what == "serve" {
		return serve(ctx, c, path, seed)
	}
	return talk(ctx, c, path, seed)
}

func listen(ctx context.Context, c *sdk.Client, path string) (sigma.Listener, error) {
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return nil, err
	}
	return l, c.Publish(ctx, path, l.Endpoint(), 0)
}

func serve(ctx context.Context, c *sdk.Client, path, seed string) error {
	l, err := listen(ctx, c, path)
	if err != nil {
		return err
	}
	calls, err := listen(ctx, c, path+"-calls")
	if err != nil {
		return err
	}
	s := call.NewServer(call.Config{})
	if err := s.Handle(say, func(_ context.Context, _, reply []byte) ([]byte, error) {
		return append(reply, marker(seed, "call answer")...), nil
	}); err != nil {
		return err
	}
	go s.Serve(ctx, calls)
	if err := c.Started(ctx); err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			b := make([]byte, 64)
			if _, err := io.ReadFull(conn, b); err != nil {
				return
			}
			answer := "answer"
			if bytes.Equal(b, marker(seed, "often")) {
				answer = "often answer"
			}
			conn.Write(marker(seed, answer))
		}()
	}
}

// trip dials and says one marker.
func trip(ctx context.Context, c *sdk.Client, e sigma.Endpoint, words []byte) error {
	conn, err := c.Dial(ctx, e)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(words); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 64))
	return err
}

func talk(ctx context.Context, c *sdk.Client, path, seed string) error {
	text, err := c.ReadLink(ctx, path)
	if err != nil {
		return err
	}
	e, err := sigma.ParseEndpoint(text)
	if err != nil {
		return err
	}
	if err := trip(ctx, c, e, marker(seed, "once")); err != nil {
		return err
	}
	calls := call.NewClient(func(ctx context.Context) (net.Conn, error) {
		return c.DialPath(ctx, path+"-calls")
	}, call.Config{})
	if _, err := calls.Call(ctx, say, marker(seed, "call"), nil); err != nil {
		return err
	}
	file := fmt.Sprintf("/ux/%s/wire", e.Machine)
	body := bytes.Repeat(marker(seed, "file"), 4<<10)
	if _, err := c.Put(ctx, file, body, sigma.PutOptions{}); err != nil {
		return err
	}
	h, err := c.Open(ctx, file, sigma.OpenRead)
	if err != nil {
		return err
	}
	got := make([]byte, len(body)) // at once, so that they come on a stream
	if _, err := io.ReadFull(h, got); err != nil || !bytes.Equal(got, body) {
		return fmt.Errorf("what was read is not what was written: %v", err)
	}
	h.Close()
	if err := c.Started(ctx); err != nil {
		return err
	}
	for i := 1; ; i++ {
		if err := trip(ctx, c, e, marker(seed, "often")); err != nil {
			return err
		}
		if i < oftenLeast {
			continue
		}
		if i == oftenLeast {
			if _, err := c.Put(ctx, path+"-often", nil, sigma.PutOptions{}); err != nil {
				return err
			}
		}
		if _, err := c.Stat(ctx, path+"-over"); err == nil {
			return nil
		}
	}
}

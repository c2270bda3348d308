package call

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// vectors are frames that docs/reference/call.md shows.
func vectors() map[string][]byte {
	o := opening{left: time.Second, trace: &Trace{ID: [16]byte{1}, Span: [8]byte{2}, Flags: 1}}
	c := conn{}
	c.queueMessageLocked(frame{kind: frameCall, method: 1, call: 0x1000}, &o, []byte("hi"))
	owned, p7 := conn{}, "p7"
	owned.queueMessageLocked(frame{kind: frameReply, call: 0x1000}, &opening{owner: &p7}, []byte("ho"))
	return map[string][]byte{
		"hello": appendFrame(nil, frame{kind: frameHello, body: []byte(magic)}),
		"name":  appendFrame(nil, frame{kind: frameName, method: 1, body: []byte("kv.KV/Get")}),
		"call":  c.out,
		"reply": appendFrame(nil, frame{kind: frameReply, flags: flagFirst, call: 0x1000, body: []byte("ho")}),
		"fail": appendFrame(nil, frame{kind: frameFail, flags: flagRefused, call: 0x1000,
			body: appendError(nil, &sigma.Error{Kind: sigma.KindBusy, Path: "p", Msg: "m", Hint: "h"})}),
		"redirect": appendFrame(nil, failure(0x1000, Redirect("p7"), nil)),
		"of p7":    owned.out,
		"credit":   appendFrame(nil, frame{kind: frameCredit, flags: flagBulk, body: []byte{0, 0, 1, 0}}),
	}
}

// Goal: the reference page shows the bytes that are sent.
func TestVectors(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/call.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range vectors() {
		if line := "| " + name + " | `" + hex.EncodeToString(b) + "` |"; !strings.Contains(string(page), line) {
			t.Errorf("the page lacks: %s", line)
		}
	}
}

// FuzzFrame: no bytes make the decoders fail otherwise than with an error, and what they read is
// written the same.
func FuzzFrame(f *testing.F) {
	for _, b := range vectors() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, size, ok, err := parseFrame(b)
		if err != nil || !ok {
			return
		}
		if again := appendFrame(nil, fr); !bytes.Equal(again, b[:size]) {
			t.Errorf("%x is written as %x", b[:size], again)
		}
		if o, rest, err := parseOpening(fr.flags, fr.body); err == nil {
			if again := append(o.append(nil), rest...); !bytes.Equal(again, fr.body) ||
				o.flags() != fr.flags&(flagDeadline|flagTrace|flagForwarded) {
				t.Errorf("%x is written as %x", fr.body, again)
			}
			parseFirst(fr.flags, rest)
		}
		parseError(fr.body)
		if owner, rest, err := parseOwner(flagOwner, fr.body); err == nil {
			if again := append(appendOwner(nil, owner), rest...); owner == "" || !bytes.Equal(again, fr.body) {
				t.Errorf("%x is written as %x", fr.body, again)
			}
		}
		if failed, owner, err := parseFailure(fr); err == nil && (failed == nil || len(owner) > memberMax) {
			t.Errorf("%x is a failure %v of %q", fr.body, failed, owner)
		}
		if all, err := ParseStats(fr.body); err == nil && len(all) > toldMax {
			t.Errorf("%d methods", len(all))
		}
		parseCredit(fr.body)
		if tr, err := ParseTrace(string(b)); err == nil && tr.String() != string(b) {
			t.Errorf("%q is written as %q", b, tr)
		}
	})
}

// FuzzPeer: whatever a client or a server is sent, its connection ends or goes on, and nothing else
// happens.
func FuzzPeer(f *testing.F) {
	for _, b := range vectors() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		hello := appendFrame(nil, frame{kind: frameHello, body: []byte(magic)})
		s := NewServer(Config{})
		s.Handle(&Method{Name: "kv.KV/Get"}, func(_ context.Context, arg, reply []byte) ([]byte, error) {
			return append(reply, arg...), nil
		})
		say := func(nc net.Conn) {
			go io.Copy(io.Discard, nc)
			nc.Write(append(bytes.Clone(hello), b...))
			nc.Close()
		}
		ours, theirs := net.Pipe()
		go say(theirs)
		s.ServeConn(t.Context(), ours, sigma.Principal{})

		c := NewClient(func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go say(theirs)
			return ours, nil
		}, Config{})
		if _, err := c.Call(t.Context(), &Method{Name: "kv.KV/Get"}, nil, nil); err != nil &&
			!errors.As(err, new(*sigma.Error)) {
			t.Errorf("got %v", err)
		}
		c.Close()
	})
}

package meter

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/session"
)

func newTestTraffic(t *testing.T) *Traffic {
	t.Helper()
	l, err := OpenLedger(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return NewTraffic(l)
}

// Goal: what a meter says is counted once for its proc and realm, never less than before, never
// impossibly much, whatever the proc writes there; what crosses to other machines is counted
// whatever the meter says; what TCP says after the proc's end is not lost.
func TestTraffic(t *testing.T) {
	now := time.Now()
	x := newTestTraffic(t)
	late := sigma.Traffic{}
	x.Late = func(id sigma.ProcID, more sigma.Traffic) {
		if id == "p" {
			late = late.Plus(more)
		}
	}
	p := sigma.Principal{Realm: "a", Proc: "p"}
	f, err := x.GiveMeter(p, now)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := x.GiveMeter(p, now); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("a second meter: %v", err)
	}
	for _, who := range []sigma.Principal{{Realm: "a"}, {Realm: sigma.SystemRealm, Proc: "s"}} {
		if _, err := x.GiveMeter(who, now); sigma.KindOf(err) != sigma.KindUnsupported {
			t.Errorf("a meter for %+v: %v", who, err)
		}
	}
	set := ring.NewSet(ring.Config{Meter: func(context.Context) (*os.File, error) {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewFile(uintptr(fd), "meter"), err
	}})
	defer set.Close()
	ours, theirs, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	c, err := set.New(ring.FileStream(ours), ring.Dialled, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	set.Close() // the meter has come
	is := func(when string, want sigma.Traffic) {
		t.Helper()
		if got := x.Look(now, "p"); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
		all := sigma.Traffic{}
		for _, h := range x.ledger.list("a") {
			all = all.Plus(sigma.Traffic{Sent: sigma.Bytes(h.Sent), Received: sigma.Bytes(h.Received),
				Messages: h.Messages, Egress: sigma.Bytes(h.Egress), Ingress: sigma.Bytes(h.Ingress)})
		}
		if all != want || x.Totals()["a"] != want {
			t.Errorf("%s: the realm's are %+v and %+v, want %+v", when, all, x.Totals()["a"], want)
		}
	}
	is("by its meter", sigma.Traffic{Sent: 1000, Messages: 1})
	is("once", sigma.Traffic{Sent: 1000, Messages: 1})
	x.Crossed(now, "a", "p", 300, 20)
	is("of what it sent some left", sigma.Traffic{Sent: 1000, Received: 20, Messages: 1, Egress: 300, Ingress: 20})
	x.Crossed(now, "a", "p", 900, 0)
	is("more left than it says", sigma.Traffic{Sent: 1200, Received: 20, Messages: 1, Egress: 1200, Ingress: 20})
	if _, err := f.WriteAt(make([]byte, ring.MeterBytes), 0); err != nil {
		t.Fatal(err)
	}
	is("it takes back what it said", sigma.Traffic{Sent: 1200, Received: 20, Messages: 1, Egress: 1200, Ingress: 20})
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, ring.MeterBytes), 0); err != nil {
		t.Fatal(err)
	}
	if got := x.Look(now, "p"); got.Sent > 1200+2*carriedMost || got.Messages > 1+2*messagesMost || got.Egress != 1200 {
		t.Errorf("it says that it sent all: %+v", got)
	}
	last := x.End(now, "p")
	x.Crossed(now, "a", "p", 7, 1)
	if late != (sigma.Traffic{Egress: 7, Ingress: 1}) || x.Totals()["a"].Egress != last.Egress+7 {
		t.Errorf("after its end: %+v, %+v", late, x.Totals()["a"])
	}
	x.Crossed(now, sigma.SystemRealm, "s", 7, 1)
	x.Drop("a")
	if all := x.Totals(); len(all) != 0 {
		t.Errorf("left are %+v", all)
	}
}

// Goal: a TCP connection's bytes are counted without those of its set-up, as the kernel says at its
// end or before, and only forward.
func TestFlows(t *testing.T) {
	now := time.Now()
	x := newTestTraffic(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Write([]byte("set-up")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(a, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	f, err := a.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x.Follow("a", "p", f)
	var cookie uint64
	for cookie = range x.flows {
	}
	if len(x.flows) != 1 || x.flows[cookie].received != 6 || len(x.Some(now)) != 1 {
		t.Fatalf("followed are %+v", x.flows)
	}
	sent := x.flows[cookie].sent
	x.FlowNow(now, cookie, sent+10, 16, false)
	x.FlowNow(now, cookie, 0, 0, false)
	if got := x.Look(now, "p"); got.Egress != 10 || got.Ingress != 10 {
		t.Errorf("before its end: %+v", got)
	}
	x.FlowNow(now, cookie, sent+111, 17, true)
	x.FlowNow(now, cookie, sent+500, 500, true) // nobody's
	if got := x.Look(now, "p"); got.Egress != 110 || got.Ingress != 10 || len(x.flows) != 0 {
		t.Errorf("at its end: %+v, %d are followed", got, len(x.flows))
	}
	x.Follow("a", "p", f)
	x.Lost(now, cookie) // not accepted yet
	if len(x.Some(now.Add(flowLinger/2))) != 1 {
		t.Error("what the proc may still accept is not looked at")
	}
	x.FlowNow(now, cookie, 0, 0, false)
	if len(x.Some(now.Add(2*flowLinger))) != 1 {
		t.Error("what the proc has accepted is forgotten")
	}
	x.Lost(now, cookie)
	if x.Some(now.Add(2 * flowLinger)); len(x.flows) != 0 {
		t.Error("what the proc closed long ago is not forgotten")
	}
	x.Follow("a", "p", f)
	x.End(now, "p")
	x.Lost(now, cookie)
	if x.Some(now); len(x.flows) != 1 {
		t.Error("what the kernel may still tell of is forgotten")
	}
	if x.Some(now.Add(2 * flowLinger)); len(x.flows) != 0 {
		t.Error("what it will never tell of is not")
	}
}

// tcpEndMessage is what the kernel sends.
func tcpEndMessage(cookie, sent, received uint64) []byte {
	b := make([]byte, diagAttrs+4+infoAtLeast+8)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], diagType)
	binary.NativeEndian.PutUint64(b[diagCookie:], cookie)
	binary.NativeEndian.PutUint16(b[diagAttrs:], uint16(4+infoAtLeast+8))
	binary.NativeEndian.PutUint16(b[diagAttrs+2:], diagInfo)
	binary.NativeEndian.PutUint64(b[diagAttrs+4+infoAcked:], sent)
	binary.NativeEndian.PutUint64(b[diagAttrs+4+infoAcked+8:], received)
	return b
}

func FuzzParseEnd(f *testing.F) {
	good := tcpEndMessage(1, 2, 3)
	if e, err := ParseEnd(good); err != nil || e != (End{1, 2, 3}) {
		f.Fatalf("%+v, %v", e, err)
	}
	f.Add(good)
	f.Add(good[:diagAttrs+3])
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := ParseEnd(b); err != nil && (e.Sent != 0 || e.Received != 0) {
			t.Errorf("an error, and %+v", e)
		}
	})
}

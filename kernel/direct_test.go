package kernel

import (
	"context"
	"io"
	"net"
	"testing"

	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
)

// TestDirectService: what a machine serves directly is reached by another's sigmad and procs, each
// as who it is; what it does not serve is not supported, so that a link is used; an ended service
// gives its place back.
func TestDirectService(t *testing.T) {
	type asked struct {
		from sigma.Principal
		conn net.Conn
	}
	came := make(chan asked)
	serve := func(ctx context.Context, d link.Direct, conn *net.TCPConn) {
		came <- asked{d.From, conn}
		io.Copy(conn, conn)
	}
	w := newWorld(t, part{name: "m1", control: true, services: control.services, before: func(m *machine) {
		m.k.connect.Services["echo"] = serve
	}}, part{name: "m2"}, part{name: "m3", encrypt: true})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	to := link.Target{Kind: link.ToService, Name: "echo"}
	for _, who := range []sigma.Principal{{Realm: "default", Proc: "p"}, {Realm: "default", System: true}} {
		conn, err := m2.k.connect.DialDirect(ctx, who, "m1", to)
		if err != nil {
			t.Fatal(err)
		}
		if who.Machine = "m2"; (<-came).from != who {
			t.Errorf("it came as another than %+v", who)
		}
		conn.Write([]byte("question"))
		conn.CloseWrite()
		if b, err := io.ReadAll(conn); err != nil || string(b) != "question" {
			t.Errorf("got %q, %v", b, err)
		}
		conn.Close()
	}
	eventually(t, "the places are given back", func() bool { return m1.served("m2", "echo") == 0 })
	proc := sigma.Principal{Realm: "default", Proc: "p"}
	for name, c := range map[string]struct {
		who  sigma.Principal
		m    sigma.MachineID
		to   link.Target
		kind sigma.Kind
	}{
		"no such service": {proc, "m1", link.Target{Kind: link.ToService, Name: "named"},
			sigma.KindUnsupported},
		"a machine that encrypts": {proc, "m3", to, sigma.KindUnsupported},
		"nobody":                  {sigma.Principal{Realm: "default"}, "m1", to, sigma.KindPermission},
		"a proc of the system": {sigma.Principal{Realm: "default", Proc: "p", System: true}, "m1", to,
			sigma.KindPermission},
		"an unknown machine": {proc, "m7", to, sigma.KindNotFound},
	} {
		if conn, err := m2.k.connect.DialDirect(ctx, c.who, c.m, c.to); sigma.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				conn.Close()
			}
		}
	}
	if _, err := w.machines["m3"].k.connect.DialDirect(ctx, proc, "m1",
		to); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("from a machine that encrypts: %v", err)
	}
}

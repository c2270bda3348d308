package kernel

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// launched has the kernel take a proc for one that its launcher runs.
func (m *machine) launched(id sigma.ProcID, launch uint64) {
	m.k.procs.Step(schedd.Adopted{Info: sigma.ProcInfo{ID: id, Realm: "default"}, Launch: launch})
}

// TestCut: direct connections end when the roster says that the life of the other machine is over,
// and no others do; one that is made just then, too.
func TestCut(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"}, part{name: "m3"})
	m1, ctx := w.machines["m1"], t.Context()
	server := m1.proc(sigma.Principal{Realm: "default", Proc: "server"})
	m1.launched("server", 7)
	e := listen(t, server, sigma.FormStream)
	conns := map[sigma.MachineID]net.Conn{}
	for _, m := range []sigma.MachineID{"m2", "m3"} {
		id := "client-" + sigma.ProcID(m)
		w.machines[m].launched(id, 8)
		c, err := dialTo(ctx, w.machines[m].proc(sigma.Principal{Realm: "default", Proc: id}), e)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f, from := accept(t, server, e)
		if from.Machine != m {
			t.Errorf("%s dialled as %+v", m, from)
		}
		there, err := streamOf(f)
		if err != nil {
			t.Fatal(err)
		}
		defer there.Close()
		go io.Copy(there, there)
		conns[m] = c
	}
	w.lose("m2")
	conns["m2"].SetDeadline(time.Now().Add(10 * time.Second))
	if n, err := conns["m2"].Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection with a machine that is lost: %v", err)
	}
	conns["m3"].SetDeadline(time.Now().Add(10 * time.Second))
	conns["m3"].Write([]byte("?"))
	if n, err := conns["m3"].Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("a connection with another machine: %v", err)
	}
	eventually(t, "they are forgotten", func() bool {
		cs, _ := m1.k.proxy.Connections(func(c *dialproxy.Connection) bool { return c.Other.Machine == "m2" })
		return len(cs) == 0
	})
}

// TestRevokeLate: a connection that was taken back while it was under way to its procs is ended
// once they have it, however often other things have the kernel look at its connections meanwhile.
func TestRevokeLate(t *testing.T) {
	m := newWorld(t, control).machines["m1"]
	server := m.proc(sigma.Principal{Realm: "default", Proc: "server"})
	e := listen(t, server, sigma.FormStream)
	c, err := dialTo(t.Context(), m.proc(sigma.Principal{Realm: "default", Proc: "client"}), e)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, _ := accept(t, server, e)
	defer f.Close()
	if err := m.k.connect.Revoke(t.Context(), m.k.cluster.Provider(), e); err != nil {
		t.Fatal(err)
	}
	if n := len(m.k.proxy.Revoked()); n != 2 { // the launcher knows neither proc yet
		t.Fatalf("%d ends are under way", n)
	}
	busy := time.NewTicker(connect.RevokeAgain / 50)
	defer busy.Stop()
	for range 3 { // it has begun to look again
		<-busy.C
		m.k.connect.Recheck()
	}
	m.launched("server", 7)
	for late := time.After(10 * time.Second); len(m.k.proxy.Revoked()) > 0; {
		select {
		case <-busy.C:
			m.k.connect.Recheck()
		case <-late:
			t.Fatal("the connection goes on")
		}
	}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on: %v", err)
	}
}

//go:build system

package identity

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
)

// tryHellos is a member that says what it may not.
func (w *world) tryHellos() {
	p := w.join()
	say := func(change func(*hello)) func() error {
		return func() error {
			h := p.greets()
			change(&h)
			return w.say(p.certificate(), h)
		}
	}
	control := say(func(*hello) {})
	tenant := func(h *hello) {
		h.from = sigma.Principal{Realm: sigma.DefaultRealm, Proc: "aaaabbbbccccdddd", Machine: p.name}
	}
	for _, c := range []struct {
		what   string
		change func(*hello)
		want   string
	}{
		{"an older version", func(h *hello) { h.least, h.most = 0, 0 }, "versions 0 to 0"},
		{"a newer version", func(h *hello) { h.least, h.most = 2, 9 }, "versions 2 to 9"},
		{"a clock an hour ahead", func(h *hello) { h.clock = h.clock.Add(time.Hour) }, "differ by"},
		{"a clock an hour behind", func(h *hello) { h.clock = h.clock.Add(-time.Hour) }, "differ by"},
		{"on behalf of m2", func(h *hello) { h.from.Machine = "m2" }, "m2"},
		{"on behalf of m1 itself", func(h *hello) { h.from.Machine = "m1" }, "m1"},
		{"on behalf of nobody", func(h *hello) { h.from.System = false }, "nobody"},
		{"a proc of a tenant to machined", tenant, "a proc may not reach"},
		{"a proc of a tenant to named", func(h *hello) { tenant(h); h.name = "named" }, "a proc may not reach"},
		{"a proc of a tenant to another machine's sigmad as a peer", func(h *hello) {
			tenant(h)
			h.name = "peer"
		}, "a proc may not reach"},
		{"a proc of a tenant to etcd", func(h *hello) {
			tenant(h)
			h.kind, h.name = link.ToStream, "named"
		}, "a proc may not reach"},
		{"a proc of a tenant that beats", func(h *hello) { tenant(h); h.kind = link.ToBeat }, "a proc may not reach"},
		{"a proc that says it is the provider", func(h *hello) { tenant(h); h.from.System = true }, "nobody"},
		{"the provider to what no machine offers", func(h *hello) { h.name = "launcher" }, "machines have no"},
		{"the provider to another stream", func(h *hello) {
			h.kind, h.name = link.ToStream, "s3d"
		}, "machines have no"},
		{"a target of no kind", func(h *hello) { h.kind = 9 }, ""},
	} {
		w.try("a hello: "+c.what, control, say(c.change), c.want)
	}
}

// tryCalls is a member that asks m1's machined for what is another's.
func (w *world) tryCalls() {
	p, q := w.join(), w.join()
	ask := func(who *peer, f func(*machines.Client) error) func() error {
		return func() error { return who.machined(f) }
	}
	key, theirs := w.stolen()
	m2 := w.peer("m2", key, theirs)
	w.try("to renew m2's certificate", ask(p, func(c *machines.Client) error {
		return second(c.Renew(w.ctx, p.id.Self().Incarnation, publicOf(p.key)))
	}), ask(p, func(c *machines.Client) error {
		return second(c.Renew(w.ctx, m2.id.Self().Incarnation, publicOf(m2.key)))
	}), "is over")
	w.try("to have another key certified", ask(p, func(c *machines.Client) error {
		return second(c.Renew(w.ctx, p.id.Self().Incarnation, publicOf(p.key)))
	}), ask(p, func(c *machines.Client) error {
		return second(c.Renew(w.ctx, p.id.Self().Incarnation, publicOf(q.key)))
	}), "is over")
	w.try("to found the system again", ask(p, func(c *machines.Client) error {
		return second(c.List(w.ctx))
	}), ask(p, func(c *machines.Client) error {
		return second(c.Found(w.ctx, identity.Enrolment{Machine: "m1", Address: w.m1.Address()}, identity.NewKey()))
	}), "founded by its first machine")
	w.try("to have a machine's own machined certify another", ask(p, func(c *machines.Client) error {
		return second(c.List(w.ctx))
	}), ask(p, func(c *machines.Client) error {
		return second(c.Certify(w.ctx, p.id.Self(), publicOf(p.key)))
	}), "asks for a certificate of machine m1")
	w.try("the authority, by a machine without a part of the control plane", func() error {
		w.cli("machine", "control", string(q.name), "on")
		defer w.cli("machine", "control", string(q.name), "off")
		return q.machined(func(c *machines.Client) error { return second(c.Authority(w.ctx)) })
	}, ask(p, func(c *machines.Client) error { return second(c.Authority(w.ctx)) }), "is no control machine")
}

// tryOperator asks m1's sigmad, as root on m1 can, for what machined alone may have.
func (w *world) tryOperator() {
	c := w.m1.Connect(w.ctx, w.t, sigma.SystemRealm)
	call := func(method string) func() error {
		return func() error {
			f, _, err := c.Root().Walk(w.ctx, []string{sigma.NameSys, "machines"})
			if err != nil {
				return err
			}
			defer f.Close()
			return thirdOf(f.(sigma.Caller).Call(w.ctx, method, nil, nil))
		}
	}
	w.try("the authority, by an operator", call(machines.CallTokens.Name), call(machines.CallAuthority.Name),
		"no method")
	w.try("to beat for another machine, by an operator", call(machines.CallTokens.Name), call(machines.CallReport.Name),
		"no method")
	w.try("the state of the machines, by an operator", func() error {
		return second(c.ReadDir(w.ctx, "/sys"))
	}, func() error {
		_, _, err := c.Root().Walk(w.ctx, []string{"machines", "state"})
		return err
	}, "keeps no names")
}

func thirdOf[T, U any](_ T, _ U, err error) error { return err }

// tenantWords are what the tenant's program says of each of its attempts.
type tenantWords struct {
	What    string
	Control string // error of the control; "" = none
	Err     string // error of the attempt; "" = it succeeded
}

// tryTenant has a real proc of a tenant try to reach what decides about machines.
func (w *world) tryTenant() {
	c := w.m1.Connect(w.ctx, w.t, sigma.DefaultRealm)
	path := w.m1.Install(w.ctx, w.t, c, testenv.BuildGo(w.t, w.t.TempDir(), "testdata/tenant"))
	out, stderr, code := w.m1.CLI(w.t, "run", path, w.m1.Address())
	if code != 0 {
		w.t.Fatalf("the tenant's program: exit code %d\n%s%s", code, out, stderr)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines {
		var t tenantWords
		w.must(json.Unmarshal([]byte(line), &t))
		said := func(text string) func() error {
			return func() error {
				if text == "" {
					return nil
				}
				return fmt.Errorf("%s", text)
			}
		}
		w.try("a tenant's proc: "+t.What, said(t.Control), said(t.Err), "")
	}
	if len(lines) < 5 {
		w.t.Errorf("the tenant's program made %d attempts", len(lines))
	}
}

// tryStrangers says things to m1's port that are no link.
func (w *world) tryStrangers() {
	p := w.join()
	control := func() error { return w.say(p.certificate(), p.greets()) }
	// raw says text and succeeds if anything comes back that is more than an alert.
	raw := func(text []byte) func() error {
		return func() error {
			conn, err := w.connect(w.ctx, w.m1.Address())
			if err != nil {
				return err
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(30 * time.Second))
			conn.Write(text)
			got, err := io.ReadAll(io.LimitReader(conn, 1<<16))
			if len(got) > 7 { // a TLS alert has seven bytes
				return nil
			}
			return fmt.Errorf("closed after %x, %v", got, err)
		}
	}
	greeting, err := p.greets().payload()
	w.must(err)
	w.try("garbage", control, raw([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100))), "closed after")
	w.try("a hello without TLS", control, raw(append([]byte{byte(len(greeting)), byte(len(greeting) >> 8), 0, 0},
		greeting...)), "closed after")
	w.try("half handshakes that keep others out", control, func() error {
		var held []net.Conn
		defer func() {
			for _, c := range held {
				c.Close()
			}
		}()
		for range 400 {
			conn, err := w.connect(w.ctx, w.m1.Address())
			if err != nil {
				break
			}
			held = append(held, conn)
			conn.Write([]byte{22, 3, 1, 2, 0, 1}) // the beginning of a ClientHello
		}
		conn, err := w.m1.Net.Dial(w.ctx, "tcp", w.m1.Address()) // from another address than theirs
		if err != nil {
			return nil
		}
		if err := w.sayOver(conn, p.certificate(), p.greets()); err != nil {
			return nil // they kept it out
		}
		return fmt.Errorf("a member of another address was let in while %d half handshakes were held", len(held))
	}, "was let in")
	testenv.Eventually(w.t, "the half handshakes are over", control)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Words are what is said of an attempt.
type Words struct {
	What    string
	Control string // error of the control; "" = none
	Err     string // error of the attempt; "" = it succeeded
}

// env is what the test tells.
type env struct {
	Sibling, Other World // a proc of the same realm, and of another
	Here           bool  // this proc is on their machine
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// try makes each attempt after its control: the same with what is this realm's own.
func try(ctx context.Context, c *sdk.Client) error {
	var w env
	if err := json.Unmarshal([]byte(os.Getenv("WORLD")), &w); err != nil {
		return err
	}
	for _, x := range attempts(ctx, c, w) {
		control := x.control()
		if err := say(Words{x.what, text(control), text(x.try())}); err != nil {
			return err
		}
	}
	return nil
}

type attempt struct {
	what         string
	control, try func() error
}

func attempts(ctx context.Context, c *sdk.Client, w env) (all []attempt) {
	a := &prober{ctx, c, w}
	all = append(all, a.endpoints()...)
	all = append(all, a.listeners()...)
	all = append(all, a.identities()...)
	if w.Here {
		all = append(all, a.tickets()...)
	}
	return append(all, a.pools()...)
}

type prober struct {
	ctx context.Context
	c   *sdk.Client
	env
}

func (a *prober) dial(endpoint string, change func(*sigma.Endpoint)) error {
	e, err := sigma.ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	if change != nil {
		change(&e)
	}
	if e.Form == sigma.FormTree {
		s, err := a.c.DialTree(a.ctx, e)
		if err == nil {
			s.Close()
		}
		return err
	}
	conn, err := a.c.Dial(a.ctx, e)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1)) // it was accepted
	return err
}

func (a *prober) endpoints() (all []attempt) {
	stream := func() error { return a.dial(a.Sibling.Stream, nil) }
	tree := func() error { return a.dial(a.Sibling.Tree, nil) }
	own, err := sigma.ParseEndpoint(a.Sibling.Stream)
	add := func(what string, control func() error, endpoint string, change func(*sigma.Endpoint)) {
		all = append(all, attempt{"dial " + what, control, func() error {
			if err != nil {
				return err
			}
			return a.dial(endpoint, change)
		}})
	}
	add("another realm's endpoint", stream, a.Other.Stream, nil)
	add("another realm's tree", tree, a.Other.Tree, nil)
	add("it as one's own realm's", stream, a.Other.Stream, func(e *sigma.Endpoint) { e.Realm = own.Realm })
	add("its tree as one's own realm's", tree, a.Other.Tree, func(e *sigma.Endpoint) { e.Realm = own.Realm })
	add("it as the system's", stream, a.Other.Stream, func(e *sigma.Endpoint) { e.Realm = sigma.SystemRealm })
	add("it as a sibling's", stream, a.Other.Stream, func(e *sigma.Endpoint) { e.Realm, e.Proc = own.Realm, own.Proc })
	add("it as one's own", stream, a.Other.Stream, func(e *sigma.Endpoint) {
		e.Realm, e.Proc = own.Realm, a.c.Info().Principal.Proc
	})
	add("it as a tree", stream, a.Other.Stream, func(e *sigma.Endpoint) { e.Form = sigma.FormTree })
	add("its tree as a stream", tree, a.Other.Tree, func(e *sigma.Endpoint) { e.Form = sigma.FormStream })
	add("it on a machine that does not exist", stream, a.Other.Stream, func(e *sigma.Endpoint) {
		e.Realm, e.Machine = own.Realm, "m9"
	})
	add("a guessed endpoint of its proc", stream, a.Other.Stream, func(e *sigma.Endpoint) {
		e.Realm, e.ID = own.Realm, "AAAAAAAAAAAAAAAAAAAAAA"
	})
	add("an endpoint without a number", stream, a.Other.Stream, func(e *sigma.Endpoint) {
		e.Realm, e.ID = own.Realm, ""
	})
	add("with a realm that goes up", stream, a.Other.Stream, func(e *sigma.Endpoint) { e.Realm = "../" + e.Realm })
	add("with both realms", stream, a.Other.Stream, func(e *sigma.Endpoint) { e.Realm = own.Realm + " " + e.Realm })
	add("an endpoint whose listener was closed", stream, a.Sibling.Closed, nil)
	add("a closed endpoint with another's number", stream, a.Sibling.Closed, func(e *sigma.Endpoint) {
		e.ID = idOf(a.Other.Stream)
	})
	publish := func(name, endpoint string, use func(path string) error) func() error {
		return func() error {
			path := "/isolation-" + name + "-" + string(a.c.Info().Principal.Proc)
			if _, err := a.c.Put(a.ctx, path, []byte(endpoint),
				sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
				return err
			}
			defer a.c.Remove(a.ctx, path)
			return use(path)
		}
	}
	byPath := func(path string) error {
		conn, err := a.c.DialPath(a.ctx, path)
		if err == nil {
			conn.Close()
		}
		return err
	}
	walk := func(path string) error { _, err := a.c.ReadDir(a.ctx, path); return err }
	byDialer := func(path string) error {
		conn, err := a.c.Dialer(path).DialContext(a.ctx, "", "")
		if err == nil {
			conn.Close()
		}
		return err
	}
	return append(all,
		attempt{"dial another realm's endpoint by a name of one's own", publish("own", a.Sibling.Stream, byPath),
			publish("theirs", a.Other.Stream, byPath)},
		attempt{"dial it by a Dialer", publish("own", a.Sibling.Stream, byDialer), publish("theirs", a.Other.Stream,
			byDialer)},
		attempt{"walk through another realm's tree", publish("own", a.Sibling.Tree, walk),
			publish("theirs", a.Other.Tree, walk)})
}

func idOf(endpoint string) sigma.EndpointID {
	e, _ := sigma.ParseEndpoint(endpoint)
	return e.ID
}

// listeners takes over listeners. The controls are made with one of this proc's own.
func (a *prober) listeners() (all []attempt) {
	on := func(method string, id sigma.EndpointID) error {
		_, err := call(a.ctx, a.c, method, func(c *sigmap.Coder) { c.Str((*string)(&id)) })
		return err
	}
	mine := func(method string) func() error {
		return func() error {
			form := sigma.FormStream // without a socket, so that it can be accepted by a call
			var e sigma.Endpoint
			reply, err := call(a.ctx, a.c, sigmap.CallListen.Name, func(c *sigmap.Coder) { c.Str((*string)(&form)) })
			if err == nil {
				err = sigmap.Parse(reply, func(c *sigmap.Coder) { c.Endpoint(&e) })
			}
			if err != nil {
				return err
			}
			if _, err := call(a.ctx, a.c, sigmap.CallDial.Name, func(c *sigmap.Coder) {
				c.Endpoint(&e)
			}); err != nil { // somebody waits there
				return err
			}
			return on(method, e.ID)
		}
	}
	for what, endpoint := range map[string]string{"another realm's": a.Other.Stream,
		"another realm's tree's": a.Other.Tree, "a sibling's": a.Sibling.Stream} {
		for _, method := range []string{sigmap.CallAccept.Name, sigmap.CallClose.Name} {
			all = append(all, attempt{method + " at " + what + " listener", mine(method), func() error {
				return on(method, idOf(endpoint))
			}})
		}
	}
	return append(all, attempt{"accept at a listener that was closed", mine(sigmap.CallAccept.Name), func() error {
		return on(sigmap.CallAccept.Name, idOf(a.Sibling.Closed))
	}})
}

var errOneself = errors.New("it was taken for what it is")

// identities has this proc be somebody else by what it says.
func (a *prober) identities() (all []attempt) {
	own, err := sigma.ParseEndpoint(a.Sibling.Stream)
	me := a.c.Info().Principal
	// taken dials and succeeds if the listener takes it for another than it is.
	taken := func(as func(realm, proc, system string) bool) error {
		conn, err := a.c.Dial(a.ctx, own)
		if err != nil {
			return err
		}
		defer conn.Close()
		var realm, proc, system string
		if _, err := fmt.Fscan(conn, &realm, &proc, &system); err != nil {
			return err
		}
		if !as(realm, proc, system) {
			return errOneself
		}
		return nil
	}
	isMe := func(realm, proc, system string) bool {
		return realm == string(me.Realm) && proc == string(me.Proc) && system == "false"
	}
	control := func() error {
		if err != nil {
			return err
		}
		return taken(isMe)
	}
	all = append(all, attempt{"be taken for another", control, func() error {
		return taken(func(r, p, s string) bool { return !isMe(r, p, s) })
	}})
	// claim sends what a set-up message of another principal would have.
	claim := func(p sigma.Principal) func() error {
		return func() error {
			rings := true
			_, err := call(a.ctx, a.c, sigmap.CallDial.Name, func(c *sigmap.Coder) {
				c.Endpoint(&own)
				c.Bool(&rings)
				c.Principal(&p)
			})
			return err
		}
	}
	plain := func() error {
		_, err := call(a.ctx, a.c, sigmap.CallDial.Name, func(c *sigmap.Coder) { c.Endpoint(&own) })
		return err
	}
	for what, p := range map[string]sigma.Principal{
		"the provider":                {Realm: me.Realm, Machine: me.Machine, System: true},
		"a proc of another realm":     {Realm: a.Other.Realm, Proc: a.Other.Proc, Machine: me.Machine},
		"a sibling":                   {Realm: me.Realm, Proc: a.Sibling.Proc, Machine: me.Machine},
		"itself, on another machine ": {Realm: me.Realm, Proc: me.Proc, Machine: "m9"},
	} {
		all = append(all, attempt{"claim in a set-up message to be " + what, plain, claim(p)})
	}
	listen := func(more func(*sigmap.Coder)) func() error {
		return func() error {
			form := sigma.FormStream
			_, err := call(a.ctx, a.c, sigmap.CallListen.Name, func(c *sigmap.Coder) {
				if c.Str((*string)(&form)); more != nil {
					more(c)
				}
			})
			return err
		}
	}
	return append(all, attempt{"listen for another", listen(nil), listen(func(c *sigmap.Coder) {
		c.Principal(&sigma.Principal{Realm: a.Other.Realm, Proc: a.Other.Proc})
	})})
}

// tickets asks for the memory of others' connections.
func (a *prober) tickets() (all []attempt) {
	own := func() (string, error) { return ticketOf(a.ctx, a.c, a.Sibling.Stream) }
	ring := func(method, ticket string) error {
		_, err := call(a.ctx, a.c, method, func(c *sigmap.Coder) { c.Str(&ticket) })
		return err
	}
	control := func(methods ...string) func() error {
		return func() error {
			t, err := own()
			for _, method := range methods {
				if err == nil {
					err = ring(method, t)
				}
				if sigma.KindOf(err) == sigma.KindExists { // it came with the connection
					err = nil
				}
			}
			return err
		}
	}
	changed := func(f func(string) string) func() error {
		return func() error {
			t, err := own()
			if err != nil {
				return err
			}
			return ring(sigmap.CallRing.Name, f(t))
		}
	}
	memory, end := control(sigmap.CallRing.Name), control(sigmap.CallRing.Name, sigmap.CallEndRing.Name)
	return append(all,
		attempt{"the memory of another realm's connection", memory, func() error {
			return ring(sigmap.CallRing.Name, string(a.Other.Ticket))
		}},
		attempt{"the memory of siblings' connection", memory, func() error {
			return ring(sigmap.CallRing.Name, string(a.Sibling.Ticket))
		}},
		attempt{"to end the memory of another realm's connection", end, func() error {
			return ring(sigmap.CallEndRing.Name, string(a.Other.Ticket))
		}},
		attempt{"to end the memory of siblings' connection", end, func() error {
			return ring(sigmap.CallEndRing.Name, string(a.Sibling.Ticket))
		}},
		attempt{"memory by a ticket that names another realm", memory, changed(func(t string) string {
			return strings.Replace(t, string(a.Sibling.Realm), string(a.Other.Realm), 1)
		})},
		attempt{"memory by a ticket that names this proc in place of another", memory, func() error {
			me := string(a.c.Info().Principal.Proc)
			t := string(a.Sibling.Ticket)
			return ring(sigmap.CallRing.Name, strings.Replace(t, string(a.Sibling.Proc), me, 1))
		}},
		attempt{"memory by a ticket with another number", memory, changed(func(t string) string {
			b := []byte(t)
			b[16]++
			return string(b)
		})},
		attempt{"memory by a ticket without its proof", memory, changed(func(t string) string {
			return strings.Repeat("\x00", 16) + t[16:]
		})},
		attempt{"memory by the proof of another's ticket", memory, changed(func(t string) string {
			return string(a.Other.Ticket[:16]) + t[16:]
		})},
		attempt{"memory by half a ticket", memory, changed(func(t string) string { return t[:len(t)/2] })},
		attempt{"memory by no ticket", memory, func() error { return ring(sigmap.CallRing.Name, "") }},
		attempt{"the same memory again, by a ticket that was used", memory, func() error {
			t, err := own()
			if err == nil {
				err = ring(sigmap.CallRing.Name, t)
			}
			if err != nil {
				return err
			}
			return ring(sigmap.CallRing.Name, t)
		}})
}

// pools has connections made in advance where none may be, and uses those that may be for what they
// are not.
func (a *prober) pools() (all []attempt) {
	own, err := sigma.ParseEndpoint(a.Sibling.Stream)
	if err != nil {
		return nil
	}
	// cool dials until memory comes with no dial any more; before, nothing is made in advance.
	cool := func() {
		for i := 0; i < 20 && a.Here; i++ { // with another machine there is none
			call(a.ctx, a.c, sigmap.CallDial.Name, func(c *sigmap.Coder) { c.Endpoint(&own) })
		}
	}
	// pool asks again while the listener has not taken what was dialled before.
	pool := func(e *sigma.Endpoint, count uint32) (grant sigmap.PoolGrant, err error) {
		for range 500 {
			var reply []byte
			reply, err = call(a.ctx, a.c, sigmap.CallPool.Name, func(c *sigmap.Coder) {
				c.PoolAsk(&sigmap.PoolAsk{Endpoint: *e, Count: count})
			})
			if err == nil {
				return grant, sigmap.Parse(reply, func(c *sigmap.Coder) { c.PoolGrant(&grant) })
			} else if sigma.KindOf(err) != sigma.KindBusy {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		return grant, err
	}
	ask := func(endpoint string, change func(*sigma.Endpoint)) func() error {
		return func() error {
			cool()
			e, err := sigma.ParseEndpoint(endpoint)
			if err != nil {
				return err
			}
			if change != nil {
				change(&e)
			}
			grant, err := pool(&e, 2)
			if err != nil {
				return err
			}
			defer call(a.ctx, a.c, sigmap.CallPool.Name, func(c *sigmap.Coder) {
				c.PoolAsk(&sigmap.PoolAsk{Endpoint: e, Over: true})
			})
			if len(grant.Tickets) == 0 {
				return errors.New("none were made")
			}
			return nil
		}
	}
	control := ask(a.Sibling.Stream, nil)
	add := func(what, endpoint string, change func(*sigma.Endpoint)) {
		all = append(all, attempt{"connections in advance " + what, control, ask(endpoint, change)})
	}
	add("with another realm's endpoint", a.Other.Stream, nil)
	add("with it as one's own realm's", a.Other.Stream, func(e *sigma.Endpoint) { e.Realm = own.Realm })
	add("with it as a sibling's", a.Other.Stream, func(e *sigma.Endpoint) { e.Realm, e.Proc = own.Realm, own.Proc })
	add("with another realm's tree", a.Other.Tree, nil)
	add("with its tree as a stream", a.Other.Tree, func(e *sigma.Endpoint) { e.Form = sigma.FormStream })
	add("with a guessed endpoint", a.Other.Stream, func(e *sigma.Endpoint) {
		e.Realm, e.ID = own.Realm, "AAAAAAAAAAAAAAAAAAAAAA"
	})
	add("with a listener that was closed", a.Sibling.Closed, nil)
	add("with a closed endpoint and another's number", a.Sibling.Closed, func(e *sigma.Endpoint) {
		e.ID = idOf(a.Other.Stream)
	})
	// often dials so often that most connections were made in advance, and looks whom the listener
	// takes it for.
	me := a.c.Info().Principal
	often := func(wrong bool) func() error {
		return func() error {
			cool()
			for range 200 {
				conn, err := a.c.Dial(a.ctx, own)
				if err != nil {
					return err
				}
				var realm, proc, system string
				_, err = fmt.Fscan(conn, &realm, &proc, &system)
				conn.Close()
				if err != nil {
					return err
				}
				if realm == string(me.Realm) && proc == string(me.Proc) && system == "false" {
					continue
				}
				if wrong {
					return nil
				}
				return errors.New("it was taken for another")
			}
			if wrong {
				return errOneself
			}
			return nil
		}
	}
	all = append(all, attempt{"be taken for another by a connection made in advance", often(false), often(true)})
	if !a.Here {
		return all
	}
	ticket := func(t func() string) func() error {
		return func() error {
			_, err := call(a.ctx, a.c, sigmap.CallRing.Name, func(c *sigmap.Coder) { s := t(); c.Str(&s) })
			return err
		}
	}
	created := func() string {
		cool()
		grant, err := pool(&own, 1)
		if err != nil || len(grant.Tickets) == 0 {
			return ""
		}
		return grant.Tickets[0]
	}
	return append(all,
		attempt{"memory by the ticket of a connection made in advance, with another's realm", ticket(created),
			ticket(func() string {
				return strings.Replace(created(), string(me.Realm), string(a.Other.Realm), 1)
			})},
		attempt{"memory by one with another number", ticket(created), ticket(func() string {
			b := []byte(created())
			if len(b) > 16 {
				b[16]++
			}
			return string(b)
		})})
}

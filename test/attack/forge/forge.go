// Package forge attacks sigmaOS from inside a proc by sigmaP: it asks for what belongs to others,
// with names, numbers and messages that were made up.
//
// Attempts are data, so that the same function runs as a proc, where it must fail, and as somebody
// who may, where it must succeed. Users: the attack suite and its program forger.
package forge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// World is what an attacker has learnt about somebody else. To know it must not be enough.
type World struct {
	Realm    sigma.RealmID
	Proc     sigma.ProcID
	Endpoint string
	Lease    sigma.LeaseID
	Secret   string // what its files hold
	Spare    sigma.RealmID
}

// Paths where a World keeps its secret.
const (
	Dir    = "/held"
	Names  = "/held/secret"
	UX     = "/ux/~local/held"
	Bucket = "/s3/held"
	Object = "/s3/held/secret"
)

// Env is what an attempt works with.
type Env struct {
	C       *sdk.Client `json:"-"`
	Other   World       // a proc of another realm
	Sibling World       // a proc of the same realm

	store *session.Client // dialled once
}

// Attempt is one thing to try.
type Attempt struct {
	Name    string
	Attempt string // what this belongs to: the same done with other names and numbers is one attempt
	Asset   string // what it goes for
	// Try returns nil if it got what it must not have.
	Try func(ctx context.Context, e *Env) error
	// Own is the positive control by the same proc: the same with what is its own. nil: the control
	// is Try by the provider, connected to the other realm.
	Own func(ctx context.Context, e *Env) error
	// Uncontrolled: its control would end the test.
	Uncontrolled bool
	// Last attempts end the other proc, so their controls come last, in order.
	Last bool
}

// errNothing says that the answer was not what the attempt was after.
var errNothing = errors.New("got nothing of the others'")

// All lists the attempts.
func All() []Attempt {
	all := slices.Concat(procs(), endpoints(), listeners(), provider(), leases(), secrets(), names(), links(), places(),
		spawns(), databases(), scratch())
	for i, a := range all {
		for _, g := range groups() {
			if a.Attempt == "" && strings.HasPrefix(a.Name, g.prefix) && strings.Contains(a.Name, g.part) {
				all[i].Attempt, all[i].Asset = g.attempt, g.asset
				break
			}
		}
	}
	return all
}

type group struct{ prefix, part, attempt, asset string }

// groups says by their names which of the Attempts are one; the first that fits counts.
func groups() []group {
	const procs, theirs, rights, system, host, machine = "procs of another realm", "endpoints of others",
		"the provider's rights", "the system's names", "files of the host", "memory of the machine"
	return []group{
		{"list ", "procs", "list another realm's procs", procs},
		{"wait for the ", "", "wait for another realm's proc", procs},
		{"status of", "", "read what another realm's proc says", procs},
		{"output of", "", "read what another realm's proc says", procs},
		{"errors of", "", "read what another realm's proc says", procs},
		{"evict ", "", "end another realm's proc", procs},
		{"kill ", "", "end another realm's proc", procs},
		{"dial another realm's", "", "dial another realm's endpoint", theirs},
		{"publish and dial", "", "dial another realm's endpoint by a name of one's own", theirs},
		{"dial a service", "", "guess a service's endpoint", theirs},
		{"dial the store", "", "dial a service as what it is not", theirs},
		{"", "a sibling's listener", "take over a sibling's listener", theirs},
		{"", "another realm's listener", "take over another realm's listener", theirs},
		{"listen at the endpoint", "", "listen at another's endpoint", theirs},
		{"dial the dead", "", "dial an endpoint of the dead", theirs},
		{"accept what waits", "", "accept another's waiting connection", theirs},
		{"guess an endpoint", "", "guess an endpoint", theirs},
		{"list the realms", "", "manage realms", rights},
		{"make a realm", "", "manage realms", rights},
		{"remove another realm", "", "remove another realm", rights},
		{"ask what", "", "ask about the machine", rights},
		{"read the machine's", "", "ask about the machine", rights},
		{"list the object stores", "", "learn where objects are kept", rights},
		{"set where", "", "set where objects and databases are kept", rights},
		{"connect to", "a service of the system's", "connect to servers outside as a service", "networks"},
		{"stop the machine", "", "stop the machine", "the machine's life"},
		{"become the provider", "", "become the provider", "identity"},
		{"", "another realm's lease", "use another realm's lease", "names of another realm"},
		{"another realm's database", "", "read another realm's databases", "files of another realm"},
		{"make a database", "", "have the machine connect elsewhere", rights},
		{"publish a scratch file", "", "change a file after it was published", "files that others read"},
		{"another realm's secret", "", "read another realm's files", "files of another realm"},
		{"attach to the store", "", "attach to another realm's objects", "files of another realm"},
		{"a link to", "by path", "read the host by a link", host},
		{"a link to", "by its handle", "read the host by the handle of a link", host},
		{"nothing in place", "", "remove a name of the system", system},
		{"a renamed file in", "", "rename onto a name of the system", system},
		{"a file renamed", "", "rename onto a name of the system", system},
		{"", " in place of ", "replace a name of the system", system},
		{"write its own status", "", "write its own status", system},
		{"spawn a latency-critical", "", "take more cores than there are", "processor time"},
		{"spawn with more memory", "", "take more memory than there is", machine},
		{"spawn with an argument of two", "", "hide an argument behind a NUL", "its child's arguments"},
		{"spawn with huge", "", "spawn with huge arguments or environment", machine},
		{"spawn ", "", "spawn a program of the host", "programs that may run"},
		{"", " in ", "leave a directory by a name that means something to a file system", host},
	}
}

func procs() []Attempt {
	of := func(e *Env) sigma.ProcID { return e.Other.Proc }
	read := func(file string) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error {
			_, _, err := e.C.Get(ctx, sigma.JoinPath("proc", string(of(e)), file))
			return err
		}
	}
	list := func(all bool) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error {
			ps, err := e.C.List(ctx, all)
			if err == nil && !slices.ContainsFunc(ps, func(p sigma.ProcInfo) bool { return p.ID == of(e) }) {
				err = errNothing
			}
			return err
		}
	}
	return []Attempt{
		{Name: "list another realm's procs", Try: list(false)},
		{Name: "list all of another realm's procs", Try: list(true)},
		{Name: "wait for the start of another realm's proc", Try: func(ctx context.Context, e *Env) error {
			return e.C.WaitStart(ctx, of(e))
		}},
		{Name: "status of another realm's proc", Try: read("status")},
		{Name: "output of another realm's proc", Try: read("stdout")},
		{Name: "errors of another realm's proc", Try: read("stderr")},
		{Name: "evict another realm's proc", Try: func(ctx context.Context, e *Env) error {
			return e.C.Evict(ctx, of(e), 0)
		}, Last: true},
		{Name: "kill another realm's proc", Try: func(ctx context.Context, e *Env) error {
			return e.C.Kill(ctx, of(e))
		}, Last: true},
		{Name: "wait for the end of another realm's proc", Try: func(ctx context.Context, e *Env) error {
			_, err := e.C.WaitExit(ctx, of(e))
			return err
		}, Last: true},
	}
}

func dial(ctx context.Context, c *sdk.Client, text string, change func(*sigma.Endpoint)) error {
	ep, err := sigma.ParseEndpoint(text)
	if err != nil {
		return err
	}
	change(&ep)
	conn, err := c.Dial(ctx, ep)
	if err == nil {
		conn.Close()
	}
	return err
}

// onEndpoints calls a method about an endpoint's number.
func onEndpoints(ctx context.Context, e *Env, method, endpoint string) error {
	ep, err := sigma.ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.Str((*string)(&ep.ID)) })
	if err != nil {
		return err
	}
	_, err = e.C.Call(ctx, "/sys/endpoints", method, payload)
	return err
}

func endpoints() []Attempt {
	change := func(f func(*Env, *sigma.Endpoint)) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error {
			return dial(ctx, e.C, e.Other.Endpoint, func(ep *sigma.Endpoint) { f(e, ep) })
		}
	}
	dialSibling := func(ctx context.Context, e *Env) error {
		return dial(ctx, e.C, e.Sibling.Endpoint, func(*sigma.Endpoint) {})
	}
	dialStore := func(ctx context.Context, e *Env, f func(*sigma.Endpoint)) error {
		text, err := e.C.ReadLink(ctx, "/s3")
		if err != nil {
			return err
		}
		return dial(ctx, e.C, text, f)
	}
	store := func(f func(*Env, *sigma.Endpoint)) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error {
			return dialStore(ctx, e, func(ep *sigma.Endpoint) { f(e, ep) })
		}
	}
	storeItself := store(func(*Env, *sigma.Endpoint) {})
	through := func(text func(*Env) string) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error {
			if _, err := e.C.Put(ctx, "/stolen", []byte(text(e)),
				sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
				return err
			}
			conn, err := e.C.DialPath(ctx, "/stolen")
			if err == nil {
				conn.Close()
			}
			return err
		}
	}
	mine := func(method string) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error {
			ep, err := Bare(ctx, e.C, "")
			if err != nil {
				return err
			}
			if err := dial(ctx, e.C, ep.String(), func(*sigma.Endpoint) {}); err != nil {
				return err
			}
			return onEndpoints(ctx, e, method, ep.String())
		}
	}
	return []Attempt{
		{Name: "dial another realm's endpoint", Try: change(func(*Env, *sigma.Endpoint) {})},
		{Name: "dial another realm's endpoint as one's own", Try: change(func(e *Env, ep *sigma.Endpoint) {
			ep.Realm = e.Sibling.Realm
		}), Own: dialSibling},
		{Name: "dial another realm's endpoint as the system's", Try: change(func(_ *Env, ep *sigma.Endpoint) {
			ep.Realm = sigma.SystemRealm
		}), Own: dialSibling},
		{Name: "dial another realm's endpoint as a sibling's", Try: change(func(e *Env, ep *sigma.Endpoint) {
			ep.Realm, ep.Proc = e.Sibling.Realm, e.Sibling.Proc
		}), Own: dialSibling},
		{Name: "publish and dial another realm's endpoint", Try: through(func(e *Env) string {
			return e.Other.Endpoint
		}), Own: through(func(e *Env) string { return e.Sibling.Endpoint })},
		{Name: "dial a service by its proc", Try: store(func(_ *Env, ep *sigma.Endpoint) {
			ep.ID = "AAAAAAAAAAAAAAAAAAAAAA"
		}), Own: storeItself},
		{Name: "dial the store as its own", Try: store(func(e *Env, ep *sigma.Endpoint) {
			ep.Realm = e.Sibling.Realm
		}), Own: storeItself},
		{Name: "dial the store as bytes", Try: store(func(_ *Env, ep *sigma.Endpoint) {
			ep.Form = sigma.FormStream
		}), Own: storeItself},
		{Name: "accept at a sibling's listener", Try: func(ctx context.Context, e *Env) error {
			return onEndpoints(ctx, e, sigmap.CallAccept.Name, e.Sibling.Endpoint)
		}, Own: mine(sigmap.CallAccept.Name)},
		{Name: "close a sibling's listener", Try: func(ctx context.Context, e *Env) error {
			return onEndpoints(ctx, e, sigmap.CallClose.Name, e.Sibling.Endpoint)
		}, Own: mine(sigmap.CallClose.Name)},
		{Name: "accept at another realm's listener", Try: func(ctx context.Context, e *Env) error {
			return onEndpoints(ctx, e, sigmap.CallAccept.Name, e.Other.Endpoint)
		}, Own: mine(sigmap.CallAccept.Name)},
		{Name: "close another realm's listener", Try: func(ctx context.Context, e *Env) error {
			return onEndpoints(ctx, e, sigmap.CallClose.Name, e.Other.Endpoint)
		}, Own: mine(sigmap.CallClose.Name)},
	}
}

func provider() []Attempt {
	return []Attempt{
		{Name: "list the realms", Try: func(ctx context.Context, e *Env) error {
			_, err := e.C.Realms().List(ctx)
			return err
		}},
		{Name: "make a realm", Try: func(ctx context.Context, e *Env) error {
			return e.C.Realms().Create(ctx, "conquered")
		}},
		{Name: "remove another realm", Try: func(ctx context.Context, e *Env) error {
			return e.C.Realms().Remove(ctx, e.Other.Spare)
		}},
		{Name: "ask what runs on the machine", Try: func(ctx context.Context, e *Env) error {
			_, err := e.C.Services(ctx)
			return err
		}},
		{Name: "read the machine's metrics", Try: func(ctx context.Context, e *Env) error {
			_, _, err := e.C.Get(ctx, "/sys/metrics")
			return err
		}},
		{Name: "list the object stores", Try: func(ctx context.Context, e *Env) error {
			_, err := e.C.Stores(ctx, "", false)
			return err
		}},
		{Name: "set where another realm's objects are", Try: func(ctx context.Context, e *Env) error {
			return setStore(ctx, e, e.Other.Realm)
		}},
		{Name: "set where all realms' objects are", Try: func(ctx context.Context, e *Env) error {
			return setStore(ctx, e, sigma.SystemRealm)
		}},
		{Name: "set where another realm's database is", Try: func(ctx context.Context, e *Env) error {
			return e.C.SetServer(ctx, e.Other.Realm, "stolen", "127.0.0.1:1")
		}},
		{Name: "connect to a store as a service of the system's", Uncontrolled: true, Try: func(ctx context.Context,
			e *Env) error { // by name: the provider is no service either
			conn, err := e.C.DialStore(ctx, e.Other.Realm)
			if err == nil {
				conn.Close()
			}
			return err
		}},
		{Name: "stop the machine", Try: func(ctx context.Context, e *Env) error { return e.C.Down(ctx, true) },
			Uncontrolled: true}, // that the method works is shown by every sigma down
		{Name: "become the provider by what is said", Try: func(ctx context.Context, e *Env) error {
			if !e.C.Info().Principal.System {
				return errNothing
			}
			return nil
		}},
	}
}

// setStore has a store forgotten. That none is set is said to who may only.
func setStore(ctx context.Context, e *Env, realm sigma.RealmID) error {
	err := e.C.SetStore(ctx, realm, "", nil)
	if sigma.KindOf(err) == sigma.KindNotFound {
		return nil
	}
	return err
}

func leases() []Attempt {
	on := func(f func(sigma.Leaser, context.Context, sigma.LeaseID) error) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error { return f(e.C.Root().(sigma.Leaser), ctx, e.Other.Lease) }
	}
	return []Attempt{
		{Name: "renew another realm's lease", Try: on(sigma.Leaser.Renew)},
		{Name: "end another realm's lease", Try: on(sigma.Leaser.Revoke)},
	}
}

// secrets are read by every way that is said to lead to them. The provider reads them by the same
// path in the other realm.
func secrets() []Attempt {
	var out []Attempt
	for _, path := range []string{Names, UX + "/secret", Object} {
		out = append(out, Attempt{Name: "another realm's secret by " + path, Try: func(ctx context.Context,
			e *Env) error {
			return isSecret(ctx, e, path)
		}})
	}
	for _, name := range []string{"%s", "%s\x00", "../%s", "default/../%s", "/%s", "system"} {
		out = append(out, Attempt{Name: fmt.Sprintf("attach to the store as %q", name), Own: storeOfOwn,
			Try: func(ctx context.Context, e *Env) error {
				return attachStore(ctx, e, strings.ReplaceAll(name, "%s", string(e.Other.Realm)))
			}})
	}
	out[3].Own = nil // as written, the provider may
	return out
}

func isSecret(ctx context.Context, e *Env, path string) error {
	b, _, err := e.C.Get(ctx, path)
	if err == nil && string(b) != e.Other.Secret {
		err = errNothing
	}
	return err
}

func attachStore(ctx context.Context, e *Env, name string) error {
	text, err := e.C.ReadLink(ctx, "/s3")
	if err != nil {
		return err
	}
	ep, err := sigma.ParseEndpoint(text)
	if err != nil {
		return err
	}
	s, err := e.C.DialTree(ctx, ep)
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Attach(ctx, name)
	return err
}

func storeOfOwn(ctx context.Context, e *Env) error { return attachStore(ctx, e, "") }

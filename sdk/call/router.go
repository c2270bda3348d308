package call

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

const (
	// hopsMax bounds the members that one call is sent to. With the pauses between them it is some
	// six seconds of members that do not agree, which is longer than the lease of one that died.
	hopsMax = 32
	// hopPauseMost bounds the pause before a call is sent on. It is 1 ms after the third member,
	// and doubles: members learn at different moments of keys that move.
	hopPauseMost = 250 * time.Millisecond
	// ownersMax bounds the keys whose owner is remembered, and keyMax the bytes of a key.
	ownersMax = 8192
	keyMax    = 256
)

// Find gives a member of a service, and how to connect to it: the member of that name, KindNotFound
// if there is none, or if no name is given the one that the service's policy chooses for a key.
// sdk.Dialer.Find is one.
type Find func(ctx context.Context, member, key string) (name string, dial func(context.Context) (net.Conn, error),
	err error)

// Router sends each call to the member of a service that owns the call's key. It learns who that is
// from the verdicts of members: a call whose owner is not known goes to the member that the policy
// chooses, and from there, at most 31 times, to the one that a redirection names. It forgets a
// member that cannot be reached. It keeps a connection to each member. Safe for concurrent use.
type Router struct {
	find  Find
	cfg   Config
	stats stats

	fellows
	owners map[string]string // mu; members that own keys, by key
}

// NewRouter makes a Router. It starts nothing. Close it.
func NewRouter(find Find, cfg Config) *Router {
	return &Router{find: find, cfg: cfg.filled(), fellows: fellows{known: map[string]*fellow{}},
		owners: map[string]string{}}
}

// Stats tells of each method that was called, by all members together. A call counts once, wherever
// it was sent on to.
func (r *Router) Stats() []MethodStats { return r.stats.snapshot() }

// Owner tells which member is known to own a key; "" = none.
func (r *Router) Owner(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owners[key]
}

// Call makes a unary call to the owner of a key, as Client.Call does. key names what members own as
// a whole, so that there are thousands at most: a range of keys by its number, for instance.
// KindLoop: the members redirect the call again and again.
func (r *Router) Call(ctx context.Context, m *Method, key string, arg, reply []byte) ([]byte, error) {
	of := r.stats.of(m.Name)
	began := time.Now()
	to := errand{m: m, key: key, arg: arg, of: of}
	out, how, err := r.route(ctx, &to, reply)
	if _, redirected := Owner(err); how.owner != "" && !redirected {
		of.forwarded.Add(1)
		r.learn(key, how.owner)
	}
	of.count(time.Since(began), len(arg), len(out)-len(reply), err)
	if err != nil {
		return reply, sigma.Wrap("call.Router", m.Name, err)
	}
	return out, nil
}

// Keyed makes the calls of one key. It is what service.Call takes in a Client's place.
type Keyed struct {
	r   *Router
	key string
}

// For gives the calls of a key.
func (r *Router) For(key string) Keyed { return Keyed{r, key} }

// Call is Router.Call for the key.
func (k Keyed) Call(ctx context.Context, m *Method, arg, reply []byte) ([]byte, error) {
	return k.r.Call(ctx, m, k.key, arg, reply)
}

// Forward answers a handler's call by the owner of its key; ctx is the handler's. The caller gets
// the answer, or error, and learns which member it is from. A call that was forwarded already is
// redirected, so that no call goes round among members.
func (r *Router) Forward(ctx context.Context, m *Method, key, owner string, arg, reply []byte) ([]byte, error) {
	c := handled(ctx)
	if c == nil {
		return reply, sigma.Errorf("call.Forward", sigma.KindInvalid, "the context is no handler's")
	}
	if c.forwarded {
		return reply, Redirect(owner)
	}
	r.learn(key, owner)
	of := r.stats.of(m.Name)
	began := time.Now()
	to := errand{m: m, key: key, arg: arg, of: of, forwarded: true}
	out, how, err := r.route(ctx, &to, reply)
	if last := to.last; !how.unseen && last != "" && len(last) <= memberMax {
		c.owner.Store(&last)
	}
	of.count(time.Since(began), len(arg), len(out)-len(reply), err)
	return out, err
}

// errand is a call on its way.
type errand struct {
	m         *Method
	key       string
	arg       []byte
	of        *methodStats
	forwarded bool

	last  string   // the member that was asked last; "" = none
	asked []string // the members that were asked
}

// route makes a call at one member after another, until one answers it.
func (r *Router) route(ctx context.Context, to *errand, reply []byte) (out []byte, how outcome, err error) {
	if len(to.key) > keyMax {
		return reply, how, sigma.Errorf("call.Router", sigma.KindTooBig, "a key has %d bytes; %d are possible",
			len(to.key), keyMax)
	}
	member := r.Owner(to.key)
	for hop := 1; ; hop++ {
		f, ferr := r.take(ctx, member, to.key)
		if ferr == nil {
			member, to.last = f.name, f.name
			out, how, err = f.client.try(ctx, to.m, time.Now(), to.forwarded, to.arg, reply)
			r.give(f)
		} else if out, how, err = reply, (outcome{unseen: true}), ferr; member == "" { // nobody is there
			return out, how, err
		}
		moved, redirected := Owner(err)
		switch {
		case ctx.Err() != nil, !redirected && (err == nil || !how.elsewhere(to.m, err) || hopeless(err)):
			return out, how, err
		case redirected:
			to.of.redirected.Add(1)
			r.learn(to.key, moved)
			member = moved
		default:
			r.forget(member)
			member = ""
		}
		if to.asked = append(to.asked, to.last); hop == hopsMax {
			return reply, outcome{}, to.circle(err)
		}
		if hop > 2 && !retry.Pause(ctx, min(time.Millisecond<<(hop-3), hopPauseMost)) {
			return reply, outcome{}, ctx.Err()
		}
	}
}

// hopeless says of a call that no handler has seen that no other member will see it either.
func hopeless(err error) bool {
	switch sigma.KindOf(err) {
	case sigma.KindInvalid, sigma.KindTooBig, sigma.KindPermission, sigma.KindUnsupported:
		return true
	}
	return false
}

// circle is the error of a call that was sent on too often.
func (to *errand) circle(err error) error {
	if _, redirected := Owner(err); !redirected {
		return err
	}
	names := slices.Compact(slices.Sorted(slices.Values(to.asked)))
	return &sigma.Error{Op: "call.Router", Kind: sigma.KindLoop,
		Msg:  fmt.Sprintf("the members redirect the call again and again: %.300s", strings.Join(names, ", ")),
		Hint: "do all members follow one assignment of keys?"}
}

// take gives a member to call, until give. A member that is connected to costs no search.
func (r *Router) take(ctx context.Context, member, key string) (*fellow, error) {
	r.mu.Lock()
	if f := r.known[member]; f != nil && f.client.connected() {
		f.calls++
		r.mu.Unlock()
		return f, nil
	}
	r.mu.Unlock()
	name, dial, err := r.find(ctx, member, key)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, errClosed()
	}
	f := r.known[name]
	var old []*Client
	if f == nil {
		old = r.pruneLocked()
		f = newFellow(&r.mu, name, r.cfg, &r.stats)
		r.known[name] = f
	}
	f.dial = dial
	f.calls++
	r.mu.Unlock()
	for _, c := range old {
		c.Close()
	}
	return f, nil
}

func (r *Router) give(f *fellow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.calls--
}

// pruneLocked drops the members without connections and, if there are too many, all that are idle.
func (r *Router) pruneLocked() (old []*Client) {
	for name, f := range r.known {
		if f.calls == 0 && (!f.client.connected() || len(r.known) >= groupMax) {
			old = append(old, f.client)
			delete(r.known, name)
		}
	}
	return old
}

// learn remembers the owner of a key. If there is no room it forgets another key, whichever.
func (r *Router) learn(key, owner string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.owners[key]; !known && len(r.owners) >= ownersMax {
		for other := range r.owners {
			delete(r.owners, other)
			break
		}
	}
	r.owners[key] = owner
}

// forget drops what a member is known to own.
func (r *Router) forget(member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, owner := range r.owners {
		if owner == member {
			delete(r.owners, key)
		}
	}
}

// connected says whether a connection takes calls.
func (c *Client) connected() bool {
	for i := range c.lines {
		l := &c.lines[i]
		l.mu.Lock()
		conn := l.conn
		l.mu.Unlock()
		if conn != nil && conn.good() {
			return true
		}
	}
	return false
}

package forge

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Bare listens without a socket, so that what is dialled waits in sigmad, at a new endpoint or
// again at the one of that id.
func Bare(ctx context.Context, c *sdk.Client, id sigma.EndpointID) (ep sigma.Endpoint, err error) {
	form, pushed := sigma.FormStream, false
	payload, err := sigmap.Payload(func(c *sigmap.Coder) {
		c.Str((*string)(&form))
		c.Bool(&pushed)
		c.Str((*string)(&id))
	})
	if err != nil {
		return ep, err
	}
	reply, err := c.Call(ctx, "/sys/endpoints", sigmap.CallListen.Name, payload)
	if err == nil {
		err = sigmap.Parse(reply, func(c *sigmap.Coder) { c.Endpoint(&ep) })
	}
	return ep, err
}

// listeners goes for endpoints by their texts: those of the living, of the dead, and guessed ones.
func listeners() []Attempt {
	listenAt := func(text func(*Env) string) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error { return listenAgain(ctx, e.C, text(e)) }
	}
	sibling, other := func(e *Env) string { return e.Sibling.Endpoint }, func(e *Env) string { return e.Other.Endpoint }
	dialIt := func(ctx context.Context, e *Env, w World) error {
		return dial(ctx, e.C, w.Endpoint, func(*sigma.Endpoint) {})
	}
	listenAtIt := func(ctx context.Context, e *Env, w World) error { return listenAgain(ctx, e.C, w.Endpoint) }
	out := []Attempt{
		{Name: "listen at the endpoint of a sibling", Try: listenAt(sibling), Own: ownAgain},
		{Name: "listen at the endpoint of another realm", Try: listenAt(other), Own: ownAgain},
		{Name: "listen at the endpoint of the dead", Try: withChild(true, listenAtIt), Own: ownAgain},
		{Name: "dial the dead", Try: withChild(true, dialIt), Own: withChild(false, dialIt)},
		{Name: "accept what waits at a child's", Try: withChild(false, acceptWaiting), Own: ownWaiting},
	}
	for name, at := range map[string]int{"its random part": 0, "the hash of its proc": 21} { // of the 22 letters
		guess := func(text string) string { return guessed(text, at) }
		out = append(out,
			Attempt{Name: "guess an endpoint by " + name + " and dial", Try: func(ctx context.Context, e *Env) error {
				return dial(ctx, e.C, guess(e.Sibling.Endpoint), func(*sigma.Endpoint) {})
			}, Own: func(ctx context.Context, e *Env) error { return dialIt(ctx, e, e.Sibling) }},
			Attempt{Name: "guess an endpoint by " + name + " and listen", Try: listenAt(func(e *Env) string {
				return guess(e.Sibling.Endpoint)
			}), Own: ownAgain})
	}
	return out
}

// guessed is the text of an endpoint with one letter of its id changed.
func guessed(text string, at int) string {
	ep, err := sigma.ParseEndpoint(text)
	if err != nil {
		return text
	}
	id := []byte(ep.ID)
	next := byte('A') // of the last letter only its first two bits count
	if id[at] == next {
		next = 'Q'
	}
	id[at] = next
	ep.ID = sigma.EndpointID(id)
	return ep.String()
}

func listenAgain(ctx context.Context, c *sdk.Client, text string) error {
	ep, err := sigma.ParseEndpoint(text)
	if err == nil {
		_, err = Bare(ctx, c, ep.ID)
	}
	return err
}

// ownAgain listens again where it had listened.
func ownAgain(ctx context.Context, e *Env) error {
	ep, err := Bare(ctx, e.C, "")
	if err != nil {
		return err
	}
	if err := onEndpoints(ctx, e, sigmap.CallClose.Name, ep.String()); err != nil {
		return err
	}
	if err := onEndpoints(ctx, e, sigmap.CallClose.Name, ep.String()); err != nil &&
		sigma.KindOf(err) != sigma.KindNotFound {
		return err
	}
	if err := listenAgain(ctx, e.C, ep.String()); err != nil {
		return err
	}
	return onEndpoints(ctx, e, sigmap.CallClose.Name, ep.String())
}

// acceptWaiting dials a proc, which does not accept, and takes the other end.
func acceptWaiting(ctx context.Context, e *Env, w World) error {
	ep, err := sigma.ParseEndpoint(w.Endpoint)
	if err != nil {
		return err
	}
	conn, err := e.C.Dial(ctx, ep)
	if err != nil {
		return err
	}
	defer conn.Close()
	return onEndpoints(ctx, e, sigmap.CallAccept.Name, w.Endpoint)
}

func ownWaiting(ctx context.Context, e *Env) error {
	ep, err := Bare(ctx, e.C, "")
	if err != nil {
		return err
	}
	return acceptWaiting(ctx, e, World{Endpoint: ep.String()})
}

// Bounds of what is done with a child: to have it listen, which is no part of the attempt, and the
// attempt.
const (
	childMax = 30 * time.Second
	tryMax   = 2 * time.Second
)

// withChild has a child listen, ends it if dead, and then does f.
func withChild(dead bool, f func(context.Context, *Env, World) error) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error {
		ctx = context.WithoutCancel(ctx)
		long, cancel := context.WithTimeout(ctx, childMax)
		defer cancel()
		w, err := listens(long, e.C)
		if err != nil {
			return err
		}
		end := func() error {
			e.C.Kill(long, w.Proc)
			_, err := e.C.WaitExit(long, w.Proc)
			return err
		}
		if !dead {
			defer end()
		} else if err := end(); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, tryMax)
		defer cancel()
		return f(short, e, w)
	}
}

// listens starts a child that listens and accepts nobody.
func listens(ctx context.Context, c *sdk.Client) (w World, err error) {
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: "/bin/forger", Args: []string{"listen"},
		Start: sigma.StartedByCall})
	if err != nil {
		return w, err
	}
	if err := c.WaitStart(ctx, ids[0]); err != nil {
		return w, err
	}
	for ctx.Err() == nil {
		b, _, err := c.Get(ctx, sigma.JoinPath("proc", string(ids[0]), "stdout"))
		if err != nil {
			return w, err
		}
		if strings.HasSuffix(string(b), "\n") {
			return w, json.Unmarshal(b, &w)
		}
		time.Sleep(time.Millisecond)
	}
	return w, ctx.Err()
}

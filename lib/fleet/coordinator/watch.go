package coordinator

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/lib/fleet/core"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// follow tells the core who stands in the members' directory, and that somebody wants a member.
func (k *keeper) follow(ctx context.Context) {
	known := map[sigma.ProcID]bool{}
	k.again(ctx, "the members' directory is not watched", func(ctx context.Context) error {
		if err := k.c.c.MkdirAll(ctx, fleet.Members(k.name), 0o755); err != nil {
			return err
		}
		st, err := k.c.c.Stat(ctx, fleet.Members(k.name)) // before the listing, so that no change is missed
		for version := st.ID.Version; err == nil; version, err = k.c.c.Watch(ctx, fleet.Members(k.name), version) {
			if err = k.look(ctx, known); err != nil {
				break
			}
		}
		return unlessGone(err)
	})
}

// unlessGone has the directory looked at again if it is missing: it is made anew.
func unlessGone(err error) error {
	if sigma.KindOf(err) == sigma.KindNotFound {
		return sigma.Errorf("fleet", sigma.KindUnavailable, "the members' directory is missing")
	}
	return err
}

func (k *keeper) look(ctx context.Context, known map[sigma.ProcID]bool) error {
	entries, err := k.c.c.ReadDir(ctx, fleet.Members(k.name))
	if err != nil {
		return err
	}
	now := map[sigma.ProcID]bool{}
	for _, e := range entries {
		switch {
		case e.Name == sdk.WantedName:
			k.tell(core.Dialled{})
			wanted := fleet.Members(k.name) + "/" + sdk.WantedName
			if err := ignore(k.c.c.Remove(ctx, wanted), sigma.KindNotFound); err != nil {
				return err
			}
		case e.ID.Kind == sigma.KindEndpoint:
			now[sigma.ProcID(e.Name)] = true
		}
	}
	for id := range now {
		if !known[id] {
			known[id] = true
			k.tell(core.Published{Proc: id, Is: true})
		}
	}
	for id := range known {
		if !now[id] {
			delete(known, id)
			k.tell(core.Published{Proc: id})
		}
	}
	return nil
}

// probe checks a member's health until it is gone. Until the first good answer it does so more
// often.
func (k *keeper) probe(ctx context.Context, id sigma.ProcID, e sigma.Endpoint, h fleet.Health) {
	check := checker(h, func(ctx context.Context) (net.Conn, error) {
		if e.ID == "" { // the member entered at another coordinator
			return k.c.c.DialPath(ctx, fleet.Members(k.name)+"/"+string(id))
		}
		return k.c.c.Dial(ctx, e)
	})
	const eager = 100 * time.Millisecond
	every := min(eager, h.Every.Or(5*time.Second))
	for {
		within, cancel := context.WithTimeout(ctx, h.Timeout.Or(time.Second))
		err := check(within)
		cancel()
		if ctx.Err() != nil {
			return
		}
		bad := ""
		if err != nil {
			bad = err.Error()
		} else {
			every = h.Every.Or(5 * time.Second)
		}
		k.tell(core.Checked{Proc: id, Bad: bad})
		if !retry.Pause(ctx, every) {
			return
		}
	}
}

// checker makes one check of a member.
func checker(h fleet.Health, dial func(context.Context) (net.Conn, error)) func(context.Context) error {
	switch h.Kind {
	case "http":
		return func(ctx context.Context) error { return checkHTTP(ctx, h, dial) }
	case "call":
		m := call.StatsMethod
		if h.Method != "" {
			m = &call.Method{Name: h.Method, Idempotent: true}
		}
		return func(ctx context.Context) error {
			c := call.NewClient(dial, call.Config{})
			defer c.Close()
			_, err := c.Call(ctx, m, nil, nil)
			return err
		}
	}
	return func(ctx context.Context) error {
		c, err := dial(ctx)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

func checkHTTP(ctx context.Context, h fleet.Health, dial func(context.Context) (net.Conn, error)) error {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives: true}
	defer t.CloseIdleConnections()
	path := h.Path
	if path == "" {
		path = "/healthz"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://member"+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", fleet.ProbeAgent)
	reply, err := t.RoundTrip(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	io.Copy(io.Discard, io.LimitReader(reply.Body, 64<<10))
	if reply.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s answers %s", path, reply.Status)
	}
	return nil
}

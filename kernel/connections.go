package kernel

import (
	"context"
	"os"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/launch"
	"sigmaos.dev/ring"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

const (
	logMost = 128 // events in one answer, which has room for them
)

// shownTo says which connections who reads may know of: the provider of all, a tenant of those that
// its realm has an end of.
func (r *root) shownTo(c *dialproxy.Connection) bool {
	return r.tree.principal.System || c.Endpoint.Realm == r.realm || c.From.Realm == r.realm
}

// connectionsFile is /sys/connections: which connections procs of this machine have. That they
// still have them the launcher is asked when it is read.
func (r *root) connectionsFile() sigma.File {
	k := r.tree.k
	return r.sysState(roles.Connections, func(ctx context.Context) ([]byte, error) {
		cs, ends := k.proxy.Connections(r.shownTo)
		found := k.connect.Found(ctx, ends, false)
		of := map[uint64][]launch.Socket{}
		for _, o := range ends {
			if s, is := found[o.Inode]; is {
				of[o.Number] = append(of[o.Number], s)
			}
		}
		meters := map[sigma.ProcID]map[uint64]ring.Carried{}
		for _, o := range ends {
			if meters[o.Proc] == nil {
				meters[o.Proc] = k.traffic.Open(o.Proc)
			}
		}
		near := map[uint64][]ring.Carried{} // of each connection's ends here, the dialler's first
		for _, o := range ends {
			if c, is := meters[o.Proc][o.Inode]; is {
				near[o.Number] = append(near[o.Number], c)
			}
		}
		out := []state.Connection{}
		for i := range cs {
			sockets := of[cs[i].Number]
			if len(sockets) == 0 {
				continue
			}
			line := k.connectionLine(&cs[i])
			said := near[cs[i].Number]
			if len(said) > 0 {
				tellCarried(&line, said)
			}
			switch t := cs[i].Tally; {
			case t != nil && len(said) == 0:
				messages := t.Messages[0] + t.Messages[1]
				line.Sent, line.Received, line.Messages, line.Spun = &t.Bytes[0], &t.Bytes[1], &messages, &t.Spun
			case cs[i].Transport == "tcp":
				line.Sent, line.Received = &sockets[0].Sent, &sockets[0].Received
			}
			out = append(out, line)
		}
		return state.Lines(out)
	})
}

// tellCarried fills in what the ends of a connection that are here have counted.
func tellCarried(line *state.Connection, ends []ring.Carried) {
	first := ends[0]
	messages, turns, spun := first.Writes, first.Turns, first.Spun
	if len(ends) > 1 {
		messages, turns, spun = messages+ends[1].Writes, max(turns, ends[1].Turns), spun+ends[1].Spun
	} else {
		messages += first.Reads
	}
	line.Sent, line.Received, line.Messages, line.Turns, line.Spun = &first.Sent, &first.Received, &messages, &turns,
		&spun
}

func (k *Kernel) connectionLine(c *dialproxy.Connection) state.Connection {
	return state.Connection{Realm: string(c.Endpoint.Realm), Machine: string(k.cfg.Machine),
		Proc: string(c.Endpoint.Proc), On: string(c.Endpoint.Machine), From: string(c.From.Proc),
		FromRealm: string(c.From.Realm), FromOn: string(c.From.Machine),
		Transport: c.Transport, Began: c.Began, Ready: c.Ready}
}

// logCall is the call log: the latest things that happened to connections.
func (r *root) logCall(context.Context, []byte) ([]byte, []*os.File, error) {
	if r.tree.view != nil {
		return nil, nil, sigma.Errorf("kernel.log", sigma.KindPermission,
			"a proc with a view is not told of others' connections")
	}
	es := r.tree.k.proxy.Events(r.shownTo)
	out := []state.ConnectionEvent{}
	for _, e := range es[max(0, len(es)-logMost):] {
		out = append(out, state.ConnectionEvent{Time: e.Time, Event: e.What,
			Connection: r.tree.k.connectionLine(&e.Connection)})
	}
	text, err := state.Lines(out)
	return text, nil, err
}

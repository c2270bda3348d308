package talk

import (
	"context"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/ring"
)

const logMost = 128 // events in one answer, which has room for them

// Connections are those that procs of this machine have, of those for which match says so. The
// launcher is asked whether they still have them.
func (x *Talk) Connections(ctx context.Context, match func(*dialproxy.Connection) bool) []report.Connection {
	cs, ends := x.cfg.Proxy.Connections(match)
	found := x.cfg.Connect.Found(ctx, ends, false)
	of := map[uint64][]launch.Socket{}
	for _, o := range ends {
		if s, is := found[o.Inode]; is {
			of[o.Number] = append(of[o.Number], s)
		}
	}
	meters := map[sigma.ProcID]map[uint64]ring.Carried{}
	for _, o := range ends {
		if meters[o.Proc] == nil {
			meters[o.Proc] = x.cfg.Traffic.Open(o.Proc)
		}
	}
	near := map[uint64][]ring.Carried{} // of each connection's ends here, the dialler's first
	for _, o := range ends {
		if c, is := meters[o.Proc][o.Inode]; is {
			near[o.Number] = append(near[o.Number], c)
		}
	}
	out := []report.Connection{}
	for i := range cs {
		sockets := of[cs[i].Number]
		if len(sockets) == 0 {
			continue
		}
		line := x.line(&cs[i])
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
	return out
}

// Log is the call log: the latest things that happened to connections.
func (x *Talk) Log(match func(*dialproxy.Connection) bool) []report.ConnectionEvent {
	es := x.cfg.Proxy.Events(match)
	out := []report.ConnectionEvent{}
	for _, e := range es[max(0, len(es)-logMost):] {
		out = append(out, report.ConnectionEvent{Time: e.Time, Event: e.What, Connection: x.line(&e.Connection)})
	}
	return out
}

// tellCarried fills in what the ends of a connection that are here have counted.
func tellCarried(line *report.Connection, ends []ring.Carried) {
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

func (x *Talk) line(c *dialproxy.Connection) report.Connection {
	return report.Connection{Realm: string(c.Endpoint.Realm), Machine: string(x.cfg.Machine),
		Proc: string(c.Endpoint.Proc), On: string(c.Endpoint.Machine), From: string(c.From.Proc),
		FromRealm: string(c.From.Realm), FromOn: string(c.From.Machine),
		Transport: c.Transport, Began: c.Began, Ready: c.Ready}
}

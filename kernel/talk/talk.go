// Package talk tells who talks with whom, and how far machines are from one another: the
// connections of this machine's procs (/sys/connections), what the pairs of procs of a realm have
// carried on all machines (/sys/traffic), and the round-trip times between machines
// (/sys/distances).
//
// It measures nothing itself. Bytes come from TCP and from the procs' meters (kernel/meter), which
// are the procs' own word: a lie is told to the liar's own realm and no other. Round-trip times
// come from TCP, on the links that machines have anyway. Answers are at most a second old. Users:
// kernel.
package talk

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Calls of sigmads among themselves.
var (
	// PeerTraffic answers with lines of /sys/traffic of that machine.
	PeerTraffic = sigmap.Method[sigma.RealmID, []byte]{Name: "traffic", Request: (*sigmap.Coder).RealmID,
		Reply: (*sigmap.Coder).Data}
	// PeerDistances answers with lines of /sys/distances of that machine.
	PeerDistances = sigmap.Method[sigmap.None, []byte]{Name: "distances", Reply: (*sigmap.Coder).Data}
	// PeerTouch does nothing but have a link made.
	PeerTouch = sigmap.Method[sigmap.None, sigmap.None]{Name: "touch"}
)

// Limits.
const (
	askMax   = time.Second     // for one machine to answer: one that is stuck hides no other
	askMost  = 64              // machines that are asked at a time
	lookMax  = 3 * time.Second // for several that wait for the same answer
	linksNew = 32              // links that one read makes to machines with which there is none
)

// Config is what a Talk needs of its user.
type Config struct {
	Machine sigma.MachineID
	Proxy   *dialproxy.Proxy
	Connect *connect.Connect
	Traffic *meter.Traffic
	Cluster *cluster.Cluster
	// Machines are all of the system, sorted.
	Machines func() []sigma.MachineID
	At       func(sigma.MachineID) sigma.Caller // another machine's sigmad
}

// Talk is safe for concurrent use. Its only lock is its memo's.
type Talk struct {
	cfg  Config
	memo memo.Memo
}

// New makes the Talk of a machine.
func New(cfg Config) *Talk { return &Talk{cfg: cfg} }

// Traffic tells of all machines what the pairs of a realm's procs carried; "" = of all realms.
func (x *Talk) Traffic(ctx context.Context, realm sigma.RealmID) ([]byte, error) {
	return all(ctx, x, func() ([]byte, error) { return x.traffic(realm) }, PeerTraffic, realm)
}

// Distances tells the round-trip times that all machines know.
func (x *Talk) Distances(ctx context.Context) ([]byte, error) {
	return all(ctx, x, x.distances, PeerDistances, sigmap.None{})
}

// TrafficHere answers PeerTraffic. The largest pairs come first, and what one message has no room
// for is left out.
func (x *Talk) TrafficHere(_ context.Context, realm sigma.RealmID) ([]byte, error) {
	return page(x.traffic(realm))
}

// DistancesHere answers PeerDistances.
func (x *Talk) DistancesHere(context.Context, sigmap.None) ([]byte, error) {
	return page(x.distances())
}

// page is an answer with as many whole lines as it has room for.
func page(text []byte, err error) ([]byte, error) {
	if most := sigmap.DataMax - 16; len(text) > most {
		text = text[:bytes.LastIndexByte(text[:most], '\n')+1]
	}
	return text, err
}

// all joins the lines of all machines, in the order of their names. One that does not answer has a
// line that says why.
func all[Q any](ctx context.Context, x *Talk, own func() ([]byte, error), method sigmap.Method[Q, []byte], q Q) ([]byte,
	error) {
	machines := x.cfg.Machines()
	texts := make([][]byte, len(machines))
	at := make([]int, len(machines))
	for i := range at {
		at[i] = i
	}
	services.EachOf(askMost, at, func(i int) {
		var err error
		if m := machines[i]; m == x.cfg.Machine {
			texts[i], err = own()
		} else {
			texts[i], err = of(ctx, x, m, method, q)
		}
		if err != nil {
			texts[i], _ = report.Line(report.UsageMissing{Machine: string(machines[i]), Missing: err.Error()})
		}
	})
	return slices.Concat(texts...), ctx.Err()
}

// of asks one other machine.
func of[Q any](ctx context.Context, x *Talk, m sigma.MachineID, method sigmap.Method[Q, []byte], q Q) ([]byte, error) {
	if !slices.Contains(x.cfg.Cluster.Others(), m) {
		return nil, sigma.Errorf("kernel.talk", sigma.KindUnavailable, "the machine is away")
	}
	ctx, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	text, err := method.Ask(ctx, x.cfg.At(m), q)
	return slices.Clone(text), err
}

// traffic is what this machine tells of a realm's pairs, those that carried most first.
func (x *Talk) traffic(realm sigma.RealmID) ([]byte, error) {
	return memo.Recall(&x.memo, PeerTraffic.Name+" "+string(realm), func(ctx context.Context) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, lookMax)
		defer cancel()
		cs := x.Connections(ctx, func(c *dialproxy.Connection) bool {
			return x.tells(c) && (realm == "" || c.Endpoint.Realm == realm || c.From.Realm == realm)
		})
		return report.Lines(pairs(time.Now(), cs))
	})
}

// tells says whether it is this machine that tells of a connection: that of the proc which dialled,
// so that none is told of twice, and else that of the proc which listens.
func (x *Talk) tells(c *dialproxy.Connection) bool {
	return c.From.Proc == "" || c.From.Machine == x.cfg.Machine
}

// pairs adds up connections by the two that have them.
func pairs(now time.Time, cs []report.Connection) []report.Talk {
	type key struct{ realm, from, fromOn, to, on string }
	of := map[key]*report.Talk{}
	for i := range cs {
		c := &cs[i]
		k := key{c.Realm, c.From, c.FromOn, c.Proc, c.On}
		if of[k] == nil {
			of[k] = &report.Talk{Machine: c.Machine, At: now, Realm: c.Realm, From: c.From, FromOn: c.FromOn,
				To: c.Proc, On: c.On}
		}
		of[k].Connections++
		if c.Sent == nil || c.Received == nil {
			continue
		}
		sent, received := *c.Sent, *c.Received
		if c.FromOn != c.Machine { // it is of the end that listens
			sent, received = received, sent
		}
		of[k].Sent += sent
		of[k].Received += received
	}
	out := make([]report.Talk, 0, len(of))
	for _, t := range of {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b report.Talk) int {
		return cmp.Or(cmp.Compare(b.Sent+b.Received, a.Sent+a.Received), cmp.Compare(a.From, b.From),
			cmp.Compare(a.To, b.To))
	})
	return out
}

// distances is what this machine tells.
func (x *Talk) distances() ([]byte, error) {
	return memo.Recall(&x.memo, PeerDistances.Name, func(context.Context) ([]byte, error) {
		if !x.cfg.Cluster.Registered() {
			return nil, nil
		}
		others := x.cfg.Cluster.Others()
		x.link(others)
		out := []report.Distance{}
		for _, m := range others {
			d := report.Distance{Machine: string(x.cfg.Machine), To: string(m)}
			if rtt, known := x.cfg.Cluster.Node().Distance(m); known {
				s := rtt.Seconds()
				d.RoundTrip = &s
			}
			out = append(out, d)
		}
		return report.Lines(out)
	})
}

// link makes links to machines with which there is none, so that TCP measures the way to them.
func (x *Talk) link(others []sigma.MachineID) {
	missing := slices.DeleteFunc(slices.Clone(others), func(m sigma.MachineID) bool {
		_, known := x.cfg.Cluster.Node().Distance(m)
		return known
	})
	ctx, cancel := context.WithTimeout(context.Background(), askMax/2)
	defer cancel()
	var all sync.WaitGroup
	for _, m := range missing[:min(len(missing), linksNew)] {
		all.Go(func() { PeerTouch.Tell(ctx, x.cfg.At(m), sigmap.None{}) }) // what fails is told as unknown
	}
	all.Wait()
}

// Touch answers PeerTouch.
func Touch(context.Context, sigmap.None) (none sigmap.None, err error) { return none, nil }

package named

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// A mutation that has a number (sigma.Once) is applied at most once, whatever becomes of
// connections, of this process, or of who leads. Two things could make it happen twice: its sender
// sends it again because the reply was lost; or a first copy, held up somewhere, arrives after its
// sender got the reply to a second one. So the realm remembers for each client what it replied to
// mutations that the client may send again, and up to which number the client has its replies. Both
// are looked up before the mutation is checked, and the record of a mutation that takes effect is
// written in the transaction that makes it take effect (key o/): there is no moment at which one is
// stored and not the other. Refusals change nothing, so it does no harm to decide again after a
// restart; those of what was sent before are kept in memory, against late copies.
//
// A client that numbers for one mutation at a time, as all of ours do, has one record of some 30
// bytes, which its next mutation replaces. A client is forgotten when it says so (forgetOp), or has
// sent nothing for onceIdle, with some transaction that is made anyway. Senders give up much
// earlier, so that a mutation whose client is not known was never applied.
const (
	onceIdle       = 10 * time.Minute
	onceEntriesMax = 4 // unacknowledged mutations of one client
	// of one realm; beyond them, mutations of new clients are not remembered: sent again, they get
	// KindLost
	onceClientsMax = 16_384
	onceForgetMax  = 4  // clients that one step looks at whether they are idle
	onceDropMax    = 64 // records that one step drops
)

// client is what is remembered of one client. It is replaced, not changed.
type client struct {
	done    uint64     // it has the replies of all mutations up to this one
	entries []answered // of later ones, ascending
	used    time.Time
	stored  bool // there is a record of it
}

// answered is one reply.
type answered struct {
	seq     uint64
	code    byte // what was asked for
	changed bool // the mutation took effect; others are not stored
	reply   reply
}

// watermark says when a client is looked at again.
type watermark struct {
	client uint64
	at     time.Time
}

// codeOf tells mutations apart, so that a number that is used for something else is noticed. 0 is
// what cannot be numbered.
func codeOf(m mutation) byte {
	switch bare(m).(type) {
	case createOp:
		return 1
	case putOp:
		return 2
	case writeOp:
		return 3
	case resizeOp:
		return 4
	case statOp:
		return 5
	case removeOp:
		return 6
	case renameOp:
		return 7
	case grantOp:
		return 8
	case endOp:
		return 9
	}
	return 0
}

// client returns what is remembered, nil if nothing is.
func (s *step) client(id uint64) *client {
	if c, changed := s.clients[id]; changed {
		return c
	}
	return s.base.clients[id]
}

// once applies m, unless it was applied before.
func (s *step) once(o sigma.Once, m mutation, now time.Time) reply {
	const op = "named.once"
	code := codeOf(m)
	if o.Client == 0 || code == 0 {
		return m.apply(s, now)
	}
	c := s.client(o.Client)
	switch {
	case o.Seq <= o.Done:
		return reply{err: sigma.Errorf(op, sigma.KindInvalid, "mutation %d of a client that has the replies up to %d",
			o.Seq, o.Done)}
	case c == nil && o.Again && now.Sub(s.base.overflow) < onceIdle:
		return reply{err: sigma.Errorf(op, sigma.KindLost,
			"the change may have been made before its reply was lost, when the realm had more clients than are "+
				"remembered")}
	case c == nil && len(s.base.clients)+len(s.clients) >= onceClientsMax:
		s.base.overflow = now
		return m.apply(s, now)
	case c == nil:
		c = &client{}
	}
	for _, e := range c.entries {
		if e.seq == o.Seq && e.code != code {
			return reply{err: sigma.Errorf(op, sigma.KindInvalid, "the number %d was used for another mutation", o.Seq)}
		} else if e.seq == o.Seq {
			return e.reply
		}
	}
	next := &client{done: max(c.done, o.Done), used: now, stored: c.stored}
	for _, e := range c.entries {
		if e.seq > next.done {
			next.entries = append(next.entries, e)
		}
	}
	switch {
	case o.Seq <= next.done:
		return reply{err: sigma.Errorf(op, sigma.KindStale,
			"mutation %d comes late: its sender has given it up, or has its reply", o.Seq)}
	case len(next.entries) >= onceEntriesMax:
		return reply{err: sigma.Errorf(op, sigma.KindBusy, "%d mutations of one client are not acknowledged",
			onceEntriesMax)}
	}
	before := s.rec.seq
	r := m.apply(s, now)
	if r.waits != nil || r.stopped != nil || r.err != nil && !o.Again {
		return r // of what was not sent before there are no late copies
	}
	e := answered{seq: o.Seq, code: code, changed: s.rec.seq != before, reply: r}
	i, _ := slices.BinarySearchFunc(next.entries, o.Seq, func(e answered, seq uint64) int {
		return cmp.Compare(e.seq, seq)
	})
	next.entries = slices.Insert(next.entries, i, e)
	next.stored = next.stored || e.changed
	s.clients[o.Client] = next
	if e.changed {
		s.writes[o.Client] = struct{}{}
		s.cost += onceCost
	}
	return r
}

// onceCost is about what a client's record and its key need.
const onceCost = 200

// forgetOp forgets clients that are gone.
type forgetOp struct{ clients []uint64 }

func (o forgetOp) size() int { return 8 * len(o.clients) }

func (o forgetOp) apply(s *step, _ time.Time) reply {
	for _, id := range o.clients {
		s.forget(id)
	}
	return reply{}
}

// forget forgets one client. That needs no transaction of its own: its record goes with one that is
// made anyway.
func (s *step) forget(id uint64) {
	c := s.client(id)
	if c == nil {
		return
	}
	s.clients[id] = nil
	if c.stored {
		s.writes[id] = struct{}{}
	}
}

// forgetIdle looks at the clients whose turn it is, and takes on records of forgotten ones.
func (s *step) forgetIdle(now time.Time) {
	for s.looked < min(onceForgetMax, len(s.base.marks)) {
		m := s.base.marks[s.looked]
		if now.Sub(m.at) < onceIdle {
			break
		}
		s.looked++
		if c := s.client(m.client); c != nil && now.Sub(c.used) >= onceIdle {
			s.forget(m.client)
		}
	}
	for id := range s.base.dropped {
		if len(s.writes) >= onceDropMax {
			break
		}
		s.writes[id] = struct{}{}
	}
}

// onceRecords returns what the step writes of clients.
func (s *step) onceRecords() (puts []KV, deletes []string) {
	for id := range s.writes {
		key := onceKey(s.base.realm, id)
		if c := s.client(id); c != nil {
			puts = append(puts, KV{key, c.encode()})
		} else {
			deletes = append(deletes, key)
		}
	}
	return puts, deletes
}

// mergeClients makes the step's clients the tree's.
func (t *tree) mergeClients(s *step) {
	for _, m := range s.base.marks[:s.looked] {
		if c := s.client(m.client); c != nil {
			t.marks = append(t.marks, watermark{m.client, c.used})
		}
	}
	t.marks = t.marks[s.looked:]
	for id := range s.writes {
		if s.stored {
			delete(t.dropped, id)
		} else {
			t.dropped[id] = struct{}{}
		}
	}
	for id, c := range s.clients {
		if c == nil {
			delete(t.clients, id)
			continue
		}
		if t.clients[id] == nil {
			t.marks = append(t.marks, watermark{id, c.used})
		}
		t.clients[id] = c
	}
}

// encode prints what decodeClient reads. Only what took effect is stored.
func (c *client) encode() []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, c.done)
	for _, e := range c.entries {
		if !e.changed {
			continue
		}
		b = binary.AppendUvarint(b, e.seq-c.done)
		b = append(b, e.code, byte(e.reply.id.Kind))
		b = binary.AppendUvarint(b, e.reply.id.Path)
		b = binary.AppendUvarint(b, uint64(e.reply.id.Version))
		b = binary.AppendUvarint(b, uint64(e.reply.lease))
	}
	return b
}

func decodeClient(b []byte) (*client, error) {
	d := decoder{b: b}
	d.version()
	c := &client{done: d.uvarint(), stored: true}
	last := c.done
	for d.err == nil && len(d.b) > 0 {
		e := answered{seq: c.done + d.uvarint(), code: d.byte(), changed: true}
		e.reply.id.Kind = sigma.FileKind(d.byte())
		e.reply.id.Path = d.uvarint()
		e.reply.id.Version = sigma.Version(d.uvarint())
		e.reply.lease = sigma.LeaseID(d.uvarint())
		if d.err == nil && (e.seq <= last || len(c.entries) == onceEntriesMax || e.code == 0) {
			d.fail("impossible values")
		}
		last = e.seq
		c.entries = append(c.entries, e)
	}
	return c, d.end("client")
}

// addClient puts a loaded client into the tree. Nobody could send while there was no leader: its
// time begins anew.
func (t *tree) addClient(id uint64, c *client, now time.Time) {
	c.used = now
	t.clients[id] = c
	if len(t.clients) > onceClientsMax/2 { // there may have been more than are remembered
		t.overflow = now
	}
	t.marks = append(t.marks, watermark{id, now})
}

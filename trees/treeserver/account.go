package treeserver

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/filestream"
	"sigmaos.dev/wire/sigmap"
)

// How a session's requests take turns with those of other sessions (Turns), and are counted for
// realms.

// asking is a realm's part of a session that many share.
type asking struct {
	*account
	inFlight atomic.Int32 // besides those that wait for events
	waits    atomic.Int32
}

// room is where a request is counted, and how many may be there.
func (a *asking) room(x *turn) (n *atomic.Int32, most int32) {
	if x.waits {
		return &a.waits, waitsShared
	}
	return &a.inFlight, inFlightShared
}

// join has the session's requests counted for a realm, and for those to which it attaches.
func (s *server) join(realm sigma.RealmID) {
	s.own, s.shared = s.cfg.Turns.join(realm), map[sigma.RealmID]*asking{}
	s.sample = rand.Uint64() % sampleEach
}

// leave ends it.
func (s *server) leave() {
	s.cfg.Turns.leave(s.own)
	for _, a := range s.shared {
		s.cfg.Turns.leave(a.account)
	}
}

// attachedFor is for whom is asked what comes through an attach; nil = the session's own realm.
func (s *server) attachedFor(m *sigmap.Tattach) *asking {
	name, _, _ := strings.Cut(m.Aname, "/") // sigmap.AsOwner
	realm := sigma.RealmID(name)
	if s.own == nil || !s.cfg.ForRealms || realm.Check() != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.shared[realm]
	if a == nil {
		a = &asking{account: s.cfg.Turns.join(realm)}
		s.shared[realm] = a
	}
	return a
}

// askingOf is for which other realm than the session's own m asks; nil = for that.
func (s *server) askingOf(m sigmap.Message) *asking {
	if !s.cfg.ForRealms {
		return nil
	}
	n, ok := fidOf(m)
	switch m := m.(type) {
	case *sigmap.Tclunk:
		n, ok = m.Fid, true
	case *sigmap.Tcall:
		n, ok = m.Fid, true
	case *sigmap.Trenameat:
		n, ok = m.OldDir, true
	}
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.fids[n]; f != nil {
		return f.of
	}
	return nil
}

// waitsForEvent says that a request may go unanswered for ever, as long as nothing happens.
func waitsForEvent(m sigmap.Message) bool {
	switch m := m.(type) {
	case *sigmap.Twatch:
		return true
	case *sigmap.Tput:
		return m.Options.Wait
	}
	return false
}

// isBrief says that a request waits for something to happen, by its nature, and so keeps no turn.
func (s *server) isBrief(m sigmap.Message, prompt bool) bool {
	call, ok := m.(*sigmap.Tcall)
	if !ok || prompt {
		return waitsForEvent(m)
	}
	f, err := s.get(call.Fid)
	if err != nil {
		return false
	}
	defer s.put(f)
	_, is := f.file.(prompter)
	return is
}

// enter asks for a turn of a request's. wait: it has to wait for it, until its ready is closed.
func (s *server) enter(m sigmap.Message, size int) (r *request, wait bool, err error) {
	if r = s.spare; r == nil {
		r = &request{}
		s.spare = r
	}
	r.prompt = s.isPrompt(m)
	if s.own == nil {
		return r, false, nil
	}
	_, gives := m.(*sigmap.Tclunk) // something back: there is no limit to that
	r.turn.of, r.turn.cost, r.turn.brief = s.own, costUnit*(1+(uint64(size)+uint64(answerSize(m)))/turnBytes),
		s.isBrief(m, r.prompt)
	r.turn.waits = waitsForEvent(m)
	if r.of = s.askingOf(m); r.of != nil {
		r.turn.of = r.of.account
		switch n, most := r.of.room(&r.turn); {
		case n.Load() < most || gives:
		case r.turn.waits:
			return nil, false, tooManyWait(waitsShared)
		default:
			return nil, false, tooMany(inFlightShared)
		}
	}
	if err := s.cfg.Turns.enter(&r.turn, gives); err != nil {
		return nil, false, err
	}
	if r.of != nil {
		n, _ := r.of.room(&r.turn)
		n.Add(1)
	}
	if r.turn.waits {
		s.waits.Add(1)
	}
	s.sample++
	r.sampled = s.sample%sampleEach == 0 && !r.turn.brief
	return r, r.turn.ready != nil, nil
}

// exit ends a request's turn, or its wish for one.
func (s *server) exit(r *request) {
	if s.own == nil {
		return
	}
	s.cfg.Turns.exit(&r.turn)
	if r.of != nil {
		n, _ := r.of.room(&r.turn)
		n.Add(-1)
	}
	if r.turn.waits {
		s.waits.Add(-1)
	}
}

// measure begins to measure what a request costs, if it is one of those.
func (s *server) measure(r *request) (began time.Duration) {
	if r.sampled {
		began, r.sampled = s.cfg.Turns.weights.begin()
	}
	return began
}

// done counts a request that was answered with so many bytes, and ends its turn. It is called by
// the goroutine that measured.
func (s *server) done(r *request, kind sigmap.Type, size, sent int, began time.Duration) {
	if s.own == nil {
		return
	}
	class := classOf(kind, size+sent)
	if r.sampled {
		s.cfg.Turns.weights.end(class, began, true)
	}
	r.turn.of.work.count(class, size, sent)
	s.exit(r)
}

// recalled answers a request at once if that can be (recall), and says whether it did.
func (s *server) recalled(tag uint16, m sigmap.Message, r *request, size int) (bool, error) {
	if _, ok := m.(*sigmap.Tget); !ok {
		return false, nil
	}
	began := s.measure(r)
	reply := s.recall(m)
	if reply == nil {
		if r.sampled {
			s.cfg.Turns.weights.end(0, began, false)
			r.sampled = false
		}
		return false, nil
	}
	sent, err := s.answer(tag, reply, nil)
	s.done(r, m.Type(), size, sent, began)
	return true, err
}

// streamMeter counts the pieces of a stream, as requests by which the stream was asked for.
type streamMeter struct {
	turns   *Turns
	of      *account
	pieces  uint64 // since one was measured
	began   time.Duration
	sampled bool
}

// streamMeter makes the meter of a stream of f; nil where nobody counts.
func (s *server) streamMeter(f *fid) filestream.Meter {
	if s.own == nil {
		return nil
	}
	m := &streamMeter{turns: s.cfg.Turns, of: s.own, pieces: rand.Uint64() % sampleEach}
	if f.of != nil { // not changed
		m.of = f.of.account
	}
	return m
}

// Begin implements filestream.Meter.
func (m *streamMeter) Begin() {
	m.pieces++
	if m.sampled = m.pieces%sampleEach == 0; m.sampled {
		m.began, m.sampled = m.turns.weights.begin()
	}
}

// End implements filestream.Meter.
func (m *streamMeter) End(in, out int) {
	class := classOf((&sigmap.Tbulk{}).Type(), in+out)
	if m.sampled {
		m.turns.weights.end(class, m.began, true)
	}
	m.of.work.count(class, in, out)
}

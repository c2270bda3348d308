package replica

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"sigmaos.dev/sigma"
)

// Bounds of the table of sessions. All members must have the same, so they are no options.
const (
	sessionsMax     = 100_000
	sessionBytesMax = 64 << 20
	resultMax       = 16 << 20 // of one result
)

// kept is the last request of a client.
type kept struct {
	client, seq uint64
	result      []byte
	tooBig      bool // the result was, and is not kept
}

// answer is what a request that is made again gets.
func (k kept) answer() ([]byte, error) {
	if k.tooBig {
		return nil, &sigma.Error{Op: "replica.Propose", Kind: sigma.KindTooBig,
			Msg:  "the command was applied, and its result is too long to be kept for its session",
			Hint: "the results of commands with a Session have up to 16 MiB"}
	}
	return k.result, nil
}

// sessions remembers each client's last request and its result. What it forgets depends on the
// order of commands only, so that all members forget the same.
type sessions struct {
	lru   *simplelru.LRU[uint64, kept]
	bytes int
}

func newSessions() *sessions {
	t := &sessions{}
	t.lru, _ = simplelru.NewLRU(sessionsMax, func(_ uint64, k kept) { t.bytes -= len(k.result) }) // size > 0
	return t
}

// find tells what became of a request: done with its result, refused, or not seen before.
func (t *sessions) find(s Session) (result []byte, done bool, err error) {
	if s == (Session{}) {
		return nil, false, nil
	}
	k, known := t.lru.Get(s.Client)
	switch {
	case known && s.Seq == k.seq:
		result, err := k.answer()
		return result, true, err
	case known && s.Seq < k.seq:
		return nil, false, &sigma.Error{Op: "replica.Propose", Kind: sigma.KindStale,
			Msg: "the client has made a later request", Hint: "make one request at a time with each Session.Client"}
	case !known && s.Seq > 1:
		return nil, false, &sigma.Error{Op: "replica.Propose", Kind: sigma.KindStale,
			Msg: "the client's session is not known any more", Hint: "begin again with a new Session.Client and Seq 1"}
	}
	return nil, false, nil
}

// newKept gives the result of a request as it is remembered.
func newKept(s Session, result []byte) kept {
	if len(result) > resultMax {
		return kept{s.Client, s.Seq, nil, true}
	}
	return kept{s.Client, s.Seq, result, false}
}

// add remembers a request.
func (t *sessions) add(k kept) {
	if old, ok := t.lru.Peek(k.client); ok {
		t.bytes -= len(old.result)
	}
	t.bytes += len(k.result)
	t.lru.Add(k.client, k)
	for t.bytes > sessionBytesMax && t.lru.Len() > 1 {
		t.lru.RemoveOldest()
	}
}

// all gives the sessions, the one that was used longest ago first.
func (t *sessions) all() []kept { return t.lru.Values() }

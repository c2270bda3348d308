package store

import "container/list"

// sessionsMax bounds the clients of a shard that are known: the one that wrote least recently is
// forgotten. A request of a forgotten client that is repeated takes effect again.
const sessionsMax = 4096

// sessionCost is what a session takes in memory.
const sessionCost = 160

// sessions are the latest writes of clients.
type sessions struct {
	byClient map[uint64]*list.Element // of *Session
	recent   list.List                // the latest first
}

// of gives a client's session; nil if it is not known.
func (t *sessions) of(client uint64) *Session {
	if e := t.byClient[client]; e != nil {
		return e.Value.(*Session)
	}
	return nil
}

func (t *sessions) put(s Session) {
	if e := t.byClient[s.Client]; e != nil {
		*e.Value.(*Session) = s
		t.recent.MoveToFront(e)
		return
	}
	if t.byClient == nil {
		t.byClient = map[uint64]*list.Element{}
	}
	t.byClient[s.Client] = t.recent.PushFront(&s)
	if len(t.byClient) > sessionsMax {
		last := t.recent.Back()
		delete(t.byClient, t.recent.Remove(last).(*Session).Client)
	}
}

// all lists sessions, those first that wrote least recently, so that putting them in this order
// makes the same table.
func (t *sessions) all() []Session {
	out := make([]Session, 0, len(t.byClient))
	for e := t.recent.Back(); e != nil; e = e.Prev() {
		out = append(out, *e.Value.(*Session))
	}
	return out
}

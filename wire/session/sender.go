package session

import (
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/wire/sigmap"
)

// SmallMax is the size up to which messages are put in line to share a record. Larger ones gain
// nothing by it, and would be copied.
const SmallMax = 4 << 10

// lineKept is the size up to which the room of a line is used again, so that a burst leaves nothing
// behind.
const lineKept = 64 << 10

// roundsMax is how many times who has the turn looks for more before another goroutine takes over,
// so that nobody works for the others without end.
const roundsMax = 32

// lines are the room of lines that are empty, as most are: a session holds none of it while it
// sends nothing.
var lines = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// Sender sends messages of many goroutines. Small ones stand in line while another is being sent,
// and then go together, in one record if the peer takes several in one (Several). Whoever puts a
// message in line calls Flush after it; who is sending sends what came meanwhile too, so that the
// others need not wait for their turn.
//
// It promises that messages go in the order in which they were put in line. It bounds nothing: who
// puts messages in line looks at Waiting. Users: Client, treeserver.
//
// Locks: turn is held while something is sent; mu is taken under it, and for moments only.
type Sender struct {
	conn     Conn // turn
	several  atomic.Bool
	patience time.Duration // for how long a peer may leave a full socket unread; 0 = for ever

	turn sync.Mutex

	mu       sync.Mutex
	line     *[]byte // mu; messages one after another; nil = none
	messages int     // mu; in line
	taken    int     // mu; from there, which are being sent
	bytes    int     // mu; of those
	err      error   // mu; why nothing more can be sent
}

// NewSender makes the Sender of a connection, one message to a record.
func NewSender(conn Conn) *Sender { return &Sender{conn: conn} }

// Several tells that the peer takes several messages in one record.
func (s *Sender) Several(is bool) { s.several.Store(is) }

// Put puts a message in line. It keeps nothing of msg.
func (s *Sender) Put(msg []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return // Flush says so
	}
	if s.line == nil {
		s.line = lines.Get().(*[]byte)
	}
	*s.line = append(*s.line, msg...)
	s.messages++
}

// Waiting says how many messages that were put in line have not been sent yet, and of how many
// bytes.
func (s *Sender) Waiting() (messages, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != nil {
		bytes = len(*s.line)
	}
	return s.messages + s.taken, bytes + s.bytes
}

// Flush sends what is in line, unless somebody is sending already, who will do it. An error closes
// the connection, so that who receives learns of it; nothing more can be sent then.
func (s *Sender) Flush() error {
	for {
		is, err := s.some()
		if !is || !s.turn.TryLock() { // who has the turn looks again after giving it up
			return err
		}
		more, err := s.drain()
		s.turn.Unlock()
		if err != nil {
			return err
		}
		if more {
			go s.Flush()
			return nil
		}
	}
}

// FlushAfter is Flush that calls before first, while others put messages in line and leave them to
// it.
func (s *Sender) FlushAfter(before func()) error {
	if !s.turn.TryLock() {
		return nil
	}
	before()
	_, err := s.drain()
	s.turn.Unlock()
	if err != nil {
		return err
	}
	return s.Flush()
}

// Alone has send called when what is in line has been sent and nobody else is sending.
func (s *Sender) Alone(send func() error) error {
	s.turn.Lock()
	_, err := s.drain()
	if err == nil {
		err = send()
	}
	s.turn.Unlock()
	if err != nil {
		return err
	}
	return s.Flush()
}

// drop forgets what is in line.
func (s *Sender) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line, s.messages = nil, 0
}

// renew forgets what is in line and goes on with another connection, once nobody is sending on the
// one before, which is closed.
func (s *Sender) renew(conn Conn) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.err, s.line, s.messages = conn, nil, nil, 0
}

// AwaitTurn waits while somebody is sending.
func (s *Sender) AwaitTurn() {
	s.turn.Lock()
	s.turn.Unlock()
}

func (s *Sender) some() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line != nil, s.err
}

// drain sends all that is in line, and what comes meanwhile, unless that goes on for long: then
// there may be more. turn is held.
func (s *Sender) drain() (more bool, err error) {
	for range roundsMax {
		s.mu.Lock()
		line, err := s.line, s.err
		if line != nil {
			s.line, s.messages, s.taken, s.bytes = nil, 0, s.messages, len(*line)
		}
		s.mu.Unlock()
		if line == nil || err != nil {
			return false, err
		}
		err = s.sendAll(*line)
		s.mu.Lock()
		s.taken, s.bytes = 0, 0
		if err != nil { // part of a message may have gone
			s.err, s.line, s.messages = err, nil, 0
			go s.conn.Close() // which waits for whoever is receiving, perhaps this goroutine
		}
		s.mu.Unlock()
		if cap(*line) <= lineKept {
			*line = (*line)[:0]
			lines.Put(line)
		}
	}
	return true, nil
}

// sendAll sends whole messages in as few records as can be.
func (s *Sender) sendAll(line []byte) error {
	several := s.several.Load()
	for len(line) > 0 {
		n := 0
		for n < len(line) {
			msg, _, err := sigmap.Cut(line[n:])
			if err != nil {
				return err
			}
			if n > 0 && (!several || n+len(msg) > sigmap.MessageMax) {
				break
			}
			n += len(msg)
		}
		if err := s.send(line[:n]); err != nil {
			return err
		}
		line = line[n:]
	}
	return nil
}

func (s *Sender) send(record []byte) error {
	if s.patience != 0 {
		return sendIn(s.conn, record, nil, s.patience)
	}
	return s.conn.Send(record, nil)
}

package peer

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"sigmaos.dev/lib/replica"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

var (
	messages = &call.Method{Name: "sigma.Replica/Messages"}
	snapshot = &call.Method{Name: "sigma.Replica/Snapshot"}
)

// Bounds of what waits for one member.
const (
	queueBytes    = 16 << 20
	queueMessages = 4096
)

const (
	dialTime   = 2 * time.Second
	againPause = 50 * time.Millisecond // after a member could not be reached
	idleTime   = time.Minute           // members hear from each other more often; then a line is ended
)

// Config describes a member's side of a group.
type Config struct {
	// Group is the name of the group, by which members that are reached by mistake are told apart.
	Group string
	// Self is this member.
	Self replica.Peer
	// Realm is the one whose procs may send. "" = anybody may, as in tests without principals.
	Realm sigma.RealmID
	// Dial connects to the member of a name.
	Dial func(ctx context.Context, name string) (net.Conn, error)
	// Is tells whether a caller is the member that it says it is. It must know members that were
	// added while this one was away: where the service keeps its members, not in the replica. nil =
	// any proc of the realm is believed.
	Is func(p sigma.Principal, member replica.Peer) bool
}

// Transport is a replica.Transport. Safe for concurrent use.
type Transport struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	lines  map[replica.Peer]*line
	closed bool
}

var _ replica.Transport = (*Transport)(nil)

// New makes a Transport. It starts nothing until it is sent by. Close it.
func New(cfg Config) (*Transport, error) {
	if cfg.Group == "" || len(cfg.Group) > 255 || cfg.Self.ID == 0 || cfg.Dial == nil {
		return nil, sigma.Errorf("peer.New", sigma.KindInvalid, "a member needs a group's name, an id and a dialer")
	}
	t := &Transport{cfg: cfg, lines: make(map[replica.Peer]*line)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t, nil
}

// Close ends all connections. What waits is dropped.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.wg.Wait()
	return nil
}

// line is what is sent to one member.
type line struct {
	wake chan struct{}

	mu    sync.Mutex
	queue [][]byte
	bytes int
}

// Send implements replica.Transport.
func (t *Transport) Send(to replica.Peer, message []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	l := t.lines[to]
	if l == nil {
		l = &line{wake: make(chan struct{}, 1)}
		t.lines[to] = l
		t.wg.Go(func() { t.serve(to, l) })
	}
	l.add(message)
}

func (l *line) add(message []byte) {
	l.mu.Lock()
	if len(l.queue) < queueMessages && (l.bytes+len(message) <= queueBytes || l.bytes == 0) {
		l.queue = append(l.queue, message)
		l.bytes += len(message)
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *line) take() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queue
	l.queue, l.bytes = nil, 0
	return q
}

// client makes a client of a member.
func (t *Transport) client(to replica.Peer) *call.Client {
	return call.NewClient(func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTime)
		defer cancel()
		return t.cfg.Dial(ctx, to.Name)
	}, call.Config{MessageMax: replica.MessageMax})
}

// serve sends what comes into a line, until it has been idle for long.
func (t *Transport) serve(to replica.Peer, l *line) {
	c := t.client(to)
	defer c.Close()
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	var s *call.Stream
	for {
		select {
		case <-l.wake:
		case <-idle.C:
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.lines, to)
			return
		case <-t.ctx.Done():
			return
		}
		idle.Reset(idleTime)
		var err error
		if s == nil {
			s, err = t.begin(c, messages)
		}
		for _, m := range l.take() {
			if err == nil {
				err = s.Send(m)
			}
		}
		if err == nil {
			continue
		}
		if s != nil {
			s.Close()
			s = nil
		}
		retry.Pause(t.ctx, againPause)
		l.take() // it is old by now, and raft repeats what matters
	}
}

// hello is the first message of a stream.
type hello struct {
	group string
	from  uint64
	name  string
}

func (h *hello) code(c *sigmap.Coder) {
	c.Str(&h.group)
	c.U64(&h.from)
	c.Str(&h.name)
}

// begin begins a stream to a member.
func (t *Transport) begin(c *call.Client, m *call.Method) (*call.Stream, error) {
	s, err := c.Stream(t.ctx, m)
	if err != nil {
		return nil, err
	}
	h := hello{t.cfg.Group, t.cfg.Self.ID, t.cfg.Self.Name}
	enc := sigmap.NewEncoder(nil)
	h.code(enc)
	if err = enc.Finish(); err == nil {
		err = s.Send(enc.Bytes())
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// SendSnapshot implements replica.Transport.
func (t *Transport) SendSnapshot(ctx context.Context, to replica.Peer, message []byte,
	write func(io.Writer) error) error {
	c := t.client(to)
	defer c.Close()
	s, err := t.begin(c, snapshot)
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err = s.Send(message); err == nil {
		err = write(s)
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil && err != io.EOF { // after io.EOF Recv has the member's error
		return err
	}
	b, err := s.Recv(nil)
	switch {
	case err == io.EOF:
		return nil
	case err == nil:
		return sigma.Errorf("peer.SendSnapshot", sigma.KindInvalid, "the member answered %d bytes", len(b))
	}
	return err
}

// Register has a server take what other members send to r.
func (t *Transport) Register(server *call.Server, r *replica.Replica) error {
	err := server.HandleStream(messages, func(ctx context.Context, s *call.Stream) error {
		from, err := t.greet(ctx, s)
		for err == nil {
			var m []byte
			if m, err = s.Recv(nil); err == nil {
				err = r.Step(ctx, from, m)
			}
		}
		if err == io.EOF {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return server.HandleStream(snapshot, func(ctx context.Context, s *call.Stream) error {
		from, err := t.greet(ctx, s)
		if err != nil {
			return err
		}
		m, err := s.Recv(nil)
		if err != nil {
			return err
		}
		return r.StepSnapshot(ctx, from, m, s)
	})
}

// greet reads the first message of a stream, and checks who it is from.
func (t *Transport) greet(ctx context.Context, s *call.Stream) (from replica.Peer, err error) {
	const op = "peer.Register"
	b, err := s.Recv(nil)
	if err != nil {
		return from, err
	}
	var h hello
	dec := sigmap.NewDecoder(b)
	h.code(dec)
	if err := dec.Finish(); err != nil {
		return from, err
	}
	p, known := call.Caller(ctx)
	if t.cfg.Realm != "" && (!known || p.Realm != t.cfg.Realm) {
		return from, &sigma.Error{Op: op, Kind: sigma.KindPermission,
			Msg:  "messages are taken from procs of the group's realm only",
			Hint: "a member is a proc of the realm that the group is in"}
	}
	if h.group != t.cfg.Group {
		return from, sigma.Errorf(op, sigma.KindNotFound, "this is a member of another group")
	}
	if t.cfg.Is != nil && !t.cfg.Is(p, replica.Peer{ID: h.from, Name: h.name}) {
		return from, sigma.Errorf(op, sigma.KindPermission, "the caller is not member %d of the group", h.from)
	}
	return replica.Peer{ID: h.from, Name: h.name}, nil
}

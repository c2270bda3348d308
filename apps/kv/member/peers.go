package member

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/lib/replica"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/wire/sigmap"
)

const (
	// queueMax bounds the messages that wait for one member; more are dropped, which raft expects.
	queueMax = 1024
	// batchMax bounds the messages of one call, in bytes, unless one is larger.
	batchMax = 1 << 20
	// sendMax bounds one call: a member that stands still is not waited for longer.
	sendMax = time.Second
	// peerIdle is after what time without messages a connection is closed.
	peerIdle = 30 * time.Second
)

// peers carry a group's messages: a queue and a connection for each other member.
type peers struct {
	find call.Find
	life context.Context // ends with the member

	mu     sync.Mutex
	queues map[string]chan []byte // mu; by name
	tasks  sync.WaitGroup
}

// Send implements replica.Transport.
func (p *peers) Send(to replica.Peer, message []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queues[to.Name]
	if q == nil {
		if p.life.Err() != nil {
			return
		}
		q = make(chan []byte, queueMax)
		p.queues[to.Name] = q
		p.tasks.Go(func() { p.carry(to.Name, q) })
	}
	select {
	case q <- message:
	default:
	}
}

// dial gives how to connect to a member.
func (p *peers) dial(name string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		_, dial, err := p.find(ctx, name, "")
		if err != nil {
			return nil, err
		}
		return dial(ctx)
	}
}

// carry sends what is in a queue until it has been empty for a while.
func (p *peers) carry(name string, q chan []byte) {
	client := call.NewClient(p.dial(name), call.Config{MessageMax: messageMax})
	defer client.Close()
	idle := time.NewTimer(peerIdle)
	defer idle.Stop()
	var buf []byte
	for {
		var batch [][]byte
		select {
		case first := <-q:
			batch = append(batch, first)
		case <-p.life.Done():
			return
		case <-idle.C:
			p.mu.Lock()
			if len(q) == 0 {
				delete(p.queues, name)
				p.mu.Unlock()
				return
			}
			p.mu.Unlock()
			continue
		}
		for size := len(batch[0]); size < batchMax && len(q) > 0 && len(batch) < queueMax; {
			next := <-q
			batch, size = append(batch, next), size+len(next)
		}
		enc := sigmap.NewEncoder(buf[:0])
		calls.CodeMessages(enc, &batch)
		buf = enc.Bytes()
		ctx, cancel := context.WithTimeout(p.life, sendMax)
		client.Call(ctx, calls.Messages, buf, nil) // raft sends again what was lost
		cancel()
		idle.Reset(peerIdle)
	}
}

// pieceMax is how much of a snapshot one message has.
const pieceMax = 256 << 10

// SendSnapshot implements replica.Transport.
func (p *peers) SendSnapshot(ctx context.Context, to replica.Peer, message []byte, write func(io.Writer) error) error {
	client := call.NewClient(p.dial(to.Name), call.Config{MessageMax: messageMax})
	defer client.Close()
	s, err := client.Stream(ctx, calls.Snapshot)
	if err != nil {
		return err
	}
	defer s.Close()
	if err = s.Send(message); err == nil {
		out := bufio.NewWriterSize(s, pieceMax)
		if err = write(out); err == nil {
			err = out.Flush()
		}
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err = s.Recv(nil); err == io.EOF {
		return nil
	}
	return err
}

// messages takes messages of another member.
func (m *Member) messages(ctx context.Context, arg, reply []byte) ([]byte, error) {
	var batch [][]byte
	if err := sigmap.Parse(append([]byte{}, arg...), func(c *sigmap.Coder) { calls.CodeMessages(c, &batch) }); err != nil {
		return reply, err
	}
	var errs []error
	for _, one := range batch {
		errs = append(errs, m.replica.Step(ctx, one))
	}
	return reply, errors.Join(errs...)
}

// snapshot takes a snapshot of another member.
func (m *Member) snapshot(ctx context.Context, s *call.Stream) error {
	message, err := s.Recv(nil)
	if err != nil {
		return err
	}
	return m.replica.StepSnapshot(ctx, message, s)
}

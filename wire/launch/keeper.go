package launch

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"sync"
	"syscall"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// Types of the keeper's records.
const (
	recordControl = 32 // from the keeper: a control socket comes with it
	recordSocket  = 33 // to the keeper: make a socket; from it: here it is
)

const (
	// control sockets that wait for Next; the keeper starts a launcher that dies again and again
	// more and more slowly
	controlsMax = 16
	// requests for sockets that are under way at once: their answers fit into the keeper's send
	// buffer, so that it never waits
	socketsMax = 64
)

// Keeper is the connection to the parent of sigmad and of the launcher, which starts the launcher
// again when it dies, and makes the sockets with which sigmad reaches other machines. Safe for
// concurrent use.
//
// Locks: Keeper.mu; requests are written under it, so that answers come in the order of who waits
// for them.
type Keeper struct {
	conn     *net.UnixConn
	begin    sync.Once
	controls chan *net.UnixConn
	over     chan struct{} // closed when nothing comes any more
	err      error         // why, after over
	slots    chan struct{} // of requests

	mu    sync.Mutex
	asked []*asking // mu; the oldest first
}

// asking is a request for a socket.
type asking struct {
	answer chan socketAnswer // takes one
	left   bool              // mu; nobody waits any more
}

type socketAnswer struct {
	file *os.File
	err  error
}

// NewKeeper wraps the socket that sigmad is born with, and owns it. The first use of the Keeper
// starts a goroutine, which ends when the keeper is gone or Close is called.
func NewKeeper(conn *net.UnixConn) *Keeper {
	return &Keeper{conn: conn, controls: make(chan *net.UnixConn, controlsMax), over: make(chan struct{}),
		slots: make(chan struct{}, socketsMax)}
}

// Next waits for the next launcher: the first, or one that was started because the last has died.
// KindLost when the keeper is gone, or was closed.
func (k *Keeper) Next() (*Launcher, error) {
	k.begin.Do(func() { go k.read() })
	select {
	case conn := <-k.controls:
		return New(conn), nil
	case <-k.over:
		return nil, k.err
	}
}

// Close ends Next and Connect.
func (k *Keeper) Close() { k.conn.Close() }

// read takes what the keeper sends until it is gone.
func (k *Keeper) read() {
	buf, oob := make([]byte, 64), make([]byte, syscall.CmsgSpace(4))
	for k.err == nil {
		n, oobn, _, _, err := k.conn.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			k.err = &sigma.Error{Op: "launch.Keeper", Kind: sigma.KindLost, Msg: "the keeper is gone", Err: err}
			break
		}
		k.err = k.take(buf[:n], passedFile(oob[:oobn]))
	}
	close(k.over)
	k.conn.Close()
	for { // nobody waits for these any more
		select {
		case c := <-k.controls:
			c.Close()
		default:
			return
		}
	}
}

// passedFile is the one descriptor that came with a record; nil if there was none, or more.
func passedFile(oob []byte) *os.File {
	cmsgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for _, m := range cmsgs {
		if got, err := syscall.ParseUnixRights(&m); err == nil {
			fds = append(fds, got...)
		}
	}
	if len(fds) != 1 {
		for _, fd := range fds {
			syscall.Close(fd)
		}
		return nil
	}
	syscall.CloseOnExec(fds[0])
	syscall.SetNonblock(fds[0], true)
	return os.NewFile(uintptr(fds[0]), "keeper")
}

// take does what one record says. Its error ends the connection.
func (k *Keeper) take(record []byte, f *os.File) error {
	wrong := func() error {
		if f != nil {
			f.Close()
		}
		return sigma.Errorf("launch.Keeper", sigma.KindInvalid, "the keeper sent a record that is none")
	}
	if len(record) < 4 || binary.LittleEndian.Uint16(record[2:]) != 1 {
		return wrong()
	}
	switch kind := binary.LittleEndian.Uint16(record); {
	case kind == recordControl && len(record) == 4 && f != nil:
		conn, err := session.UnixConn(f)
		if err != nil {
			return err
		}
		k.controls <- conn
		return nil
	case kind == recordSocket && len(record) == 8:
		errno := syscall.Errno(binary.LittleEndian.Uint32(record[4:]))
		if (errno == 0) != (f != nil) || !k.answer(f, errno) {
			return wrong()
		}
		return nil
	}
	return wrong()
}

// answer gives a socket, or the reason why there is none, to who has waited longest; false: nobody
// has asked.
func (k *Keeper) answer(f *os.File, errno syscall.Errno) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.asked) == 0 {
		return false
	}
	q := k.asked[0]
	k.asked = k.asked[1:]
	<-k.slots
	switch {
	case errno != 0:
		q.answer <- socketAnswer{err: errno}
	case q.left:
		f.Close()
	default:
		q.answer <- socketAnswer{file: f}
	}
	return true
}

// Ends asks the keeper for a netlink socket, which does not block, that hears of the end of each
// TCP connection of its network, as inet_diag messages with tcp_info. The file is the caller's.
func (k *Keeper) Ends(ctx context.Context) (*os.File, error) {
	return k.socket(ctx, syscall.AF_NETLINK)
}

// socket asks the keeper for an unconnected TCP socket of its network, which does not block, or for
// that of Ends.
func (k *Keeper) socket(ctx context.Context, family int) (*os.File, error) {
	q, err := k.ask(ctx, family)
	if err != nil {
		return nil, err
	}
	return k.await(ctx, q)
}

// ask sends the question of socket.
func (k *Keeper) ask(ctx context.Context, family int) (*asking, error) {
	const op = "launch.Connect"
	k.begin.Do(func() { go k.read() })
	select {
	case k.slots <- struct{}{}: // given back by the answer
	case <-k.over:
		return nil, k.err
	case <-ctx.Done():
		return nil, sigma.Wrap(op, "", ctx.Err())
	}
	q := &asking{answer: make(chan socketAnswer, 1)}
	record := binary.LittleEndian.AppendUint16(nil, recordSocket)
	record = binary.LittleEndian.AppendUint16(record, 1)
	record = binary.LittleEndian.AppendUint32(record, uint32(family))
	k.mu.Lock()
	_, err := k.conn.Write(record)
	if err == nil {
		k.asked = append(k.asked, q)
	} else {
		<-k.slots
	}
	k.mu.Unlock()
	if err != nil {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindLost, Msg: "the keeper is gone", Err: err}
	}
	return q, nil
}

// await waits for the answer, and gives it up with ctx.
func (k *Keeper) await(ctx context.Context, q *asking) (*os.File, error) {
	select {
	case a := <-q.answer:
		return a.file, a.err
	case <-k.over:
		return nil, k.err
	case <-ctx.Done():
		k.mu.Lock()
		q.left = true
		k.mu.Unlock()
		select { // it came meanwhile
		case a := <-q.answer:
			if a.file != nil {
				a.file.Close()
			}
		default:
		}
		return nil, sigma.Wrap("launch.Connect", "", ctx.Err())
	}
}

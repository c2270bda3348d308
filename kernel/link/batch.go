package link

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// A batch is several direct connections with one hello (docs/adr/0036): the dialler makes those
// that follow, each of which says for whom it is and no more, and then says hello for all of them
// on one that has waited, which ends with the answer: no proc has it.
//
//	dialler → "SGD2", 16 bytes name of a key, label (u64), number in the batch (u8), MAC (32 bytes); nothing is answered
//
// The MAC is HMAC-SHA-256 with the key over a label of this protocol's own, the batch's label, and
// the number. The hello, which is as fresh as any, names the label; a number is heard once, and
// what nobody says hello for ends. A key's labels go up, so that of those that a hello was heard
// for only the last has to be known: nothing follows by it, or by one before, any more.

// Sizes and limits of batches.
const (
	followMagic = "SGD2"
	labelBytes  = 8
	followBytes = keyName + labelBytes + 1 + macBytes
	BatchMost   = 16 // connections of one hello
	// of one key, that wait for their hello at once, the oldest makes room; and hellos that wait
	// for what follows them
	batchesMost  = 4
	followMax    = 5 * time.Second // what follows waits so long for its hello
	followingMax = time.Second     // a hello waits so long for what follows it: that was said before it
)

// Batch says that a direct connection stands for several.
type Batch struct {
	First uint64 // number of the first connection that can begin, as the dialler counts; the others have the next ones
	Line  bool   // before the first there is one that says which begins
	Count uint8  // how many there are, with that
	Begun []uint64
	label uint64
}

// batchNumbersMost bounds Batch.Begun: what a dialler has not heard the other machine take note of.
const batchNumbersMost = 1024

func (b *Batch) code(c *sigmap.Coder) {
	c.U64(&b.First)
	c.Bool(&b.Line)
	c.U8(&b.Count)
	c.U64(&b.label)
	CodeNumbers(c, &b.Begun)
}

// CodeNumbers is the layout of connections' numbers.
func CodeNumbers(c *sigmap.Coder, v *[]uint64) {
	n := len(*v)
	if c.Count(&n, 8); n > batchNumbersMost {
		c.Fail("more numbers of connections than can be")
		return
	}
	if c.Decoding() {
		*v = make([]uint64, n)
	}
	for i := range *v {
		c.U64(&(*v)[i])
	}
}

func (b *Batch) check(op string) error {
	if b.Count > BatchMost || b.Count == 0 || b.Count == 1 && b.Line {
		return sigma.Errorf(op, sigma.KindInvalid, "a batch of %d connections cannot be", b.Count)
	}
	return nil
}

// following are the connections of a batch that wait for its hello here.
type following struct {
	label uint64
	conns [BatchMost]*net.TCPConn // Node.mu
	more  chan struct{}           // takes one: another came
	end   *time.Timer
}

// proof is what one that follows says.
func (k *directKey) proof(label uint64, number byte) []byte {
	h := hmac.New(sha256.New, k.key[:])
	io.WriteString(h, "sigma direct follow 1\x00")
	h.Write(append(binary.LittleEndian.AppendUint64(nil, label), number))
	return h.Sum(nil)
}

// follows is all that one says.
func (k *directKey) follows(label uint64, number byte) []byte {
	says := binary.LittleEndian.AppendUint64(append([]byte(followMagic), k.name[:]...), label)
	return append(append(says, number), k.proof(label, number)...)
}

// acceptFollowing takes a connection that began with followMagic. It owns it; keep is called before
// it waits for its hello: false says that it was closed.
func (n *Node) acceptFollowing(raw net.Conn, keep func() bool) error {
	const op = "link.acceptFollowing"
	conn, ok := raw.(*net.TCPConn)
	var b [followBytes]byte
	if _, err := io.ReadFull(raw, b[:]); err != nil || !ok {
		raw.Close()
		return sigma.Wrap(op, "", err)
	}
	name, label, number, proof := [keyName]byte(b[:]), binary.LittleEndian.Uint64(b[keyName:]), b[keyName+labelBytes],
		b[followBytes-macBytes:]
	n.mu.Lock()
	k := n.keys[name]
	n.mu.Unlock()
	if k == nil || number >= BatchMost || !hmac.Equal(proof, k.proof(label, number)) {
		conn.Close()
		return sigma.Errorf(op, sigma.KindPermission, "a connection of a batch is not signed with the key of a link")
	}
	conn.SetDeadline(time.Time{})
	if !keep() {
		conn.Close()
		return nil
	}
	n.mu.Lock()
	var ended *following
	f := k.find(label)
	if f == nil && !k.over && label > k.heard {
		if len(k.following) >= batchesMost {
			ended, k.following = k.following[0], k.following[1:]
		}
		f = &following{label: label, more: make(chan struct{}, 1)}
		f.end = time.AfterFunc(followMax, func() { n.dropFollowing(k, f) })
		k.following = append(k.following, f)
	}
	taken := f != nil && f.conns[number] == nil
	if taken {
		f.conns[number] = conn
	}
	n.mu.Unlock()
	if ended != nil {
		ended.close()
	}
	if !taken {
		conn.Close()
		return sigma.Errorf(op, sigma.KindStale, "a connection of a batch comes again, or too late")
	}
	select {
	case f.more <- struct{}{}:
	default:
	}
	return nil
}

func (k *directKey) find(label uint64) *following {
	for _, f := range k.following {
		if f.label == label {
			return f
		}
	}
	return nil
}

// close ends connections that nobody has any more but the caller.
func (f *following) close() {
	f.end.Stop()
	for _, c := range f.conns {
		if c != nil {
			c.Close()
		}
	}
}

// take takes a batch out of those that wait; false: it is not there any more. Its connections are
// the caller's.
func (k *directKey) take(f *following) bool {
	for i, o := range k.following {
		if o == f {
			k.following = append(k.following[:i:i], k.following[i+1:]...)
			return true
		}
	}
	return false
}

func (n *Node) dropFollowing(k *directKey, f *following) {
	n.mu.Lock()
	own := k.take(f)
	n.mu.Unlock()
	if own {
		f.close()
	}
}

// gather gives the connections that follow a hello, which said their label and how many; they are
// the caller's. It waits a while for the last. Afterwards nothing follows by that label any more.
func (n *Node) gather(k *directKey, b *Batch) ([]*net.TCPConn, error) {
	const op = "link.gather"
	n.mu.Lock()
	many := k.gathering >= batchesMost
	if !many {
		k.gathering++
	}
	n.mu.Unlock()
	if many {
		return nil, sigma.Errorf(op, sigma.KindBusy, "%d hellos wait for what follows them", batchesMost)
	}
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		k.gathering--
	}()
	timer := time.NewTimer(followingMax)
	defer timer.Stop()
	for late := false; ; {
		n.mu.Lock()
		again := b.label <= k.heard
		f, here := k.find(b.label), 0
		if f != nil {
			for here < int(b.Count) && f.conns[here] != nil {
				here++
			}
		}
		all := here == int(b.Count) && !again
		if all || late || again {
			k.heard = max(k.heard, b.label)
			k.take(f) // nobody finds it any more
		}
		n.mu.Unlock()
		switch {
		case all:
			for _, c := range f.conns[here:] { // that it does not speak for
				if c != nil {
					c.Close()
				}
			}
			f.end.Stop()
			return f.conns[:here:here], nil
		case (late || again) && f != nil:
			f.close()
		}
		if again {
			return nil, sigma.Errorf(op, sigma.KindStale, "the hello of a batch comes again, or too late")
		} else if late {
			return nil, sigma.Errorf(op, sigma.KindBusy, "%d of a batch's %d connections are not here",
				int(b.Count)-here, b.Count)
		}
		var more <-chan struct{}
		if f != nil {
			more = f.more
		} else {
			more = soon()
		}
		select {
		case <-more:
		case <-timer.C:
			late = true
		}
	}
}

// soon is closed in a moment: when the first of a batch may be here.
func soon() <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(time.Millisecond, func() { close(c) })
	return c
}

// takeBatch decides about a hello for a batch and hands its connections out. They are the caller's.
func (n *Node) takeBatch(k *directKey, from sigma.Principal, target Target, b *Batch) ([]*net.TCPConn, error) {
	const op = "link.takeBatch"
	if n.cfg.Batch == nil || target.Kind != ToEndpoint {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "this machine takes no batches")
	}
	conns, err := n.gather(k, b)
	if err != nil {
		return nil, err
	}
	return conns, n.cfg.Batch(Direct{k.link.Peer, from, target}, *b, conns)
}

// DialBatch makes direct connections to an endpoint of machine m for from, whose Machine is set to
// this one: as DialDirect does, but the other machine gives all to the listener before it agrees.
// The files are the caller's and do not block. KindUnsupported: that machine, or this one, makes
// none. KindBusy: another batch is being made for it, or that machine says so; then the listener
// has none of them, nor if the error is Unsaid; after most others that is not known.
func (n *Node) DialBatch(ctx context.Context, m sigma.MachineID, target Target, from sigma.Principal,
	b Batch) ([]*os.File, error) {
	files, said, err := n.dialBatch(ctx, m, target, from, b)
	if err != nil && !said {
		err = unsaid{err}
	}
	return files, err
}

// unsaid is an error that came before the hello of a batch.
type unsaid struct{ error }

func (u unsaid) Unwrap() error { return u.error }

// Unsaid reports whether an error of DialBatch came before its hello was said: then the listener
// has nothing of the batch.
func Unsaid(err error) bool {
	var u unsaid
	return errors.As(err, &u)
}

// dialBatch is DialBatch. said: the other machine may have heard the hello.
func (n *Node) dialBatch(ctx context.Context, m sigma.MachineID, target Target, from sigma.Principal,
	b Batch) (files []*os.File, said bool, err error) {
	const op = "link.DialBatch"
	if n.cfg.Reserve == nil {
		return nil, false, sigma.Errorf(op, sigma.KindUnsupported, "this machine makes no direct connections")
	}
	member, ok := n.cfg.Identity.Roster().Member(m)
	if !ok {
		return nil, false, sigma.Errorf(op, sigma.KindNotFound, "machine %.80q is not known here", string(m))
	}
	ctx, cancel := context.WithTimeout(ctx, connectMax+handshakeMax)
	defer cancel()
	from.Machine = n.cfg.Identity.Self().Machine
	k, err := n.keyFor(ctx, member)
	if err != nil {
		return nil, false, err
	}
	done, err := n.batchTurn(m)
	if err != nil {
		return nil, false, err
	}
	defer done()
	if err := b.check(op); err != nil {
		return nil, false, err
	}
	n.mu.Lock()
	k.labels++
	b.label = k.labels
	n.mu.Unlock()
	s := n.takeWarm(m, k)
	if s == nil {
		if s, err = n.begin(ctx, member, k); errors.Is(err, errNoKey) { // who dials finds out
			return nil, false, sigma.Wrap(op, "", err)
		} else if err != nil {
			return nil, false, err
		}
	}
	files, err = n.follow(ctx, member, k, &b)
	if err != nil {
		s.conn.Close()
		return nil, false, err
	}
	conn, err := s.ask(ctx, &directHello{from, target, &b}, "machine "+string(m))
	if err == nil {
		conn.Close()
		return files, true, nil
	}
	session.CloseFiles(files)
	if errors.Is(err, errUnheard) { // it was dead, which is no word about the machine
		return nil, true, &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
			Msg: "machine " + string(m) + " has ended the connection", Err: err}
	}
	return nil, true, theirs(n.failed(ctx, member, err))
}

// batchTurn has one batch at a time made for m: the other side counts what follows as handshakes
// until it is here. It does not wait, as its caller has a place that others dial in.
func (n *Node) batchTurn(m sigma.MachineID) (done func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.batches[m] {
		return nil, sigma.Errorf("link.DialBatch", sigma.KindBusy, "another batch is being made for machine %s", m)
	}
	n.batches[m] = true
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.batches, m)
	}, nil
}

// follow makes the connections that follow the hello.
func (n *Node) follow(ctx context.Context, m identity.Member, k *directKey, b *Batch) ([]*os.File, error) {
	const op = "link.DialBatch"
	if err := n.mayDial(m); err != nil {
		return nil, err
	}
	files, err := n.cfg.ConnectAll(ctx, m.Address, int(b.Count))
	if err != nil {
		return nil, n.unreached(ctx, m, err)
	}
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			raw.Control(tuneSocket)
			_, err = f.Write(k.follows(b.label, byte(i))) // there is room for it
		}
		if err != nil {
			session.CloseFiles(files)
			return nil, sigma.Wrap(op, "", err)
		}
	}
	return files, nil
}

// tuneSocket is tune, and what Go does to a TCP connection besides.
func tuneSocket(fd uintptr) {
	for _, o := range [][3]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE,
		int(keepIdle / time.Second)}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepInterval / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepCount}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(unackedMax / time.Millisecond)}, {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}} {
		unix.SetsockoptInt(int(fd), o[0], o[1], o[2])
	}
}

// connectAll is Config.ConnectAll by Config.Connect.
func (n *Node) connectAll(ctx context.Context, address string, count int) (files []*os.File, err error) {
	for range count {
		var raw net.Conn
		if raw, err = n.cfg.Connect(ctx, address); err != nil {
			break
		}
		var f *os.File
		if conn, ok := raw.(*net.TCPConn); ok {
			f, err = fileOf(conn)
		} else {
			raw.Close()
			err = sigma.Errorf("link.DialBatch", sigma.KindUnsupported, "a direct connection needs TCP")
		}
		if err != nil {
			break
		}
		files = append(files, f)
	}
	if err != nil {
		session.CloseFiles(files)
		return nil, err
	}
	return files, nil
}

// fileOf makes a connection a file that does not block, also after Fd was called: net's own File
// would. It closes conn.
func fileOf(conn *net.TCPConn) (f *os.File, err error) {
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		n := 0
		if n, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			f = os.NewFile(uintptr(n), "connection")
		}
	}); e != nil {
		return nil, e
	}
	return f, os.NewSyscallError("fcntl", err)
}

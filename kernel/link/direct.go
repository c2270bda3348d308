package link

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Direct connections (docs/adr/0020): TCP in the clear between two machines, of which each knows
// that the other is who it says and was admitted when the connection was made. What comes after the
// set-up is the target's alone: sigmad gives its socket away. The same port takes them; they begin
// with "SGD1" where TLS has the type and version of a record.
//
//	dialler → "SGD1", 16 bytes name of a key
//	other   → 1, nonce (32 bytes); or 0: there is no such key; then both may wait
//	dialler → hello: u32 length, payload, MAC (32 bytes)
//	other   → answer: the same
//
// The key is exported from a TLS link of target ToDirect that the dialler keeps open (RFC 8446
// §7.5), and forgotten when that ends: who has it was admitted, and is still. MACs are HMAC-SHA-256
// over a label, who speaks, the nonce and the payload, so that neither a hello nor an answer is of
// use on another connection or in the other direction. A hello is heard once.

// Sizes and limits of direct connections.
const (
	directMagic = "SGD1"
	keyName     = 16
	nonceBytes  = 32
	macBytes    = sha256.Size
	parkedMax   = 30 * time.Second // a connection waits for its hello; longer than the dialler keeps one (warmMax)
	helloMax    = 5 * time.Second  // from the first bytes of a hello to its last
	// of one key, that wait at once: four times what a dialler keeps. The oldest makes room, so
	// that who only saw the key's name on its way keeps nobody out for long
	parkedMost = 64
)

// Who speaks.
const (
	spokenByDialler byte = 1
	spokenByOther   byte = 2
)

// Answers to the name of a key.
const (
	keyUnknown byte = 0
	keyKnown   byte = 1
)

// Direct is a connection that another machine asks for.
type Direct struct {
	Peer   identity.Subject
	From   sigma.Principal // who dials; Machine is Peer's
	Target Target          // ToEndpoint or ToService
}

// Place is what Config.Reserve holds for a direct connection. One of its methods is called, once.
type Place interface {
	// Take gives it the connection, on which the peer was told that it has it. It must not block
	// for long.
	Take(conn *net.TCPConn)
	// Close gives the place back.
	Close() error
}

// directKey is what two machines know since they had a link of target ToDirect.
type directKey struct {
	name      [keyName]byte
	key       [32]byte
	link      *Link
	parked    []*net.TCPConn // Node.mu; that wait for their hello here, oldest first
	following []*following   // Node.mu; batches that do, the same
	gathering int            // Node.mu; hellos of batches that wait for what follows them here
	heard     uint64         // Node.mu; the highest label of a batch that a hello was heard for here
	labels    uint64         // Node.mu; the last that was dialled with
	over      bool           // Node.mu; the link has ended
}

// exportKey takes the key from a link's TLS. Both sides get the same.
func exportKey(l *Link, ekm func(label string, context []byte, length int) ([]byte, error)) (*directKey, error) {
	b, err := ekm("EXPORTER-sigma-direct", nil, keyName+32)
	if err != nil {
		return nil, sigma.Wrap("link.direct", "", err)
	}
	k := &directKey{link: l}
	copy(k.name[:], b)
	copy(k.key[:], b[keyName:])
	return k, nil
}

// mac proves that who has the key said payload on the connection of that nonce.
func (k *directKey) mac(speaker byte, nonce, payload []byte) []byte {
	h := hmac.New(sha256.New, k.key[:])
	io.WriteString(h, "sigma direct 1\x00")
	h.Write([]byte{speaker})
	h.Write(nonce)
	h.Write(payload)
	return h.Sum(nil)
}

// say sends a payload with its length and MAC.
func (k *directKey) say(w io.Writer, speaker byte, nonce, payload []byte) error {
	return writeFrame(w, payload, k.mac(speaker, nonce, payload)...)
}

// hear reads what say sent, and not a byte more. begun is called when its first bytes are here.
func (k *directKey) hear(r io.Reader, speaker byte, nonce []byte, begun func()) ([]byte, error) {
	payload, err := readFrame(&starting{r, begun}, frameMax)
	if err != nil {
		return nil, err
	}
	var mac [macBytes]byte
	if _, err := io.ReadFull(r, mac[:]); err != nil {
		return nil, err
	}
	if !hmac.Equal(mac[:], k.mac(speaker, nonce, payload)) {
		return nil, sigma.Errorf("link.direct", sigma.KindPermission,
			"what was said on a direct connection is not signed with the key of its link")
	}
	return payload, nil
}

// starting tells of the first bytes that come.
type starting struct {
	io.Reader
	begun func()
}

func (s *starting) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if n > 0 && s.begun != nil {
		s.begun()
		s.begun = nil
	}
	return n, err
}

// directHello is what a dialler says.
type directHello struct {
	From   sigma.Principal
	Target Target
	Batch  *Batch // nil = it is for one connection
}

func (h *directHello) code(c *sigmap.Coder) {
	codeAsk(c, &h.From, &h.Target)
	if c.Decoding() {
		c.Last(func() { h.Batch = &Batch{} })
	}
	if h.Batch != nil {
		h.Batch.code(c)
	}
}

// ParseDirect decodes the hello of a direct connection, or of a batch. What it names is of a form
// that can be; nothing else was checked.
func ParseDirect(payload []byte) (from sigma.Principal, target Target, b *Batch, err error) {
	const op = "link.ParseDirect"
	var h directHello
	if err := sigmap.Parse(payload, h.code); err != nil {
		return from, target, nil, sigma.Wrap(op, "", err)
	}
	if err := checkAsk(op, h.From, h.Target); err != nil {
		return from, target, nil, err
	}
	if h.Target.Kind != ToEndpoint && h.Target.Kind != ToService {
		return from, target, nil, sigma.Errorf(op, sigma.KindInvalid, "a direct connection cannot be made to a %s",
			h.Target)
	}
	if h.Batch != nil {
		if err := h.Batch.check(op); err != nil {
			return from, target, nil, err
		}
	}
	return h.From, h.Target, h.Batch, nil
}

// offersDirect says whether a peer may have a link of target ToDirect.
func (n *Node) offersDirect(from sigma.Principal) error {
	const op = "link.direct"
	switch {
	case !from.System || from.Proc != "":
		return sigma.Errorf(op, sigma.KindPermission, "only machines may have direct connections made")
	case n.cfg.Reserve == nil:
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "this machine makes no direct connections",
			Hint: "it was started with --encrypt"}
	}
	return nil
}

// holdKey keeps a key for as long as its link is open.
func (n *Node) holdKey(k *directKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !k.over {
		n.keys[k.name] = k
	}
}

// serveKey waits for the end of a link of target ToDirect, over which nothing is said.
func (n *Node) serveKey(l *Link) {
	l.Read(make([]byte, 1))
}

// forgetKey ends what waits by a key. Its link has ended.
func (n *Node) forgetKey(k *directKey) {
	n.mu.Lock()
	k.over = true
	if n.keys[k.name] == k {
		delete(n.keys, k.name)
	}
	parked, following := k.parked, k.following
	k.parked, k.following = nil, nil
	n.mu.Unlock()
	for _, c := range parked {
		c.Close()
	}
	for _, f := range following {
		f.close()
	}
}

// park notes that a connection waits for its hello; nil if there is no such key.
func (n *Node) park(name [keyName]byte, conn *net.TCPConn) *directKey {
	n.mu.Lock()
	k := n.keys[name]
	var oldest *net.TCPConn
	if k != nil {
		if len(k.parked) >= parkedMost {
			oldest, k.parked = k.parked[0], k.parked[1:]
		}
		k.parked = append(k.parked, conn)
	}
	n.mu.Unlock()
	if oldest != nil {
		oldest.Close()
	}
	return k
}

// unpark takes a connection out of those that wait; false: it was closed meanwhile.
func (n *Node) unpark(k *directKey, conn *net.TCPConn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.Index(k.parked, conn)
	if i < 0 {
		return false
	}
	k.parked = slices.Delete(k.parked, i, i+1)
	return true
}

// acceptDirect does what there is to do with a connection that began with directMagic. It owns raw,
// and gives it away if all goes well; ready is called when it no longer counts as a handshake, keep
// just before raw is given away: false says that it was closed.
func (n *Node) acceptDirect(raw net.Conn, ready func(), keep func() bool) error {
	const op = "link.acceptDirect"
	conn, ok := raw.(*net.TCPConn)
	if !ok {
		raw.Close()
		return sigma.Errorf(op, sigma.KindUnsupported, "a direct connection needs TCP")
	}
	given := false
	defer func() {
		if !given {
			conn.Close()
		}
	}()
	var name [keyName]byte
	if _, err := io.ReadFull(conn, name[:]); err != nil {
		return sigma.Wrap(op, "", err)
	}
	k := n.park(name, conn)
	if k == nil {
		conn.Write([]byte{keyUnknown})
		return sigma.Errorf(op, sigma.KindPermission, "a direct connection names a key that is none")
	}
	defer n.unpark(k, conn)
	ready()
	var nonce [nonceBytes]byte
	rand.Read(nonce[:])
	if _, err := conn.Write(append([]byte{keyKnown}, nonce[:]...)); err != nil {
		return sigma.Wrap(op, "", err)
	}
	conn.SetDeadline(time.Now().Add(parkedMax))
	payload, err := k.hear(conn, spokenByDialler, nonce[:], func() { conn.SetDeadline(time.Now().Add(helloMax)) })
	if errors.Is(err, io.EOF) {
		return nil // it was not needed
	}
	if err == nil && !n.unpark(k, conn) {
		return sigma.Errorf(op, sigma.KindStale, "the link of a direct connection's key has ended")
	}
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	place, others, err := n.reserve(k, payload)
	defer func() {
		for _, c := range others {
			c.Close()
		}
	}()
	a := &answer{Version: VersionMost, Clock: n.cfg.Identity.Now()}
	if err != nil {
		a = refusal(err, a.Clock)
	}
	reply, cerr := sigmap.Payload(a.code)
	if cerr == nil {
		cerr = k.say(conn, spokenByOther, nonce[:], reply)
	}
	if err != nil {
		return err
	}
	if place == nil { // a batch, which has been given away
		return sigma.Wrap(op, "", cerr)
	}
	conn.SetDeadline(time.Time{})
	if cerr != nil || !keep() {
		place.Close()
		return sigma.Wrap(op, "", cerr)
	}
	given = true
	place.Take(conn)
	return nil
}

// reserve decides about the hello of a direct connection, or of a batch: then there is no place to
// take, and those that followed are the caller's.
func (n *Node) reserve(k *directKey, payload []byte) (Place, []*net.TCPConn, error) {
	from, target, b, err := ParseDirect(payload)
	if err != nil {
		return nil, nil, err
	}
	if from.Machine != k.link.Peer.Machine {
		return nil, nil, sigma.Errorf("link.reserve", sigma.KindPermission,
			"machine %s speaks for a proc of machine %s", k.link.Peer.Machine, from.Machine)
	}
	if err := n.standing(k.link.Peer, target); err != nil {
		return nil, nil, err
	}
	if b != nil {
		conns, err := n.takeBatch(k, from, target, b)
		return nil, conns, err
	}
	p, err := n.cfg.Reserve(Direct{k.link.Peer, from, target})
	return p, nil, err
}

// started is a connection whose dialler waits to say hello.
type started struct {
	conn  *net.TCPConn
	key   *directKey
	nonce [nonceBytes]byte
	since time.Time
}

// errNoKey says that the other side does not know the key: its link has ended there, which this
// side has not noticed.
var errNoKey = errors.New("the other machine has forgotten the key")

// errUnheard says that a connection ended before there was any answer to its hello.
var errUnheard = errors.New("the connection ended without an answer")

// begin makes a connection up to where it can wait.
func (n *Node) begin(ctx context.Context, m identity.Member, k *directKey) (*started, error) {
	done, err := n.turn(ctx, m.Machine) // the other side counts it as a handshake
	if err != nil {
		return nil, err
	}
	defer done()
	if err := n.mayDial(m); err != nil {
		return nil, err
	}
	raw, err := n.cfg.Connect(ctx, m.Address)
	if err != nil {
		return nil, n.unreached(ctx, m, err)
	}
	conn, ok := raw.(*net.TCPConn)
	if !ok {
		raw.Close()
		return nil, sigma.Errorf("link.DialDirect", sigma.KindUnsupported, "a direct connection needs TCP")
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	tune(conn)
	conn.SetDeadline(time.Now().Add(handshakeMax))
	s := &started{conn: conn, key: k, since: time.Now()}
	var said [1 + nonceBytes]byte
	_, err = conn.Write(append([]byte(directMagic), k.name[:]...))
	if err == nil {
		_, err = io.ReadFull(conn, said[:1])
	}
	if err == nil && said[0] == keyUnknown {
		err = errNoKey
	} else if err == nil {
		_, err = io.ReadFull(conn, said[1:])
	}
	if err == nil && said[0] != keyKnown {
		err = sigma.Errorf("link.DialDirect", sigma.KindInvalid, "machine %s does not answer as one", m.Machine)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		if errors.Is(err, errNoKey) {
			return nil, err
		}
		return nil, n.failed(ctx, m, err)
	}
	copy(s.nonce[:], said[1:])
	conn.SetDeadline(time.Time{})
	return s, nil
}

// ask says hello on a connection that has waited, and returns it if the other side agrees. It owns
// the connection.
func (s *started) ask(ctx context.Context, h *directHello, who string) (*net.TCPConn, error) {
	payload, err := sigmap.Payload(h.code)
	if err != nil {
		s.conn.Close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	s.conn.SetDeadline(time.Now().Add(handshakeMax))
	heard := false
	var reply []byte
	if err = s.key.say(s.conn, spokenByDialler, s.nonce[:], payload); err == nil {
		reply, err = s.key.hear(s.conn, spokenByOther, s.nonce[:], func() { heard = true })
	}
	if err == nil {
		_, _, err = ParseAnswer(reply, who)
	} else if !heard && ctx.Err() == nil {
		err = errUnheard
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.conn.Close()
		return nil, err
	}
	s.conn.SetDeadline(time.Time{})
	return s.conn, nil
}

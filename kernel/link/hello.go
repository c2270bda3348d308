package link

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Versions of what follows the TLS handshake that this machine speaks.
const (
	VersionLeast uint16 = 1
	VersionMost  uint16 = 1
)

// frameMax bounds the frames that set a link up: a hello with the longest path is below 5 KiB.
const (
	frameMax = 8 << 10
	grantMax = sigmap.DataMax
)

// TargetKind says what a link is for.
type TargetKind uint8

// The kinds of targets.
const (
	// a session with a service of that machine, by name: named, besched, s3d, machined, sigmad
	// itself
	ToService  TargetKind = 1
	ToEndpoint TargetKind = 2 // a connection to an endpoint of that machine, by its text
	ToStream   TargetKind = 3 // bytes for a socket of a service, by name: etcd's members among themselves
	ToBeat     TargetKind = 4 // heartbeats, which have a pace of their own: no back-off keeps them back
	ToDirect   TargetKind = 5 // nothing is said: the link gives the key of direct connections (direct.go)
)

// Target is what the machine that dials wants to reach.
type Target struct {
	Kind TargetKind
	Name string
}

// String is for people.
func (t Target) String() string {
	kinds := [...]string{"?", "service", "endpoint", "stream", "beat", "direct"}
	return fmt.Sprintf("%s %.80s", kinds[min(int(t.Kind), len(kinds)-1)], t.Name)
}

// targetMax is above what an endpoint's text can have.
const targetMax = 512

// Hello is the first thing that the machine that dials says.
type Hello struct {
	Least, Most uint16 // versions it speaks
	Clock       time.Time
	From        sigma.Principal // on whose behalf; Machine must be the one that dials
	Target      Target
}

// helloMagic starts a hello, so that a stranger's protocol is told apart from a later version.
const helloMagic = 0x314b4e4c // "LNK1"

// encode gives the hello's payload. The order of the first three fields is the same in all
// versions.
func (h *Hello) encode() ([]byte, error) {
	return sigmap.Payload(func(c *sigmap.Coder) {
		magic := uint32(helloMagic)
		c.U32(&magic)
		c.U16(&h.Least)
		c.U16(&h.Most)
		h.rest(c)
	})
}

func (h *Hello) rest(c *sigmap.Coder) {
	c.Time(&h.Clock)
	codeAsk(c, &h.From, &h.Target)
}

// codeAsk codes who wants what.
func codeAsk(c *sigmap.Coder, from *sigma.Principal, to *Target) {
	c.RealmID(&from.Realm)
	c.ProcID(&from.Proc)
	c.Str((*string)(&from.Machine))
	c.Bool(&from.System)
	c.U8((*uint8)(&to.Kind))
	c.Str(&to.Name)
}

// checkAsk says whether there can be such.
func checkAsk(op string, from sigma.Principal, to Target) error {
	switch {
	case to.Kind < ToService || to.Kind > ToDirect || to.Name == "" || len(to.Name) > targetMax:
		return sigma.Errorf(op, sigma.KindInvalid, "the hello names no target")
	case from.Realm != "" && from.Realm.Check() != nil || len(from.Proc) > 64 || from.Machine.Check() != nil:
		return sigma.Errorf(op, sigma.KindInvalid, "the hello says not on whose behalf it comes")
	}
	return nil
}

// ParseHello decodes a hello. A peer that speaks no version of ours gets an error that says which
// both speak.
func ParseHello(payload []byte) (Hello, error) {
	const op = "link.ParseHello"
	var h Hello
	if len(payload) < 8 || binary.LittleEndian.Uint32(payload) != helloMagic {
		return h, sigma.Errorf(op, sigma.KindInvalid, "this is no hello")
	}
	h.Least, h.Most = binary.LittleEndian.Uint16(payload[4:]), binary.LittleEndian.Uint16(payload[6:])
	if _, err := common(h.Least, h.Most); err != nil {
		return h, err
	}
	if err := sigmap.Parse(payload[8:], h.rest); err != nil {
		return h, sigma.Wrap(op, "", err)
	}
	return h, checkAsk(op, h.From, h.Target)
}

// common is the version that both sides speak: the highest.
func common(least, most uint16) (uint16, error) {
	switch {
	case least > most:
		return 0, sigma.Errorf("link.common", sigma.KindInvalid, "versions %d to %d are none", least, most)
	case least > VersionMost:
		return 0, versionError(least, most, "it is newer: upgrade this machine")
	case most < VersionLeast:
		return 0, versionError(least, most, "it is older: upgrade that machine")
	}
	return min(most, VersionMost), nil
}

func versionError(least, most uint16, hint string) error {
	return &sigma.Error{Op: "link.common", Kind: sigma.KindUnsupported, Hint: hint,
		Msg: fmt.Sprintf("the peer speaks versions %d to %d of the machines' protocol, this machine %d to %d", least,
			most, VersionLeast, VersionMost)}
}

// answer is what the other side says to a hello, and to an enrolment.
type answer struct {
	Version uint16 // that is spoken from now on; 0 = refused
	Clock   time.Time
	Kind    sigma.Kind // of a refusal
	Msg     string
	Hint    string
}

func (a *answer) code(c *sigmap.Coder) {
	c.U16(&a.Version)
	c.Time(&a.Clock)
	c.U16((*uint16)(&a.Kind))
	c.Str(&a.Msg)
	c.Str(&a.Hint)
}

// refusal makes the answer of an error: its kind and sentence, not its cause.
func refusal(err error, now time.Time) *answer {
	a := &answer{Clock: now, Kind: sigma.KindOf(err), Hint: clip(sigma.HintOf(err))}
	if e, ok := err.(*sigma.Error); ok {
		a.Msg = clip(e.Msg)
	}
	return a
}

// err is the refusal as this side reports it.
func (a *answer) err(op, who string) error {
	if a.Version != 0 {
		return nil
	}
	return &sigma.Error{Op: op, Kind: a.Kind, Msg: who + " refuses: " + clip(a.Msg), Hint: clip(a.Hint)}
}

func clip(s string) string { return s[:min(len(s), 1000)] }

// ParseAnswer decodes the answer to a hello and says what was refused. who names the peer in the
// error.
func ParseAnswer(payload []byte, who string) (version uint16, clock time.Time, err error) {
	var a answer
	if err := sigmap.Parse(payload, a.code); err != nil {
		return 0, time.Time{}, sigma.Wrap("link.ParseAnswer", "", err)
	}
	if err := a.err("link.ParseAnswer", who); err != nil {
		return 0, a.Clock, err
	}
	return a.Version, a.Clock, nil
}

// welcome is what a machine says to one that enrols, before anything is asked.
type welcome struct {
	Least, Most uint16
	System      sigma.SystemID
	Clock       time.Time
	Challenge   []byte
}

func (w *welcome) code(c *sigmap.Coder) {
	c.U16(&w.Least)
	c.U16(&w.Most)
	c.Str((*string)(&w.System))
	c.Time(&w.Clock)
	c.Data(&w.Challenge)
}

// writeFrame sends a payload with its length before it, and what comes after it, at once.
func writeFrame(w io.Writer, payload []byte, after ...byte) error {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(payload)+len(after)), uint32(len(payload)))
	_, err := w.Write(append(append(b, payload...), after...))
	return err
}

// readFrame reads one of at most limit bytes, and not a byte more than it.
func readFrame(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || int64(n) > int64(limit) {
		return nil, sigma.Errorf("link.readFrame", sigma.KindInvalid, "a frame claims %d bytes, %d are possible", n,
			limit)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

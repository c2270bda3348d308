package identity

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Enrolment is a machine's request to be registered: for the first time, with a token, or again,
// because its sigmad was started anew, because it was declared lost, or because its certificate
// expired. It is signed with the machine's key and, if it joins, with its token's; both signatures
// cover the challenge of the one who decides, so a request that was seen can be used neither again
// nor for another key, not even by the machine that passed it on.
type Enrolment struct {
	Challenge Challenge
	System    sigma.SystemID
	Machine   sigma.MachineID // the name it wants, or has
	Key       []byte          // its public key
	Token     TokenID         // "" = it is a member already
	Clock     time.Time       // the machine's
	Address   string          // host:port of its machine port, as others reach it; "" = it has none
	CPU       sigma.MilliCPU  // what it offers
	Memory    sigma.Bytes     // what it offers
	Version   string          // of its sigmad
	Labels    []string        // name=value

	KeyProof   []byte
	TokenProof []byte // empty without a token
}

// Limits of an Enrolment.
const (
	labelsMax  = 16
	addressMax = 255 + 6 // a host name and a port
	shortMax   = 64
)

const enrolContext = "sigmaos enrolment 1\x00"

func (e *Enrolment) code(c *sigmap.Coder) {
	challenge := e.Challenge[:]
	c.Data(&challenge)
	if c.Decoding() && copy(e.Challenge[:], challenge) != len(e.Challenge) {
		c.Fail("the challenge is too short")
	}
	c.Str((*string)(&e.System))
	c.Str((*string)(&e.Machine))
	c.Data(&e.Key)
	c.Str((*string)(&e.Token))
	c.Time(&e.Clock)
	c.Str(&e.Address)
	c.U32((*uint32)(&e.CPU))
	c.U64((*uint64)(&e.Memory))
	c.Str(&e.Version)
	c.Strs(&e.Labels)
}

// message is what is signed.
func (e *Enrolment) message() ([]byte, error) {
	c := sigmap.NewEncoder([]byte(enrolContext))
	e.code(c)
	return c.Bytes(), c.Finish()
}

// Sign proves the request with the machine's key and the token, if it names one.
func (e *Enrolment) Sign(key ed25519.PrivateKey, token *Token) error {
	e.Key, e.Token, e.TokenProof = key.Public().(ed25519.PublicKey), "", nil
	if token != nil {
		e.Token = token.ID()
	}
	m, err := e.message()
	if err != nil {
		return sigma.Wrap("identity.Sign", "", err)
	}
	e.KeyProof = ed25519.Sign(key, m)
	if token != nil {
		e.TokenProof = ed25519.Sign(token.private(), m)
	}
	return nil
}

// Encode gives the request as ParseEnrolment reads it.
func (e *Enrolment) Encode() ([]byte, error) {
	return sigmap.Payload(func(c *sigmap.Coder) { e.code(c); c.Data(&e.KeyProof); c.Data(&e.TokenProof) })
}

// ParseEnrolment decodes a request and checks its form, not its proofs.
func ParseEnrolment(payload []byte) (*Enrolment, error) {
	const op = "identity.ParseEnrolment"
	e := &Enrolment{}
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		e.code(c)
		c.Data(&e.KeyProof)
		c.Data(&e.TokenProof)
	}); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	if err := e.Machine.Check(); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	if err := e.System.Check(); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	switch {
	case len(e.Key) != ed25519.PublicKeySize || len(e.KeyProof) != ed25519.SignatureSize || len(e.TokenProof) != 0 &&
		len(e.TokenProof) != ed25519.SignatureSize:
		return nil, sigma.Errorf(op, sigma.KindInvalid, "a key or signature has the wrong length")
	case e.Address != "" && CheckAddress(e.Address) != nil: // whether a machine may do without is the judge's to say
		return nil, CheckAddress(e.Address)
	case len(e.Version) > shortMax || len(e.Token) > shortMax || len(e.Labels) > labelsMax:
		return nil, sigma.Errorf(op, sigma.KindTooBig, "a field is too long")
	}
	for _, l := range e.Labels {
		if len(l) > shortMax {
			return nil, sigma.Errorf(op, sigma.KindTooBig, "the label %.80q is too long", l)
		}
	}
	return e, nil
}

// CheckKey says whether the request comes from the holder of its key, is for this system and, so
// that certificates will be understood, from a machine whose clock is about right.
func (e *Enrolment) CheckKey(system sigma.SystemID, now time.Time) error {
	const op = "identity.CheckKey"
	m, err := e.message()
	switch {
	case err != nil:
		return sigma.Wrap(op, "", err)
	case e.System != system:
		return sigma.Errorf(op, sigma.KindPermission, "the request is for system %s, this is %s", e.System, system)
	case !ed25519.Verify(e.Key, m, e.KeyProof):
		return sigma.Errorf(op, sigma.KindPermission, "the request is not signed with the key it shows")
	}
	return CheckClock("machine "+string(e.Machine), e.Clock, now)
}

// CheckToken reports whether the sender knows the secret of the token that key belongs to.
func (e *Enrolment) CheckToken(key TokenKey) bool {
	m, err := e.message()
	return err == nil && e.Token != "" && len(e.TokenProof) == ed25519.SignatureSize &&
		ed25519.Verify(key[:], m, e.TokenProof)
}

// Challenge is a random number that is good for one request, soon.
type Challenge [48]byte

// Challenges makes them and knows which were used. A challenge says when it was made and is
// authenticated, so those that nobody uses cost no memory. Safe for concurrent use.
type Challenges struct {
	key [32]byte
	// from which a challenge says when it was made, so that a clock that is set meanwhile does not
	// matter
	start time.Time

	mu   sync.Mutex
	used map[Challenge]time.Time // mu; until they would be too old anyway
}

// Bounds of challenges. A joiner answers at once; usedMax bounds requests with good proofs within
// challengeAge.
const (
	challengeAge = time.Minute
	usedMax      = 16384
)

// NewChallenges makes a source of them; none that another made is good.
func NewChallenges() *Challenges {
	c := &Challenges{start: time.Now(), used: map[Challenge]time.Time{}}
	rand.Read(c.key[:])
	return c
}

// New makes one: time, random number, authentication code.
func (c *Challenges) New(now time.Time) (ch Challenge) {
	binary.LittleEndian.PutUint64(ch[:], uint64(now.Sub(c.start)))
	rand.Read(ch[8:16])
	copy(ch[16:], c.code(ch))
	return ch
}

func (c *Challenges) code(ch Challenge) []byte {
	h := hmac.New(sha256.New, c.key[:])
	h.Write(ch[:16])
	return h.Sum(nil)
}

// Use takes a challenge out of use, after the proofs over it were found good. The error says why it
// cannot be used.
func (c *Challenges) Use(now time.Time, ch Challenge) error {
	const op = "identity.Use"
	created := c.start.Add(time.Duration(binary.LittleEndian.Uint64(ch[:])))
	if !hmac.Equal(ch[16:], c.code(ch)) || now.Sub(created).Abs() > challengeAge {
		return &sigma.Error{Op: op, Kind: sigma.KindPermission,
			Msg: "the request answers no challenge of the last minute", Hint: "try again"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, twice := c.used[ch]; twice {
		// Who asks for a machine repeats what got no answer, so an honest machine can be told this:
		// it asks anew, with another challenge.
		return &sigma.Error{Op: op, Kind: sigma.KindStale, Msg: "the request was made before: it is a copy",
			Hint: "try again"}
	}
	if len(c.used) >= usedMax {
		for u, at := range c.used {
			if now.Sub(at) > challengeAge {
				delete(c.used, u)
			}
		}
		if len(c.used) >= usedMax {
			return sigma.Errorf(op, sigma.KindBusy, "%d machines have registered within %v", usedMax, challengeAge)
		}
	}
	c.used[ch] = created
	return nil
}

// Met holds what a joining machine learns of the system during the handshake.
type Met struct {
	System    sigma.SystemID
	Machine   sigma.MachineID // that answered
	Authority []byte          // DER, to be kept: it is what is trusted from now on
}

// EnrolConfig is for dialling a system without a certificate: authority is the fingerprint that a
// token carries, or that of the authority the machine knows. Only the genuine system gets through
// the handshake; met is filled in then.
func EnrolConfig(authority Fingerprint, now func() time.Time, met *Met) *tls.Config {
	if now == nil {
		now = time.Now
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Time: now, NextProtos: []string{ProtocolEnrol},
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, // VerifyConnection checks all of it, by the fingerprint
		VerifyConnection: func(cs tls.ConnectionState) error {
			t, err := only(cs.PeerCertificates, authority)
			if err != nil {
				return err
			}
			s, err := t.verify(cs.PeerCertificates, x509.ExtKeyUsageServerAuth, now())
			if err != nil {
				return err
			}
			if cs.NegotiatedProtocol != ProtocolEnrol {
				return sigma.Errorf("identity.EnrolConfig", sigma.KindUnsupported,
					"machine %s does not take machines in", s.Machine)
			}
			if err := s.validAt(now()); err != nil {
				return err
			}
			*met = Met{System: s.System, Machine: s.Machine, Authority: t.ders[0]}
			return nil
		}}
}

// CheckAddress says whether text is host:port with both present, since others will dial it.
func CheckAddress(text string) error {
	host, port, err := net.SplitHostPort(text)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || len(text) > addressMax || perr != nil || n == 0 ||
		strings.ContainsFunc(text, func(r rune) bool {
			return r <= ' ' || r > '~'
		}) {
		return &sigma.Error{Op: "identity.CheckAddress", Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf("%.80q is not an address", text), Hint: "write host:port, as in 10.0.0.2:7700"}
	}
	return nil
}

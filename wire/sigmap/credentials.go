package sigmap

import (
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// FileCredentials is /sys/credentials, by which owners make and revoke credentials of the session's
// realm, and from which they read them (docs/reference/credentials.md).
const FileCredentials = "credentials"

// Methods of FileCredentials.
var (
	CallCreateCredential = Method[NewCredential, MadeCredential]{Name: "create", Request: (*Coder).NewCredential,
		Reply: codeMadeCredential}
	// CallRevokeCredential is answered with the names that went: it, and those that it made.
	CallRevokeCredential = Method[string, []string]{Name: "credential-revoke", Request: (*Coder).Str,
		Reply: (*Coder).Strs}
)

// Methods by which sigmads ask named.
var (
	CallCredentials = Method[sigma.RealmID, []sigma.Credential]{Name: "credentials", Request: (*Coder).RealmID,
		Reply: (*Coder).Credentials}
	CallCredentialAdd = Method[AddCredential, sigma.Credential]{Name: "credential-add", Request: codeAddCredential,
		Reply: (*Coder).Credential}
	CallCredentialRevoke = Method[OfCredential, []string]{Name: "credential-revoke", Request: codeOfCredential,
		Reply: (*Coder).Strs}
	// CallCredentialCheck is answered in the order of the request.
	CallCredentialCheck = Method[[]Presented, []Verdict]{Name: "credential-check", Request: (*Coder).Presented,
		Reply: (*Coder).Verdicts}
)

// MadeCredential is a credential with its secret.
type MadeCredential struct {
	Credential sigma.Credential
	Text       string
}

// AddCredential says of which realm a new credential is.
type AddCredential struct {
	Realm sigma.RealmID
	New   NewCredential
}

// OfCredential names one.
type OfCredential struct {
	Realm sigma.RealmID
	Name  string
}

func codeMadeCredential(c *Coder, m *MadeCredential) {
	c.Credential(&m.Credential)
	c.Str(&m.Text)
}

func codeAddCredential(c *Coder, a *AddCredential) {
	c.RealmID(&a.Realm)
	c.NewCredential(&a.New)
}

func codeOfCredential(c *Coder, o *OfCredential) {
	c.RealmID(&o.Realm)
	c.Str(&o.Name)
}

// CheckMax is how many credentials are checked by one call.
const CheckMax = 256

// NewCredential asks for a credential. The hashes and By are for named; who asks sigmad leaves them
// empty.
type NewCredential struct {
	Name string
	Role sigma.Role
	TTL  time.Duration // 0 = it does not expire
	Hash sigma.CredentialHash
	By   string // the credential that makes it, as sigmad says; "" = the provider
	// ByHash is its hash, so that it is not taken for a later one of its name. All zero if the
	// provider makes it.
	ByHash sigma.CredentialHash
}

// Presented is a credential that somebody came with.
type Presented struct {
	Realm sigma.RealmID
	Name  string
	Hash  sigma.CredentialHash
}

// Verdict is what is said of it.
type Verdict struct {
	Role    sigma.Role // RoleNone = it is not good
	Expired bool       // then it was
}

// Hash is its bytes.
func (c *Coder) Hash(h *sigma.CredentialHash) {
	for i := range h {
		c.U8(&h[i])
	}
}

// NewCredential is its fields.
func (c *Coder) NewCredential(n *NewCredential) {
	c.Str(&n.Name)
	c.U8((*uint8)(&n.Role))
	c.Duration(&n.TTL)
	c.Hash(&n.Hash)
	c.Str(&n.By)
	c.Hash(&n.ByHash)
}

// Credential is its fields.
func (c *Coder) Credential(k *sigma.Credential) {
	c.Str(&k.Name)
	c.U8((*uint8)(&k.Role))
	c.Time(&k.Created)
	c.Time(&k.Expires)
	c.Str(&k.By)
}

// Credentials is a counted list.
func (c *Coder) Credentials(ks *[]sigma.Credential) { List(c, ks, 19, c.Credential) }

// Presented is a counted list.
func (c *Coder) Presented(ps *[]Presented) {
	List(c, ps, 36, func(p *Presented) { c.RealmID(&p.Realm); c.Str(&p.Name); c.Hash(&p.Hash) })
}

// Verdicts is a counted list.
func (c *Coder) Verdicts(vs *[]Verdict) {
	List(c, vs, 2, func(v *Verdict) { c.U8((*uint8)(&v.Role)); c.Bool(&v.Expired) })
}

// A program with a credential begins its connection to sigmad with a greeting, one record, and
// waits for the answer, one record; then it speaks sigmaP as on any other socket.
const greetingMagic = "sigma-greeting-1"

// GreetingMax bounds both records.
const GreetingMax = 1024

// Greeting is the credential as a record.
func Greeting(text string) []byte {
	b, err := Payload(func(c *Coder) { magic := greetingMagic; c.Str(&magic); c.Str(&text) })
	if err != nil || len(b) > GreetingMax {
		return nil // a text so long is no credential
	}
	return b
}

// IsGreeting says that a record means to be one, and is not of a session.
func IsGreeting(b []byte) bool {
	return len(b) >= 2+len(greetingMagic) && string(b[2:2+len(greetingMagic)]) == greetingMagic
}

// ParseGreeting reads what Greeting gives.
func ParseGreeting(b []byte) (text string, err error) {
	var magic string
	if len(b) > GreetingMax || Parse(b, func(c *Coder) {
		c.Str(&magic)
		c.Str(&text)
	}) != nil || magic != greetingMagic {
		return "", sigma.Errorf("sigmap.ParseGreeting", sigma.KindInvalid, "this is no greeting with a credential")
	}
	return text, nil
}

// Welcome is the answer to a greeting: err is nil if the credential is good.
func Welcome(err error) []byte {
	var kind uint16
	var msg, hint string
	if err != nil {
		kind, msg, hint = uint16(max(sigma.KindOf(err), sigma.KindOther)), cut(err.Error()), cut(sigma.HintOf(err))
	}
	good := err == nil
	b, _ := Payload(func(c *Coder) { c.Bool(&good); c.U16(&kind); c.Str(&msg); c.Str(&hint) })
	return b
}

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), 400)], "") }

// ParseWelcome reads what Welcome gives: nil, or the error that it was made of.
func ParseWelcome(b []byte) error {
	const op = "sigmap.ParseWelcome"
	var good bool
	var kind uint16
	var msg, hint string
	if len(b) > GreetingMax || Parse(b, func(c *Coder) {
		c.Bool(&good)
		c.U16(&kind)
		c.Str(&msg)
		c.Str(&hint)
	}) != nil {
		return sigma.Errorf(op, sigma.KindOther, "what answers here is not sigmaOS")
	}
	if good {
		return nil
	}
	return &sigma.Error{Op: op, Kind: sigma.Kind(kind), Msg: msg, Hint: hint}
}

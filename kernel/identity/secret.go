package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"

	"sigmaos.dev/sigma"
)

const (
	secretPrefix = "sigma-credential-1."
	secretSize   = 32 // random bytes: as many that no slow hash is needed
	secretSalt   = "sigmaos credential 1"
)

// Secret is what a person or a script has of a credential.
type Secret struct {
	Realm sigma.RealmID
	Name  string
	bytes [secretSize]byte
}

// NewSecret makes the secret of a new credential.
func NewSecret(realm sigma.RealmID, name string) Secret {
	s := Secret{Realm: realm, Name: name}
	rand.Read(s.bytes[:])
	return s
}

// Text is the secret, one word, for who will use it.
func (s Secret) Text() string {
	return secretPrefix + string(s.Realm) + "." + s.Name + "." + base64.RawURLEncoding.EncodeToString(s.bytes[:])
}

// Hash is what it is checked with. It is of no use for another realm or name.
func (s Secret) Hash() sigma.CredentialHash {
	return sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s", secretSalt, s.Realm, s.Name, s.bytes[:]))
}

// String names it: a secret that is logged by mistake gives nothing away.
func (s Secret) String() string { return "credential " + s.Name + " of realm " + string(s.Realm) }

// GoString is String, for %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue is String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// IsSecret reports whether a text claims to be a secret, so that it can be kept from where others
// would see it.
func IsSecret(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), secretPrefix) }

// ParseSecret reads what Text gives; spaces around it are ignored. The error never shows the text.
func ParseSecret(text string) (Secret, error) {
	bad := &sigma.Error{Op: "identity.ParseSecret", Kind: sigma.KindInvalid, Msg: "this is not a whole credential",
		Hint: "take all of the line that sigma realm credential create prints; it starts with " + secretPrefix}
	if len(text) > 2*sigma.CredentialTextMax {
		return Secret{}, bad
	}
	body, ok := strings.CutPrefix(strings.TrimSpace(text), secretPrefix)
	parts := strings.Split(body, ".")
	if !ok || len(parts) != 3 || len(parts[2]) != base64.RawURLEncoding.EncodedLen(secretSize) {
		return Secret{}, bad
	}
	s := Secret{Realm: sigma.RealmID(parts[0]), Name: parts[1]}
	b, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil || len(b) != secretSize || s.Realm.Check() != nil ||
		sigma.CheckCredential(s.Name, sigma.RoleViewer) != nil {
		return Secret{}, bad
	}
	copy(s.bytes[:], b)
	return s, nil
}

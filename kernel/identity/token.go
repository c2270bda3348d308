package identity

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"log/slog"
	"strings"

	"sigmaos.dev/sigma"
)

// TokenID names a token in lists; it is no secret.
type TokenID string

// TokenKey is what a token is checked with: the public half of a key that is derived from its
// secret. Knowing it helps nobody to join.
type TokenKey [ed25519.PublicKeySize]byte

// Token lets a machine join. Its text carries the secret that proves the right to join and the
// fingerprint by which the joiner knows the system, so each side knows the other before it says
// anything of value.
type Token struct {
	id        [8]byte
	secret    [16]byte
	authority Fingerprint
}

const (
	tokenPrefix = "sigma-token-1-"
	tokenSize   = 8 + 16 + sha256.Size + 4 // the last four are a checksum, for tokens that were copied badly
)

// NewToken makes a token for the system of an authority.
func NewToken(authority Fingerprint) Token {
	t := Token{authority: authority}
	rand.Read(t.id[:])
	rand.Read(t.secret[:])
	return t
}

// ID names it.
func (t Token) ID() TokenID { return TokenID(hex.EncodeToString(t.id[:])) }

// String names it too: a token that is logged by mistake gives nothing away.
func (t Token) String() string { return "token " + string(t.ID()) }

// GoString is String, for %#v.
func (t Token) GoString() string { return t.String() }

// LogValue is String, for slog.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// Text is the token with its secret, one word, for the one who will join.
func (t Token) Text() string {
	b := append(append(append([]byte(nil), t.id[:]...), t.secret[:]...), t.authority[:]...)
	sum := sha256.Sum256(b)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(b, sum[:4]...))
}

// ParseToken reads what Text gives; spaces around it are ignored. The error never shows the text,
// which may be a secret.
func ParseToken(text string) (Token, error) {
	var t Token
	bad := &sigma.Error{Op: "identity.ParseToken", Kind: sigma.KindInvalid, Msg: "this is not a whole token",
		Hint: "copy all of the line that sigma token create prints; it starts with " + tokenPrefix}
	body, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	if !ok || len(body) != base64.RawURLEncoding.EncodedLen(tokenSize) {
		return t, bad
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(b) != tokenSize {
		return t, bad
	}
	sum := sha256.Sum256(b[:tokenSize-4])
	if subtle.ConstantTimeCompare(sum[:4], b[tokenSize-4:]) != 1 {
		return t, bad
	}
	copy(t.id[:], b)
	copy(t.secret[:], b[8:])
	copy(t.authority[:], b[24:])
	return t, nil
}

// Authority is the fingerprint of the authority that the joiner must meet.
func (t Token) Authority() Fingerprint { return t.authority }

// Key is what the system keeps of the token.
func (t Token) Key() TokenKey { return TokenKey(t.private().Public().(ed25519.PublicKey)) }

// private derives the signing key. The secret has 128 random bits, so no slow hash is needed.
func (t Token) private() ed25519.PrivateKey {
	seed, err := hkdf.Key(sha256.New, t.secret[:], t.id[:], "sigmaos join token 1", ed25519.SeedSize)
	if err != nil { // only for lengths beyond the hash's limit
		panic(err)
	}
	return ed25519.NewKeyFromSeed(seed)
}

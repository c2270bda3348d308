package sigma

import (
	"fmt"
	"time"
)

// Role says what who has a credential of a realm may do there. Each includes the one before. What
// the provider's is (machines, other realms, shares and limits) no role has.
type Role uint8

// The roles.
const (
	RoleNone      Role = iota // nothing
	RoleViewer                // read names and files, procs, their output and why they wait, events and usage
	RoleDeveloper             // also change names and files, spawn procs and end them
	RoleOwner                 // also make and revoke the realm's credentials
)

func (r Role) String() string {
	switch r {
	case RoleNone:
		return "none"
	case RoleViewer:
		return "viewer"
	case RoleDeveloper:
		return "developer"
	case RoleOwner:
		return "owner"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// Check returns a KindInvalid error for what is no role that a credential can have.
func (r Role) Check() error {
	if r >= RoleViewer && r <= RoleOwner {
		return nil
	}
	return Errorf("sigma.Role.Check", KindInvalid, "%v is no role of a credential", r)
}

// ParseRole reads what String prints.
func ParseRole(s string) (Role, error) {
	for _, r := range []Role{RoleViewer, RoleDeveloper, RoleOwner} {
		if s == r.String() {
			return r, nil
		}
	}
	return RoleNone, &Error{Op: "sigma.ParseRole", Kind: KindInvalid, Msg: fmt.Sprintf("no role %.20q", s),
		Hint: "viewer: look; developer: also run and change; owner: also make credentials"}
}

// Credential lets who has its secret work in one realm, as its role says. The system keeps this and
// a hash of the secret.
type Credential struct {
	Name    string // unique in its realm; as a realm's
	Role    Role
	Created time.Time
	Expires time.Time // zero = never
	By      string    // the name of the credential that made it, with which it is revoked; "" = the provider
}

// Limits of credentials.
const (
	CredentialsMax    = 64                        // that a realm has
	CredentialAgeMax  = 10 * 365 * 24 * time.Hour // for which one that expires is good
	CredentialTextMax = 160                       // bytes of a secret's text
	credentialNameMax = 32
)

// CredentialHash is what the system keeps of a credential's secret (SHA-256; identity.Secret).
type CredentialHash [32]byte

// CheckCredential returns a KindInvalid error for what cannot be the name or the role of a
// credential.
func CheckCredential(name string, role Role) error {
	if err := checkLabel("credential", name, credentialNameMax); err != nil {
		return err
	}
	return role.Check()
}

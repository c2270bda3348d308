package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// credentialEnv names the variable with a credential, or with a file that holds one.
const credentialEnv = "SIGMA_CREDENTIAL"

// CredentialText is the credential that the flags or the environment name; "" if none. from says
// where it came from.
func (a *App) CredentialText() (text, from string, err error) {
	const hint = "make one with: sigma realm credential create --file FILE REALM"
	file := a.Credential
	switch variable, is := strings.CutPrefix(a.Credential, "@"); {
	case identity.IsSecret(a.Credential):
		return "", "", WithCode(ExitUsage, &sigma.Error{Op: "sigma.credential", Kind: sigma.KindInvalid,
			Msg:  "a credential on the command line can be read by all users",
			Hint: "put it into a file: --credential FILE, or into the environment: " + credentialEnv})
	case is:
		if text = a.Getenv(variable); text == "" {
			return "", "", WithCode(ExitUsage, &sigma.Error{Op: "sigma.credential", Kind: sigma.KindNotFound,
				Msg: fmt.Sprintf("the environment has no %.80q", variable), Hint: hint})
		}
		return text, variable, nil
	case file == "":
		file = a.Getenv(credentialEnv)
		if file == "" {
			return "", "", nil
		}
		if identity.IsSecret(file) {
			return file, credentialEnv, nil
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return "", "", &sigma.Error{Op: "sigma.credential", Path: file, Kind: sigma.KindOf(err),
			Msg: "the credential cannot be read", Err: errors.Unwrap(err), Hint: hint}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4*sigma.CredentialTextMax))
	if err != nil {
		return "", "", sigma.Wrap("sigma.credential", file, err)
	}
	return string(b), file, nil
}

// WarnOpen says that others can read a file with a credential.
func (a *App) WarnOpen(name string, f *os.File) {
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o044 != 0 {
		a.Remark(
			"warning: other users can read the credential in %s; take that away: chmod 600 FILE, or revoke it if one "+
				"may have read it", name)
	}
}

// connectAs connects with a credential if there is one. realm is what the command works in; the
// default means the credential's.
func (a *App) connectAs(ctx context.Context, realm sigma.RealmID) (c *sdk.Client, guest bool, err error) {
	text, from, err := a.CredentialText()
	if err != nil || text == "" {
		return nil, err != nil, err
	}
	secret, err := identity.ParseSecret(text)
	if err != nil {
		return nil, true, sigma.Wrap("sigma.connect", from, err)
	}
	if realm != secret.Realm {
		e := &sigma.Error{Op: "sigma.connect", Kind: sigma.KindPermission,
			Msg:  fmt.Sprintf("the credential in %s is of realm %s, not of %s", from, secret.Realm, realm),
			Hint: "use one of that realm, or leave --realm out"}
		if realm == sigma.SystemRealm {
			e.Msg, e.Hint = fmt.Sprintf("this is the provider's, and the credential in %s is of realm %s", from,
				secret.Realm), "work as root, without a credential"
		}
		return nil, true, e
	}
	if f, err := os.Open(from); err == nil { // no variable
		a.WarnOpen(from, f)
		f.Close()
	}
	c, err = sdk.ConnectAs(ctx, a.Socket(), secret.Text())
	return c, true, err
}

// Guest is the credential to work with, if there is one that can be read.
func (a *App) Guest() (identity.Secret, bool) {
	text, _, err := a.CredentialText()
	if err != nil || text == "" {
		return identity.Secret{}, false
	}
	secret, err := identity.ParseSecret(text)
	return secret, err == nil
}

// guestRealm makes the credential's realm the one to work in, unless another was named.
func (a *App) guestRealm(cmd *cobra.Command) {
	if secret, is := a.Guest(); is && !RealmGiven(cmd) && a.Getenv("SIGMA_REALM") == "" {
		a.Realm = string(secret.Realm)
	}
}

// Whole is the realm in which one reads of all realms: the system's; a guest's own, of which alone
// it is told.
func (a *App) Whole() sigma.RealmID {
	if secret, is := a.Guest(); is {
		return secret.Realm
	}
	return sigma.SystemRealm
}

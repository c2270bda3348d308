package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/identity"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// credentialEnv names the variable with a credential, or with a file that holds one.
const credentialEnv = "SIGMA_CREDENTIAL"

// credentialJSON is a credential as create prints it.
type credentialJSON struct {
	state.Credential
	Text string `json:"credential"` // the secret; only create knows it
}

func newCredentialCommand(a *app) *cobra.Command {
	return a.group("credential", "Make, list and revoke credentials of a realm",
		`A credential lets who has it work in one realm without being root: as viewer, who reads;
as developer, who also changes files and runs procs; or as owner, who also makes and
revokes credentials of the realm. Machines, other realms, shares and limits stay the
provider's. It is used with: sigma --credential FILE. The system keeps only a hash.`,
		newCredentialCreateCommand(a), newCredentialLsCommand(a), newCredentialRevokeCommand(a))
}

func newCredentialCreateCommand(a *app) *cobra.Command {
	role, name, file, expires := "developer", "", "", ""
	cmd := &cobra.Command{
		Use:   "create [--role ROLE] [--name NAME] [--expires TIME] [--file FILE] REALM",
		Short: "Make a credential",
		Long: `Make a credential of a realm and print it, once; with --file it is written there instead,
for its owner alone to read. Pass it on like a password. One that a credential makes is
good for no longer than that one, and is revoked with it.`,
		Example: `  sudo sigma realm credential create --file team-a.credential team-a
  sudo sigma realm credential create --role viewer --name grafana --expires 720h team-a`,
		Args: between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.credentialCreate(cmd.Context(), args[0], role, name, expires, file)
		},
	}
	cmd.Flags().StringVar(&role, "role", role, "`ROLE`: viewer, developer or owner")
	cmd.Flags().StringVar(&name, "name", name,
		"`NAME` by which it is listed and revoked (default: the role and a number)")
	cmd.Flags().StringVar(&expires, "expires", expires,
		"`TIME` for which it is good, as 720h or 30d (default: until it is revoked)")
	cmd.Flags().StringVar(&file, "file", file, "write it to a new `FILE` that only this user can read")
	return cmd
}

// parseAge reads a duration, or days.
func parseAge(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if d, err := time.ParseDuration(days + "h"); err == nil && d <= sigma.CredentialAgeMax {
			text = (24 * d).String()
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > sigma.CredentialAgeMax {
		return 0, usageError(nil, "write for example --expires 720h", "--expires %.40q is no time from 1s to %s", text,
			hours(sigma.CredentialAgeMax))
	}
	return d, nil
}

func (a *app) credentialCreate(ctx context.Context, realm, roleText, name, expires, file string) (err error) {
	n := sigmap.NewCredential{Name: name}
	if n.Role, err = sigma.ParseRole(roleText); err != nil {
		return withCode(exitUsage, err)
	}
	if expires != "" {
		if n.TTL, err = parseAge(expires); err != nil {
			return err
		}
	}
	f, caller, err := a.credentials(ctx, realm)
	if err != nil {
		return err
	}
	defer f.Close()
	if name == "" {
		if n.Name, err = freeName(ctx, f, n.Role); err != nil {
			return err
		}
	}
	if err := sigma.CheckCredential(n.Name, n.Role); err != nil {
		return withCode(exitUsage, err)
	}
	var to io.Writer = a.out
	if out, is := raw(a.out).(*os.File); is && file == "" {
		a.warnOpen("standard output", out)
	}
	if file != "" { // before there is a credential, so that none is lost
		w, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return sigma.Wrap("sigma.credential", file, err)
		}
		defer func() {
			if cerr := w.Close(); err == nil {
				err = cerr
			}
			if err != nil {
				os.Remove(file)
			}
		}()
		to = w
	}
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.NewCredential(&n) })
	if err != nil {
		return err
	}
	reply, _, err := caller.Call(ctx, sigmap.CallCreate, payload, nil)
	var made sigma.Credential
	text := ""
	if err == nil {
		err = sigmap.Parse(reply, func(c *sigmap.Coder) { c.Credential(&made); c.Str(&text) })
	}
	if err != nil {
		return err
	}
	if file != "" || !a.json {
		if _, err := fmt.Fprintln(to, text); err != nil {
			return err
		}
	}
	good := "until it is revoked"
	if !made.Expires.IsZero() {
		good = "until " + made.Expires.Format(time.RFC3339)
	}
	a.remark("credential %s of realm %s, %s, good %s; use it with: sigma --credential %s ls /", made.Name, realm,
		made.Role, good, orElse(file, "FILE"))
	if a.json {
		out := credentialJSON{state.OfCredential(sigma.RealmID(realm), made), text}
		if file != "" {
			out.Text = ""
		}
		return a.printJSON(out)
	}
	return nil
}

// freeName is a name for a credential that has none: its role, and the first number that is free.
func freeName(ctx context.Context, c *sdk.Client, role sigma.Role) (string, error) {
	all, err := lines[state.Credential](ctx, c, "/sys/"+sigmap.FileCredentials)
	if err != nil {
		return "", err
	}
	taken := map[string]bool{}
	for _, k := range all {
		taken[k.Name] = true
	}
	for i := 1; ; i++ {
		if name := fmt.Sprintf("%s-%d", role, i); !taken[name] {
			return name, nil
		}
	}
}

// credentials connects to a realm's /sys/credentials.
func (a *app) credentials(ctx context.Context, realm string) (*sdk.Client, sigma.Caller, error) {
	c, err := a.connectTo(ctx, sigma.RealmID(realm))
	if err != nil {
		return nil, nil, err
	}
	f, _, err := c.Root().Walk(ctx, []string{sigma.NameSys, sigmap.FileCredentials})
	if err == nil {
		if caller, ok := f.(sigma.Caller); ok {
			return c, caller, nil
		}
		err = sigma.PathError("sigma.credentials", sigma.KindNotFound, "/sys/"+sigmap.FileCredentials)
	}
	c.Close()
	if sigma.KindOf(err) == sigma.KindNotFound {
		err = &sigma.Error{Op: "sigma.credentials", Kind: sigma.KindPermission,
			Msg:  "credentials of realm " + realm + " are made, listed and revoked by its owners and the provider",
			Hint: "use a credential with the role owner, or root without one"}
	}
	return nil, nil, err
}

func newCredentialLsCommand(a *app) *cobra.Command {
	quiet := false
	cmd := &cobra.Command{
		Use:     "ls [-q] REALM",
		Aliases: []string{"list"},
		Short:   "List the credentials of a realm",
		Long: `List the credentials of a realm with their roles and until when they are good. Those that
expired are listed for a day. Secrets are not shown: nobody has them but who was given them.`,
		Example: `  sudo sigma realm credential ls team-a
  sigma --credential owner.credential realm credential ls team-a --json`,
		Args: between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.credentialLs(cmd.Context(), args[0], quiet) },
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	return cmd
}

func (a *app) credentialLs(ctx context.Context, realm string, quiet bool) error {
	c, _, err := a.credentials(ctx, realm)
	if err != nil {
		return err
	}
	defer c.Close()
	all, err := lines[state.Credential](ctx, c, "/sys/"+sigmap.FileCredentials)
	if err != nil {
		return err
	}
	return printList(a, all, quiet, func(k state.Credential) []any {
		expires := "never"
		if k.Expires != nil {
			if expires = "expired"; time.Now().Before(*k.Expires) {
				expires = "in " + short(time.Until(*k.Expires))
			}
		}
		return []any{k.Name, k.Role, orElse(k.By, "-"), ago(k.Created), expires}
	}, "CREDENTIAL", "ROLE", "MADE BY", "AGE", "EXPIRES")
}

func newCredentialRevokeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke REALM NAME...",
		Aliases: []string{"rm"},
		Short:   "Revoke credentials of a realm",
		Long: `Revoke credentials of a realm by their names. Sessions that they hold end within a second,
on all machines; procs that they started go on, since they are the realm's. With an
owner's go all that it made. The names of all that went are printed.`,
		Example: `  sudo sigma realm credential revoke team-a developer-1`,
		Args:    between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.credentialRevoke(cmd.Context(), args[0], args[1:])
		},
	}
}

func (a *app) credentialRevoke(ctx context.Context, realm string, names []string) error {
	c, caller, err := a.credentials(ctx, realm)
	if err != nil {
		return err
	}
	defer c.Close()
	var failed error
	went := map[string]bool{}
	for _, n := range names {
		if went[n] { // with the one that made it
			continue
		}
		gone, err := revokeOne(ctx, caller, n)
		failed = errors.Join(failed, err) // others are to go all the same
		for _, g := range gone {
			went[g] = true
			fmt.Fprintln(a.out, g)
		}
	}
	return failed
}

// revokeOne revokes a credential and gives the names of all that went.
func revokeOne(ctx context.Context, caller sigma.Caller, name string) (gone []string, err error) {
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.Str(&name) })
	if err != nil {
		return nil, err
	}
	reply, _, err := caller.Call(ctx, sigmap.CallCredentialRevoke, payload, nil)
	if err == nil {
		err = sigmap.Parse(reply, func(c *sigmap.Coder) { c.Strs(&gone) })
	}
	return gone, err
}

// credentialText is the credential that the flags or the environment name; "" if none. from says
// where it came from.
func (a *app) credentialText() (text, from string, err error) {
	const hint = "make one with: sigma realm credential create --file FILE REALM"
	file := a.credential
	switch variable, is := strings.CutPrefix(a.credential, "@"); {
	case identity.IsSecret(a.credential):
		return "", "", withCode(exitUsage, &sigma.Error{Op: "sigma.credential", Kind: sigma.KindInvalid,
			Msg:  "a credential on the command line can be read by all users",
			Hint: "put it into a file: --credential FILE, or into the environment: " + credentialEnv})
	case is:
		if text = a.getenv(variable); text == "" {
			return "", "", withCode(exitUsage, &sigma.Error{Op: "sigma.credential", Kind: sigma.KindNotFound,
				Msg: fmt.Sprintf("the environment has no %.80q", variable), Hint: hint})
		}
		return text, variable, nil
	case file == "":
		file = a.getenv(credentialEnv)
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

// warnOpen says that others can read a file with a credential.
func (a *app) warnOpen(name string, f *os.File) {
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o044 != 0 {
		a.remark(
			"warning: other users can read the credential in %s; take that away: chmod 600 FILE, or revoke it if one "+
				"may have read it", name)
	}
}

// connectAs connects with a credential if there is one. realm is what the command works in; the
// default means the credential's.
func (a *app) connectAs(ctx context.Context, realm sigma.RealmID) (c *sdk.Client, guest bool, err error) {
	text, from, err := a.credentialText()
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
		a.warnOpen(from, f)
		f.Close()
	}
	c, err = sdk.ConnectAs(ctx, a.socket(), secret.Text())
	return c, true, err
}

// guest is the credential to work with, if there is one that can be read.
func (a *app) guest() (identity.Secret, bool) {
	text, _, err := a.credentialText()
	if err != nil || text == "" {
		return identity.Secret{}, false
	}
	secret, err := identity.ParseSecret(text)
	return secret, err == nil
}

// guestRealm makes the credential's realm the one to work in, unless another was named.
func (a *app) guestRealm(cmd *cobra.Command) {
	if secret, is := a.guest(); is && !realmGiven(cmd) && a.getenv("SIGMA_REALM") == "" {
		a.realm = string(secret.Realm)
	}
}

// whole is the realm in which one reads of all realms: the system's; a guest's own, of which alone
// it is told.
func (a *app) whole() sigma.RealmID {
	if secret, is := a.guest(); is {
		return secret.Realm
	}
	return sigma.SystemRealm
}

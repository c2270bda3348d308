package realms

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// credentialJSON is a credential as create prints it.
type credentialJSON struct {
	report.Credential
	Text string `json:"credential"` // the secret; only create knows it
}

func newCredentialCommand(a *app) *cobra.Command {
	return cli.Parent("credential", "Make, list and revoke credentials of a realm",
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
		Args: cli.Between(1, 1),
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
		return 0, cli.UsageError(nil, "write for example --expires 720h", "--expires %.40q is no time from 1s to %s",
			text,
			cli.Hours(sigma.CredentialAgeMax))
	}
	return d, nil
}

func (a *app) credentialCreate(ctx context.Context, realm, roleText, name, expires, file string) (err error) {
	n := sigmap.NewCredential{Name: name}
	if n.Role, err = sigma.ParseRole(roleText); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	if expires != "" {
		if n.TTL, err = parseAge(expires); err != nil {
			return err
		}
	}
	f, served, err := a.credentials(ctx, realm)
	if err != nil {
		return err
	}
	if name == "" {
		if n.Name, err = freeName(ctx, f, n.Role); err != nil {
			return err
		}
	}
	if err := sigma.CheckCredential(n.Name, n.Role); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	var to io.Writer = a.Out
	if out, is := term.Raw(a.Out).(*os.File); is && file == "" {
		a.WarnOpen("standard output", out)
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
	m, err := sigmap.CallCreateCredential.Ask(ctx, served, n)
	if err != nil {
		return err
	}
	created, text := m.Credential, m.Text
	if file != "" || !a.JSON {
		if _, err := fmt.Fprintln(to, text); err != nil {
			return err
		}
	}
	good := "until it is revoked"
	if !created.Expires.IsZero() {
		good = "until " + created.Expires.Format(time.RFC3339)
	}
	a.Remark("credential %s of realm %s, %s, good %s; use it with: sigma --credential %s ls /", created.Name, realm,
		created.Role, good, cli.OrElse(file, "FILE"))
	if a.JSON {
		out := credentialJSON{report.OfCredential(sigma.RealmID(realm), created), text}
		if file != "" {
			out.Text = ""
		}
		return a.PrintJSON(out)
	}
	return nil
}

// freeName is a name for a credential that has none: its role, and the first number that is free.
func freeName(ctx context.Context, c *sdk.Client, role sigma.Role) (string, error) {
	all, err := cli.Lines[report.Credential](ctx, c, "/sys/"+sigmap.FileCredentials)
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
func (a *app) credentials(ctx context.Context, realm string) (c *sdk.Client, served sigma.Caller, err error) {
	if c, err = a.ClientOf(ctx, sigma.RealmID(realm)); err != nil {
		return nil, served, err
	}
	served, err = cli.ServiceOf(ctx, c, sigmap.FileCredentials)
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		err = &sigma.Error{Op: "sigma.credentials", Kind: sigma.KindPermission,
			Msg:  "credentials of realm " + realm + " are made, listed and revoked by its owners and the provider",
			Hint: "use a credential with the role owner, or root without one"}
	}
	return c, served, err
}

func newCredentialLsCommand(a *app) *cobra.Command {
	return cli.Listing(a.App, &cobra.Command{
		Use:   "ls [-q] REALM",
		Short: "List the credentials of a realm",
		Long: `List the credentials of a realm with their roles and until when they are good. Those that
expired are listed for a day. Secrets are not shown: nobody has them but who was given them.`,
		Example: `  sudo sigma realm credential ls team-a
  sigma --credential owner.credential realm credential ls team-a --json`,
		Args: cli.Between(1, 1),
	}, func(ctx context.Context, args []string) ([]report.Credential, error) {
		c, _, err := a.credentials(ctx, args[0])
		if err != nil {
			return nil, err
		}
		return cli.Lines[report.Credential](ctx, c, "/sys/"+sigmap.FileCredentials)
	}, func(k report.Credential) []any {
		expires := "never"
		if k.Expires != nil {
			if expires = "expired"; time.Now().Before(*k.Expires) {
				expires = "in " + term.Short(time.Until(*k.Expires))
			}
		}
		return []any{k.Name, k.Role, cli.OrElse(k.By, "-"), term.Ago(k.Created), expires}
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
		Args:    cli.Between(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.credentialRevoke(cmd.Context(), args[0], args[1:])
		},
	}
}

func (a *app) credentialRevoke(ctx context.Context, realm string, names []string) error {
	_, served, err := a.credentials(ctx, realm)
	if err != nil {
		return err
	}
	var failed error
	went := map[string]bool{}
	for _, n := range names {
		if went[n] { // with the one that made it
			continue
		}
		gone, err := sigmap.CallRevokeCredential.Ask(ctx, served, n)
		failed = errors.Join(failed, err) // others are to go all the same
		for _, g := range gone {
			went[g] = true
			fmt.Fprintln(a.Out, g)
		}
	}
	return failed
}

package members

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/sigma"
)

// TokenJSON is a token as token create and ls print it.
type TokenJSON struct {
	ID      string    `json:"id"`
	Token   string    `json:"token,omitempty"` // the secret; only create knows it
	Join    string    `json:"join,omitempty"`  // the command that uses it
	State   string    `json:"state"`           // good, used, expired or revoked
	Uses    int       `json:"uses"`            // left
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
}

func newTokenCommand(a *app) *cobra.Command {
	return cli.Parent("token", "Make, list and revoke tokens, with which machines join",
		`A token lets a machine join this system: sigma join ADDRESS --token TOKEN. It can be
used so many times and so long as it was made for, and be revoked. The system keeps
only what a token is checked with, so a token is shown once, when it is made.`,
		newTokenCreateCommand(a), newTokenLsCommand(a), newTokenRevokeCommand(a))
}

func newTokenCreateCommand(a *app) *cobra.Command {
	uses, ttl := 1, time.Hour
	cmd := &cobra.Command{
		Use:   "create [--uses N] [--ttl TIME]",
		Short: "Make a token",
		Long: `Make a token and print it. Who has it can make a machine of theirs one of this
system's, which sees what procs on it do: pass it on like a password.

There must be a machine that others can reach: started with sigma up --address.`,
		Example: `  sudo sigma token create
  sudo sigma token create --uses 20 --ttl 24h`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.tokenCreate(cmd.Context(), uses, ttl) },
	}
	cmd.Flags().IntVar(&uses, "uses", 1,
		"so many machines may join with it: `N` from 1 to "+fmt.Sprint(machines.TokenUsesMax))
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour,
		"`TIME` for which it is good, at most "+cli.Hours(machines.TokenAgeMax))
	return cmd
}

func (a *app) tokenCreate(ctx context.Context, uses int, ttl time.Duration) error {
	switch {
	case uses < 1 || uses > machines.TokenUsesMax:
		return cli.UsageError(nil, "", "a token can be used 1 to %d times, not %d", machines.TokenUsesMax, uses)
	case ttl <= 0 || ttl > machines.TokenAgeMax:
		return cli.UsageError(nil, "", "a token is good for at most %s, not %v", cli.Hours(machines.TokenAgeMax), ttl)
	}
	m, err := Open(ctx, a.App)
	if err != nil {
		return err
	}
	text, err := m.Token(ctx, uses, ttl)
	if err != nil {
		return err
	}
	tok, err := identity.ParseToken(text)
	if err != nil {
		return err
	}
	join := ""
	if address := m.joinAddress(ctx); address != "" {
		join = "sigma join " + address + " --token " + text
	}
	if a.JSON {
		return a.PrintJSON(TokenJSON{ID: string(tok.ID()), Token: text, Join: join, State: "good", Uses: uses,
			Made: time.Now(), Expires: time.Now().Add(ttl)})
	}
	fmt.Fprintln(a.Out, text)
	a.Remark("good for %s, for %v; on a machine with sigmaOS installed: sudo %s", cli.Count(uses, "machine"), ttl,
		cli.OrElse(join, "sigma join ADDRESS --token TOKEN"))
	return nil
}

// joinAddress is where a machine can join: this machine if it can be reached, else a control
// machine that is alive, else any. "" if that is not known.
func (m *Connection) joinAddress(ctx context.Context) string {
	all, err := m.List(ctx)
	if err != nil {
		return ""
	}
	rank := func(i sigma.MachineInfo) int {
		switch {
		case i.ID == m.Self:
			return 0
		case i.Control:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(x, y sigma.MachineInfo) int { return cmp.Compare(rank(x), rank(y)) })
	for _, i := range all {
		if i.Address != "" && i.State == sigma.MachineAlive {
			return i.Address
		}
	}
	return ""
}

func newTokenLsCommand(a *app) *cobra.Command {
	cmd := cli.Listing(a.App, &cobra.Command{
		Use:   "ls [-q]",
		Short: "List tokens",
		Long: `List tokens: how many uses are left, until when they are good, and whether they still
are. Those that ended are listed for a day. Secrets are not shown: nobody has them but
who made the token.`,
		Example: `  sudo sigma token ls
  sudo sigma token ls --json`,
	}, a.tokens, func(k TokenJSON) []any {
		expires := "-"
		if k.State == "good" {
			expires = "in " + term.Short(time.Until(k.Expires))
		}
		return []any{k.ID, k.State, k.Uses, term.Ago(k.Made), expires}
	}, "TOKEN", "STATE", "USES LEFT", "AGE", "EXPIRES")
	cmd.Flags().Lookup("quiet").Usage = "print ids only"
	return cmd
}

func tokenState(t machines.Token, now time.Time) string {
	switch {
	case t.Revoked:
		return "revoked"
	case t.Uses <= 0:
		return "used"
	case !now.Before(t.Expires):
		return "expired"
	}
	return "good"
}

func (a *app) tokens(ctx context.Context, _ []string) ([]TokenJSON, error) {
	m, err := Open(ctx, a.App)
	if err != nil {
		return nil, err
	}
	tokens, err := m.Tokens(ctx)
	slices.SortFunc(tokens, func(x, y machines.Token) int { return x.Made.Compare(y.Made) })
	return cli.Mapped(tokens, func(t machines.Token) TokenJSON {
		return TokenJSON{ID: string(t.ID), State: tokenState(t, time.Now()), Uses: t.Uses, Made: t.Made,
			Expires: t.Expires}
	}), err
}

func newTokenRevokeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke TOKEN...",
		Aliases: []string{"rm"},
		Short:   "Revoke tokens",
		Long: `Revoke tokens, given by their ids, by the start of one that no other has, or whole.
Machines that have joined with one stay: remove them with sigma machine rm.`,
		Example: `  sudo sigma token revoke 5f2c91d07ab3e648`,
		Args:    cli.Between(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.tokenRevoke(cmd.Context(), args) },
	}
}

func (a *app) tokenRevoke(ctx context.Context, words []string) error {
	m, err := Open(ctx, a.App)
	if err != nil {
		return err
	}
	tokens, err := m.Tokens(ctx)
	if err != nil {
		return err
	}
	ids := make([]identity.TokenID, len(words))
	for i, w := range words { // all are looked up before one is revoked
		if ids[i], err = findToken(tokens, w); err != nil {
			return err
		}
	}
	return cli.EachDone(a.App, ids, func(id identity.TokenID) error { return m.Revoke(ctx, id) })
}

// findToken gives the token that a person means.
func findToken(tokens []machines.Token, word string) (identity.TokenID, error) {
	const op = "sigma.findToken"
	shown := fmt.Sprintf("%.20q", word)
	if t, err := identity.ParseToken(word); err == nil {
		word = string(t.ID())
		shown = word
	}
	var found []identity.TokenID
	for _, t := range tokens {
		if string(t.ID) == word {
			return t.ID, nil
		}
		if word != "" && strings.HasPrefix(string(t.ID), word) {
			found = append(found, t.ID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", &sigma.Error{Op: op, Kind: sigma.KindNotFound, Msg: "there is no token " + shown,
			Hint: "list tokens with: sigma token ls"}
	}
	return "", &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: fmt.Sprintf("%d tokens start with %s", len(found),
		shown), Hint: "write more of it: sigma token ls"}
}

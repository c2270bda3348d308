// Package stores says which object store a realm's /s3 is on.
package stores

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/s3/store"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

const (
	// credentialsMax and authoritiesMax bound the files that store set reads.
	credentialsMax = 64 << 10
	authoritiesMax = 40 << 10
	// storeAddressesMax is how many addresses of a store's host are noted; they are tried in turn.
	storeAddressesMax = 16
)

// storeOptions say where objects are kept.
type storeOptions struct {
	all                               bool
	credentials, profile, region, cas string
}

// Command is "sigma s3 store".
func Command(base *cli.App) *cobra.Command {
	a := &app{base}
	cmd := cli.Parent("store", "Say in which object store objects are kept",
		`Objects are kept on the disk of the first machine unless a store of S3's kind is set, for
a realm or, with --all, for all that have none of their own.`)
	cmd.Example = `  sudo sigma s3 store ls`
	var o storeOptions
	set := &cobra.Command{
		Use:   "set [--all] --credentials FILE URL",
		Short: "Keep objects in a store of S3's kind",
		Long: `Keep the objects of the realm in a store of S3's kind, at http[s]://HOST[:PORT]/BUCKET
or a prefix below it; what is there already is seen, each directory below URL as a bucket.
With --all, keep there those of all realms that have no store of their own and no objects
on the local disk; each sees what is below its name.

--credentials names a file as S3's tools have it (~/.aws/credentials), which nobody else
may read, or is "-" for standard input. Only the object store (s3d) keeps what it says. HOST
is looked up now: set the store again if its addresses change. A realm with objects on
the local disk is refused. Whatever has objects open at this moment loses them.

This must be asked on the machine that serves the objects: the first of the system.`,
		Example: `  sudo sigma s3 store set --credentials ~/.aws/credentials --region eu-central-1 https://s3.eu-central-1.amazonaws.com/corp/sigma
  sudo sigma s3 store set --all --credentials keys.ini --ca ca.pem https://192.0.2.9:9000/objects`,
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.s3StoreSet(cmd.Context(), args[0], o) },
	}
	f := set.Flags()
	f.BoolVar(&o.all, "all", false, "for all realms that have none of their own")
	f.StringVar(&o.credentials, "credentials", "", "`FILE` with the keys, or -")
	f.StringVar(&o.profile, "profile", "default", "`NAME` of the section of that file")
	f.StringVar(&o.region, "region", "", "`REGION` of the store (default us-east-1)")
	f.StringVar(&o.cas, "ca", "",
		"`FILE` with the certificates of the authority of the store, in PEM (default: the well-known ones)")
	all, check := false, false
	rm := &cobra.Command{
		Use:   "rm [--all]",
		Short: "Keep objects on the local disk again",
		Long: `Forget the store of the realm or, with --all, that of all that have none of their own.
What is in it stays there, and is not seen any more.`,
		Example: `  sudo sigma s3 store rm`,
		RunE: a.InRealm(func(ctx context.Context, c *sdk.Client, _ []string) error {
			return c.SetStore(ctx, a.storeRealm(all), "", nil)
		}),
	}
	rm.Flags().BoolVar(&all, "all", false, "that of all realms that have none of their own")
	ls := cli.Listing(a.App, &cobra.Command{
		Use:   "ls [--check]",
		Short: "List the stores that are set",
		Long: `List the stores that are set, for all realms: that of the realm "system" is of all that
have none of their own. With --check each is asked how it is.`,
		Example: `  sudo sigma s3 store ls --check
  sudo sigma s3 store ls --json`,
	}, func(ctx context.Context, _ []string) ([]store.Info, error) {
		c, err := a.Client(ctx)
		if err != nil {
			return nil, err
		}
		return List(ctx, c, check)
	}, func(s store.Info) []any {
		return []any{s.Realm, s.URL, cli.OrElse(s.Region, "-"), cli.OrElse(s.State, "-")}
	}, "REALM", "URL", "REGION", "STATE")
	ls.Flags().BoolVar(&check, "check", false, "ask each how it is")
	cmd.AddCommand(set, ls, rm)
	return cmd
}

func (a *app) storeRealm(all bool) sigma.RealmID {
	if all {
		return sigma.SystemRealm
	}
	return sigma.RealmID(a.Realm)
}

func (a *app) s3StoreSet(ctx context.Context, address string, o storeOptions) error {
	st := store.Store{URL: address, Region: o.region}
	if o.credentials == "" {
		return cli.UsageError(nil, "name the file with the keys: --credentials FILE",
			"a store is of no use without credentials")
	}
	text, err := a.readSecret(o.credentials)
	if err != nil {
		return err
	}
	if st.AccessKey, st.SecretKey, st.Token, err = parseCredentials(text, o.profile); err != nil {
		return err
	}
	if o.cas != "" {
		pem, err := os.ReadFile(o.cas)
		if err != nil || len(pem) > authoritiesMax || !bytes.Contains(pem, []byte("-----BEGIN CERTIFICATE")) {
			return &sigma.Error{Op: "sigma.s3StoreSet", Path: o.cas, Kind: sigma.KindInvalid,
				Msg: "is no file of certificates in PEM", Err: err}
		}
		st.CA = string(pem)
	}
	if err := st.Check(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	at, err := storeAddresses(ctx, address)
	if err != nil {
		return err
	}
	if strings.HasPrefix(address, "http:") && !at[0].Addr().IsLoopback() {
		a.Remark("by http whoever is on the way to %s can read the objects; use https where that matters", at[0])
	}
	told, err := json.Marshal(st)
	if err != nil {
		return sigma.Errorf("sigma.s3StoreSet", sigma.KindInvalid, "the store cannot be told") // err might quote a key
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	names := make([]string, len(at))
	for i, x := range at {
		names[i] = x.String()
	}
	if err := c.SetStore(ctx, a.storeRealm(o.all), string(told), names); err != nil {
		return err
	}
	fmt.Fprintln(a.Out, address)
	return nil
}

// storeAddresses looks up where the host of a URL is.
func storeAddresses(ctx context.Context, address string) ([]netip.AddrPort, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, cli.UsageError(nil, "write for example https://s3.example.org/BUCKET", "not a URL")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	first, err := cli.Reachable(ctx, "URL", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, err
	}
	out := []netip.AddrPort{first}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cli.ResolveMax)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return out, nil // the first is good
	}
	for _, ip := range ips {
		if x := netip.AddrPortFrom(ip.Unmap(), first.Port()); x != first && ip.Zone() == "" &&
			len(out) < storeAddressesMax {
			out = append(out, x)
		}
	}
	return out, nil
}

// readSecret reads a file that nobody else may read, or standard input.
func (a *app) readSecret(name string) ([]byte, error) {
	const op = "sigma.readSecret"
	in := a.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, sigma.Wrap(op, name, err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return nil, sigma.Wrap(op, name, err)
		}
		if st.Mode().IsRegular() && st.Mode().Perm()&0o077 != 0 {
			return nil, &sigma.Error{Op: op, Path: name, Kind: sigma.KindPermission,
				Msg:  "others may read the keys in it",
				Hint: "chmod 600 " + name + ", or give them by standard input: --credentials -"}
		}
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, credentialsMax+1))
	if err != nil {
		return nil, sigma.Wrap(op, name, err)
	}
	if len(text) > credentialsMax {
		return nil, sigma.Errorf(op, sigma.KindTooBig, "a file of keys has at most %d bytes", credentialsMax)
	}
	return text, nil
}

// parseCredentials reads a file of sections of keys and values, as S3's tools have it. What is
// wrong is told without what is in it.
func parseCredentials(text []byte, profile string) (access, secret, token string, err error) {
	wrong := func(format string, args ...any) (string, string, string, error) {
		return "", "", "", &sigma.Error{Op: "sigma.parseCredentials", Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf(format, args...),
			Hint: "it looks like this: [default], and below it aws_access_key_id = ... and aws_secret_access_key = " +
				"..., each on a line of its own"}
	}
	section, number := "default", 0
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, credentialsMax+1)
	for lines.Scan() {
		number++
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			name, ok := strings.CutSuffix(line[1:], "]")
			if !ok {
				return wrong("line %d of the credentials is no name of a section", number)
			}
			section = strings.TrimSpace(name)
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return wrong("line %d of the credentials is no KEY = VALUE", number)
		}
		if section != profile {
			continue
		}
		to := map[string]*string{"aws_access_key_id": &access, "aws_secret_access_key": &secret,
			"aws_session_token": &token}[strings.TrimSpace(key)]
		if to != nil {
			*to = strings.TrimSpace(value)
		}
	}
	switch {
	case lines.Err() != nil:
		return wrong("the credentials have a line that is too long")
	case access == "" || secret == "":
		return wrong("the credentials have no aws_access_key_id and aws_secret_access_key in the section [%.100s]",
			profile)
	}
	return access, secret, token, nil
}

// Lister lists the stores as JSON (sdk.Client).
type Lister interface {
	Stores(ctx context.Context, after sigma.RealmID, ask bool) ([]byte, error)
}

// List lists all stores. With an error come those that were listed before it.
func List(ctx context.Context, c Lister, check bool) ([]store.Info, error) {
	all := []store.Info{}
	for after := sigma.RealmID(""); ; {
		text, err := c.Stores(ctx, after, check)
		if err != nil {
			return all, err
		}
		var page []store.Info
		if err := json.Unmarshal(text, &page); err != nil {
			return all, &sigma.Error{Op: "sigma.storesOf", Kind: sigma.KindInvalid,
				Msg: "sigmaOS does not say which stores there are", Err: err}
		}
		if len(page) == 0 || page[len(page)-1].Realm <= after {
			return all, nil
		}
		all, after = append(all, page...), page[len(page)-1].Realm
	}
}

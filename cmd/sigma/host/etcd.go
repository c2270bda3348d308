package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// etcdOptions say in which etcd the names are kept, if not in named's own.
type etcdOptions struct {
	members       []string
	ca, cert, key string
}

func (o *etcdOptions) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.members, "etcd", nil,
		"keep the names in the etcd at `HOST:PORT[,HOST:PORT...]` (default: in one of sigmaOS's own)")
	f.StringVar(&o.ca, "etcd-ca", "", "`FILE` with the certificates of the authority of that etcd, in PEM")
	f.StringVar(&o.cert, "etcd-cert", "", "`FILE` with the certificate that sigmaOS shows it")
	f.StringVar(&o.key, "etcd-key", "", "`FILE` with that certificate's key")
}

func (o *etcdOptions) given() bool {
	return o.members != nil || o.ca != "" || o.cert != "" || o.key != ""
}

// apply changes what was noted to what the flags say.
func (o *etcdOptions) apply(dir string, r *datadir.Record) error {
	if !o.given() {
		return nil
	}
	if r.Role == datadir.RoleOrdinary {
		return cli.UsageError(nil, "leave it out", "--etcd is for control machines, and machine %s is none", r.Machine)
	}
	e := &datadir.RecordEtcd{}
	if r.Etcd != nil {
		*e = *r.Etcd
	} else if _, err := os.Lstat(filepath.Join(dir, datadir.NamedName, "etcd")); err == nil {
		return datadir.Error(dir, sigma.KindExists, "has names in sigmaOS's own etcd, and they do not move",
			"leave --etcd out, or choose another with --data DIR")
	}
	if o.members != nil {
		e.Members = o.members
	}
	for _, f := range []struct{ from, to *string }{{&o.ca, &e.CA}, {&o.cert, &e.Cert}, {&o.key, &e.Key}} {
		if *f.from == "" {
			continue
		}
		path, err := filepath.Abs(*f.from)
		if err != nil {
			return sigma.Wrap("sigma.etcd", *f.from, err)
		}
		*f.to = path
	}
	switch {
	case len(e.Members) == 0:
		return cli.UsageError(nil, "write for example --etcd 192.0.2.9:2379",
			"--etcd-ca, --etcd-cert and --etcd-key go with --etcd")
	case len(e.Members) > sigmap.EtcdMembersMax:
		return cli.UsageError(nil, "name some of them", "--etcd names %d members, and %d are possible", len(e.Members),
			sigmap.EtcdMembersMax)
	case (e.Cert == "") != (e.Key == ""):
		return cli.UsageError(nil, "give both, or none if that etcd asks for none",
			"--etcd-cert and --etcd-key belong together")
	case e.Cert != "" && e.CA == "":
		return cli.UsageError(nil, "give --etcd-ca",
			"--etcd-cert is of no use without --etcd-ca: only with TLS is a certificate shown")
	}
	r.Etcd = e
	return nil
}

// resolveEtcd makes what sigmad and named are told.
func resolveEtcd(ctx context.Context, e *datadir.RecordEtcd) (*sigmap.Etcd, error) {
	out := &sigmap.Etcd{}
	for _, name := range e.Members {
		at, err := cli.Reachable(ctx, "--etcd", name)
		if err != nil {
			return nil, err
		}
		if e.CA == "" && !at.Addr().IsLoopback() {
			return nil, cli.UsageError(nil,
				"give --etcd-ca, --etcd-cert and --etcd-key; only an etcd on this host's loopback does without",
				"without --etcd-ca all names would go to %.100s in the clear, and anybody on the way could change them",
				name)
		}
		out.Members = append(out.Members, sigmap.EtcdMember{Name: name, Address: netip.AddrPortFrom(at.Addr(),
			at.Port()).String()})
	}
	for _, f := range []struct {
		path string
		to   *string
	}{{e.CA, &out.CA}, {e.Cert, &out.Cert}, {e.Key, &out.Key}} {
		if f.path == "" {
			continue
		}
		text, err := readPEM(f.path)
		if err != nil {
			return nil, err
		}
		*f.to = text
	}
	if err := out.Check(); err != nil {
		return nil, cli.WithCode(cli.ExitUsage, err)
	}
	return out, nil
}

func readPEM(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", &sigma.Error{Op: "sigma.etcd", Path: path, Kind: sigma.KindOf(err), Msg: "cannot be read",
			Err: errors.Unwrap(err), Hint: "see --etcd-ca, --etcd-cert and --etcd-key; they are read at each start"}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, sigmap.EtcdPEMMax+1))
	if err != nil {
		return "", sigma.Wrap("sigma.etcd", path, err)
	}
	if len(b) > sigmap.EtcdPEMMax || !bytes.Contains(b, []byte("-----BEGIN ")) {
		return "", &sigma.Error{Op: "sigma.etcd", Path: path, Kind: sigma.KindInvalid,
			Msg: "is no certificate or key in PEM"}
	}
	return string(b), nil
}

// lookAtEtcd finds out whether the names of the machine of DATA can be in the etcd that is noted;
// nil if none is. It has named look, which knows what it needs.
func lookAtEtcd(ctx context.Context, dir string, r *datadir.Record) (*sigmap.Etcd, error) {
	const op = "sigma.etcd"
	if r.Etcd == nil {
		return nil, nil
	}
	e, err := resolveEtcd(ctx, r.Etcd)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(e)
	if err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	programs, err := cli.FindPrograms()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, programs[datadir.NamedName], "--probe", filepath.Join(dir, datadir.NamedName))
	cmd.Stdin = bytes.NewReader(text)
	said, err := cmd.Output()
	if err == nil {
		return e, nil
	}
	var bad struct {
		Kind      sigma.Kind
		Msg, Hint string
	}
	if jerr := json.Unmarshal(said, &bad); jerr != nil || bad.Msg == "" {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
			Msg: fmt.Sprintf("named cannot look at the etcd at %s", strings.Join(r.Etcd.Members, ",")), Err: err}
	}
	return nil, &sigma.Error{Op: op, Kind: bad.Kind, Msg: bad.Msg, Hint: bad.Hint}
}

// putEtcd tells sigmad of it. Only sigmad can read the file, and it tells only named.
func putEtcd(dir, instance string, e *sigmap.Etcd) error {
	return tellSigmad(dir, instance, "etcd", e)
}

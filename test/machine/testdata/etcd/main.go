// Command etcd is an etcd of one member as an operator would run it: etcd DIR IP:PORT. It lets in
// who has DIR/cert.pem and key.pem, which it makes and shows itself. It prints "ready" when it
// serves. It syncs nothing to disk, since nobody pulls the plug.
package main

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

func main() {
	created, err := transport.SelfCert(zap.NewNop(), os.Args[1], []string{os.Args[2]}, 1, x509.ExtKeyUsageClientAuth)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	c := embed.NewConfig()
	c.Dir = filepath.Join(os.Args[1], "data")
	c.ClientTLSInfo = transport.TLSInfo{CertFile: created.CertFile, KeyFile: created.KeyFile, TrustedCAFile: created.CertFile,
		ClientCertAuth: true}
	c.ListenPeerUrls = nil
	c.ListenClientUrls = []url.URL{{Scheme: "https", Host: os.Args[2]}}
	c.AdvertiseClientUrls = c.ListenClientUrls
	c.MaxTxnOps, c.MaxRequestBytes = 100_000, 8<<20
	c.UnsafeNoFsync = true
	c.LogLevel = "error"
	e, err := embed.StartEtcd(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	<-e.Server.ReadyNotify()
	fmt.Println("ready")
	fmt.Fprintln(os.Stderr, <-e.Err())
	os.Exit(1)
}

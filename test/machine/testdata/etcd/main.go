// Command etcd is an etcd of one member as an operator would run it: etcd DIR IP:PORT. It prints "ready" when it serves. It syncs nothing to disk, since nobody pulls the plug.
package main

import (
	"fmt"
	"net/url"
	"os"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	c := embed.NewConfig()
	c.Dir = os.Args[1]
	c.ListenPeerUrls = nil
	c.ListenClientUrls = []url.URL{{Scheme: "http", Host: os.Args[2]}}
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

package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// ServeEtcd runs an etcd of one member in dir, on a port of the loopback that it prints, until ctx
// ends: of the version that named embeds, and with its way of writing to disk.
func ServeEtcd(ctx context.Context, dir string, out io.Writer) error {
	var urls []url.URL
	for range 2 {
		port, err := freePort()
		if err != nil {
			return err
		}
		urls = append(urls, url.URL{Scheme: "http", Host: fmt.Sprint("127.0.0.1:", port)})
	}
	c := embed.NewConfig()
	c.Dir = dir
	c.ListenClientUrls, c.AdvertiseClientUrls = urls[:1], urls[:1]
	c.ListenPeerUrls, c.AdvertisePeerUrls = urls[1:], urls[1:]
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.MaxRequestBytes, c.MaxTxnOps = 8<<20, 16896 // what sigma up --etcd asks for
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return err
	}
	fmt.Fprintln(out, urls[0].Host)
	select {
	case err := <-e.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}

// freePort gives a port of the loopback that nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// awaitPort waits until somebody listens at address.
func awaitPort(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			c.Close()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nobody listens at %s: %w", address, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func discard(r io.Reader) { io.Copy(io.Discard, r) }

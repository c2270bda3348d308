package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// EtcdMember is one of an etcd's members, by what ServeEtcd needs of it.
type EtcdMember struct {
	Dir            string
	Number         int      // among Peers and Clients
	Peers, Clients []string // addresses that members have for each other, and for clients; nil = one member
}

// ServeEtcd runs a member of an etcd until ctx ends, and prints its address for clients. An etcd of
// one member takes ports of the loopback. It is of the version that named embeds, with its way of
// writing to disk.
func ServeEtcd(ctx context.Context, m EtcdMember, out io.Writer) error {
	for _, list := range []*[]string{&m.Clients, &m.Peers} {
		if len(*list) == 0 {
			port, err := freePort()
			if err != nil {
				return err
			}
			*list = []string{fmt.Sprint("127.0.0.1:", port)}
		}
	}
	if n := len(m.Peers); m.Number < 0 || m.Number >= n || len(m.Clients) != n {
		return fmt.Errorf("member %d of %d, with %d addresses for clients", m.Number, n, len(m.Clients))
	}
	var cluster []string
	for i, p := range m.Peers {
		cluster = append(cluster, fmt.Sprintf("%d=http://%s", i, p))
	}
	at := func(list []string) []url.URL { return []url.URL{{Scheme: "http", Host: list[m.Number]}} }
	c := embed.NewConfig()
	c.Dir, c.Name = m.Dir, fmt.Sprint(m.Number)
	c.ListenClientUrls, c.AdvertiseClientUrls = at(m.Clients), at(m.Clients)
	c.ListenPeerUrls, c.AdvertisePeerUrls = at(m.Peers), at(m.Peers)
	c.InitialCluster = strings.Join(cluster, ",")
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
	fmt.Fprintln(out, m.Clients[m.Number])
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

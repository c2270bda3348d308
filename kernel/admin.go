package kernel

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// The sockets in the kernel's data directory. They are mode 0600, in rootless mode 0660, and,
// because a mode can be changed, checked by peer credentials as well. In rootless mode the one user
// who is uid 0 here is who started the launcher: any other is not mapped.
const (
	adminSocket = "admin.sock" // SOCK_SEQPACKET: the sigma dialect, with file descriptors
	plainSocket = "9p.sock"    // SOCK_STREAM: any 9P2000.L client
)

// listenAdmin opens the admin sockets.
func (k *Kernel) listenAdmin() error {
	ls := map[string]*net.UnixListener{}
	for name, network := range map[string]string{adminSocket: "unixpacket", plainSocket: "unix"} {
		path := filepath.Join(k.cfg.Data, name)
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return sigma.Wrap("kernel.listenAdmin", path, err)
		}
		mask := 0o177
		if k.cfg.Rootless {
			mask = 0o117
		}
		old := unix.Umask(mask)
		l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
		unix.Umask(old)
		if err != nil {
			return sigma.Wrap("kernel.listenAdmin", path, err)
		}
		ls[network] = l
	}
	for network, l := range ls { // now that the umask, which is that of the process, does not change any more
		stop := context.AfterFunc(k.life.ctx, func() { l.Close() })
		k.life.Go(func() {
			defer stop()
			k.acceptAdmin(l, network == "unixpacket")
		})
	}
	if l := k.cfg.RealmSocket; l != nil {
		k.life.Go(func() { k.guests.Accept(k.life.ctx, l) })
	}
	return nil
}

func (k *Kernel) acceptAdmin(l *net.UnixListener, packets bool) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if k.life.ctx.Err() != nil {
				return
			}
			k.cfg.Log.Error("admin socket failed", "err", err) // of descriptors there may be enough again soon
			select {
			case <-time.After(guests.AcceptAgain):
			case <-k.life.ctx.Done():
			}
			continue
		}
		if uid, err := guests.PeerUID(c); err != nil || uid != 0 && uid != uint32(os.Getuid()) {
			k.cfg.Log.Warn("admin connection refused", "uid", uid)
			c.Close()
			continue
		}
		conn := session.NewStreamConn(c)
		if packets {
			conn = session.NewPacketConn(c, false)
		}
		k.life.Go(func() {
			k.sessions.Serve(k.life.ctx, conn, sigma.Principal{Realm: sigma.SystemRealm, Machine: k.cfg.Machine,
				System: true})
		})
	}
}

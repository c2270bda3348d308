package link

import (
	"context"
	"io"
	"net"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Bridge passes sigmaP messages between a session of another machine and one of this machine, until
// either ends or ctx does; it closes both. File descriptors do not travel between machines: an
// answer that has some becomes a refusal of its request (KindUnsupported), after which clients read
// the bytes in band; a request loses them, as with a server that wants none.
func Bridge(ctx context.Context, remote, service session.Conn) {
	end := func() { remote.Close(); service.Close() }
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	both.Go(func() { defer end(); pass(remote, service) })
	both.Go(func() { defer end(); pass(service, remote) })
	both.Wait()
}

func pass(from, to session.Conn) {
	for {
		msg, files, err := from.Recv()
		if err != nil {
			return
		}
		if len(files) > 0 {
			session.CloseFiles(files)
			if msg, err = withoutFiles(msg); err != nil {
				return
			}
		}
		if err := to.Send(msg, nil); err != nil {
			return
		}
	}
}

// withoutFiles is what goes on of a message that came with files.
func withoutFiles(msg []byte) ([]byte, error) {
	tag, m, err := sigmap.Decode(msg)
	if err != nil {
		return nil, err
	}
	if m.Type()%2 == 0 { // requests have even types, their answers the next ones (9P intro(5))
		return msg, nil
	}
	return sigmap.Encode(nil, tag, sigmap.Fail(sigma.Errorf("link.Bridge", sigma.KindUnsupported,
		"file descriptors do not travel between machines"), false))
}

// Relay passes bytes both ways until both directions have ended, or either failed, or ctx ends; it
// closes both. An end of one direction is passed on if the other side can be half closed.
func Relay(ctx context.Context, a, b net.Conn) {
	end := func() { a.Close(); b.Close() }
	defer end()
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	both.Go(func() { stream(a, b, end) })
	both.Go(func() { stream(b, a, end) })
	both.Wait()
}

func stream(from, to net.Conn, end func()) {
	if _, err := io.Copy(to, from); err != nil {
		end()
		return
	}
	if h, ok := to.(interface{ CloseWrite() error }); !ok || h.CloseWrite() != nil {
		end()
	}
}

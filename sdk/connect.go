package sdk

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// A program outside has a connection that ends with sigmad. Its Client makes another to the next
// sigmad: what was under way gets KindLost, what comes meanwhile waits, long waits go on.
const (
	// redialPause is the time before each attempt to connect again.
	redialPause = 50 * time.Millisecond
	// awayMost is how long a sigmad may be away before the Client ends. One that died is started
	// again within 2 s as a rule, and after several deaths in a row within 5 s.
	awayMost = 10 * time.Second
	// goneMost is how long its socket may be missing. A sigmad that is stopped in good order
	// removes it; one that is started replaces it in one moment.
	goneMost = time.Second
)

// connect makes the Client of a program outside, which dial connects now and after each death of
// sigmad.
func connect(ctx context.Context, realm string, dial func(context.Context) (*net.UnixConn, error)) (*Client, error) {
	c, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	s, err := session.DialLasting(ctx, session.NewPacketConn(c, true), func(ctx context.Context) (session.Conn, error) {
		c, err := redial(ctx, dial)
		if err != nil {
			return nil, err
		}
		return session.NewPacketConn(c, true), nil
	})
	if err != nil {
		return nil, err
	}
	return start(ctx, s, realm)
}

// redial connects to the next sigmad.
func redial(ctx context.Context, dial func(context.Context) (*net.UnixConn, error)) (*net.UnixConn, error) {
	pause := time.NewTicker(redialPause)
	defer pause.Stop()
	for began := time.Now(); ; {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, sigma.Wrap("sdk.Connect", "", ctx.Err())
		}
		within, cancel := context.WithTimeout(ctx, awayMost)
		c, err := dial(within)
		cancel()
		if err == nil {
			return c, nil
		}
		most := awayMost
		if errors.Is(err, fs.ErrNotExist) {
			most = goneMost
		}
		if !sigma.KindOf(err).Retryable() || time.Since(began) > most {
			return nil, err
		}
	}
}

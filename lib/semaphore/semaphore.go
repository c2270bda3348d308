package semaphore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// SizeMax bounds permits: each is a file of one directory that is listed.
const SizeMax = 4096

// retryPause is the time before names that are away are asked again.
const retryPause = 50 * time.Millisecond

// Config is a semaphore, the same for all who use it.
type Config struct {
	Dir  string
	Size int           // permits
	TTL  time.Duration // after which a silent holder loses its permit. 0 = 5 s
}

// Semaphore gives permits. Safe for concurrent use.
type Semaphore struct {
	names sigma.Namespace
	cfg   Config
}

// Permit is held until Release, or until the holder's lease ends.
type Permit struct {
	revoke func(context.Context) error
	stop   context.CancelFunc
	lost   chan struct{}
	ended  sync.WaitGroup
}

// New makes the semaphore's directory if there is none. KindInvalid: it has another size.
func New(ctx context.Context, n sigma.Namespace, cfg Config) (*Semaphore, error) {
	const op = "semaphore.New"
	if cfg.TTL == 0 {
		cfg.TTL = 5 * time.Second
	}
	if cfg.Size < 1 || cfg.Size > SizeMax || cfg.TTL < 0 {
		return nil, &sigma.Error{Op: op, Path: cfg.Dir, Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf("a semaphore has no %d permits", cfg.Size), Hint: fmt.Sprint("from 1 to ", SizeMax)}
	}
	if err := n.MkdirAll(ctx, cfg.Dir+"/held", 0o755); err != nil {
		return nil, sigma.Wrap(op, cfg.Dir, err)
	}
	path := cfg.Dir + "/size"
	_, err := n.Put(ctx, path, strconv.AppendInt(nil, int64(cfg.Size), 10), sigma.PutOptions{MustMake: true})
	if err != nil && sigma.KindOf(err) == sigma.KindExists {
		var text []byte
		if text, _, err = n.Get(ctx, path); err == nil && string(text) != strconv.Itoa(cfg.Size) {
			return nil, &sigma.Error{Op: op, Path: path, Kind: sigma.KindInvalid,
				Msg:  fmt.Sprintf("the semaphore has %.20q permits, not %d", text, cfg.Size),
				Hint: "have all programs name one size; to change it, remove the directory while nobody holds a permit"}
		}
	}
	return &Semaphore{n, cfg}, sigma.Wrap(op, path, err)
}

// Acquire waits for a permit. An error leaves nothing behind.
func (s *Semaphore) Acquire(ctx context.Context) (*Permit, error) {
	p, err := s.acquire(ctx)
	return p, sigma.Wrap("semaphore.Acquire", s.cfg.Dir, err)
}

func (s *Semaphore) acquire(ctx context.Context) (*Permit, error) {
	lease, revoke, err := s.names.Lease(ctx, s.cfg.TTL)
	if err != nil {
		return nil, err
	}
	word := rand.Text()
	path, id, err := s.stand(ctx, lease, word)
	if err != nil {
		revoke(context.WithoutCancel(ctx))
		return nil, err
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &Permit{revoke: revoke, stop: stop, lost: make(chan struct{})}
	p.ended.Go(func() {
		if s.gone(watching, path, word, id.Version) {
			close(p.lost)
		}
	})
	return p, nil
}

// stand waits until the caller is first in line, and then until a permit is free.
func (s *Semaphore) stand(ctx context.Context, lease sigma.LeaseID, word string) (path string, id sigma.FileID,
	err error) {
	// The place in line has its own lease, by which it is given up whoever has it by then.
	line, leave, err := s.names.Lease(ctx, s.cfg.TTL)
	if err != nil {
		return "", id, err
	}
	defer leave(context.WithoutCancel(ctx))
	_, err = s.names.Put(ctx, s.cfg.Dir+"/line", nil, sigma.PutOptions{MustMake: true, Wait: true, Lease: line})
	if err != nil {
		return "", id, err
	}
	held := s.cfg.Dir + "/held"
	for {
		st, err := s.names.Stat(sigma.WithSync(ctx), held)
		if err != nil {
			return "", id, err
		}
		entries, err := s.names.ReadDir(sigma.WithSync(ctx), held)
		if err != nil {
			return "", id, err
		}
		taken := map[string]bool{}
		for _, e := range entries {
			taken[e.Name] = true
		}
		for i := range s.cfg.Size {
			name := strconv.Itoa(i)
			if taken[name] {
				continue
			}
			path = held + "/" + name
			id, err = s.names.Put(ctx, path, []byte(word), sigma.PutOptions{MustMake: true, Lease: lease})
			if err == nil || sigma.KindOf(err) != sigma.KindExists {
				return path, id, err
			}
		}
		if _, err := s.names.Watch(ctx, held, st.ID.Version); err != nil && !again(err) {
			return "", id, err
		}
	}
}

// again tells whether a watch that failed is to be made again.
func again(err error) bool {
	kind := sigma.KindOf(err)
	return kind == sigma.KindLost || kind.Retryable()
}

// gone waits until the file is not the holder's any more, and is false if ctx ended before.
func (s *Semaphore) gone(ctx context.Context, path, word string, v sigma.Version) bool {
	for {
		now, err := s.names.Watch(ctx, path, v)
		if err == nil {
			var text []byte
			v = now
			if text, _, err = s.names.Get(sigma.WithSync(ctx), path); err == nil && string(text) != word {
				return true
			}
		}
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil && sigma.KindOf(err) == sigma.KindNotFound:
			return true
		case err != nil:
			if !retry.Pause(ctx, retryPause) {
				return false
			}
		}
	}
}

// Lost is closed when the permit is known to be lost.
func (p *Permit) Lost() <-chan struct{} { return p.lost }

// Release gives the permit back. After an error it is given back at the end of its lease.
func (p *Permit) Release(ctx context.Context) error {
	p.stop()
	p.ended.Wait()
	err := p.revoke(ctx)
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound { // it had expired
		return nil
	}
	return sigma.Wrap("semaphore.Release", "", err)
}

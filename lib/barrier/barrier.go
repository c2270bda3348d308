package barrier

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// PartiesMax bounds parties.
const PartiesMax = 1024

const retryPause = 20 * time.Millisecond

// Config is a barrier, the same for all parties.
type Config struct {
	Dir string
	N   int           // parties
	TTL time.Duration // after which a silent party counts as dead. 0 = 5 s
}

// Party is one of those who wait for each other. It is for one goroutine at a time.
type Party struct {
	names  sigma.Namespace
	cfg    Config
	name   string
	revoke func(context.Context) error
}

// state is the file in which a round gathers.
type state struct {
	Round uint64   `json:"round"` // that gathers
	N     int      `json:"n"`
	Here  []string `json:"here"`
	// Broken counts the attempts at rounds that ended with the death of a party, the last of Dead.
	Broken uint64 `json:"broken,omitempty"`
	Dead   string `json:"dead,omitempty"`
}

// decode reads a state; nothing is that of a new barrier.
func decode(b []byte, n int) (state, error) {
	s := state{Round: 1, N: n}
	if len(b) == 0 {
		return s, nil
	}
	err := json.Unmarshal(b, &s)
	if err == nil && (s.N != n || len(s.Here) >= n) {
		err = fmt.Errorf("it is for %d parties, of which %d are here", s.N, len(s.Here))
	}
	if err != nil {
		return s, &sigma.Error{Op: "barrier.decode", Kind: sigma.KindInvalid, Msg: "this is no round of the barrier",
			Hint: "have all parties name one N, and remove the directory to begin anew", Err: err}
	}
	return s, nil
}

// Join makes the caller a party under a name. KindExists: a party of that name lives.
func Join(ctx context.Context, n sigma.Namespace, cfg Config, name string) (*Party, error) {
	const op = "barrier.Join"
	if cfg.TTL == 0 {
		cfg.TTL = 5 * time.Second
	}
	if cfg.N < 1 || cfg.N > PartiesMax {
		return nil, &sigma.Error{Op: op, Path: cfg.Dir, Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf("a barrier has no %d parties", cfg.N), Hint: fmt.Sprint("from 1 to ", PartiesMax)}
	}
	err := n.MkdirAll(ctx, cfg.Dir+"/parties", 0o755)
	if err != nil {
		return nil, sigma.Wrap(op, cfg.Dir, err)
	}
	lease, revoke, err := n.Lease(ctx, cfg.TTL)
	if err != nil {
		return nil, sigma.Wrap(op, cfg.Dir, err)
	}
	p := &Party{names: n, cfg: cfg, name: name, revoke: revoke}
	_, err = n.Put(ctx, p.file(name), nil, sigma.PutOptions{MustMake: true, Lease: lease})
	if err == nil { // a former party of the name may have died at the barrier
		_, err = p.change(ctx, func(s *state) bool { return s.withdraw(name) })
	}
	if err != nil {
		revoke(context.WithoutCancel(ctx))
		return nil, sigma.Wrap(op, p.file(name), err)
	}
	return p, nil
}

func (p *Party) file(name string) string { return p.cfg.Dir + "/parties/" + name }

func (s *state) withdraw(name string) bool {
	i := slices.Index(s.Here, name)
	if i >= 0 {
		s.Here = slices.Delete(s.Here, i, i+1)
	}
	return i >= 0
}

// change changes the state in one step; what do refuses is not written. It gives the state after.
func (p *Party) change(ctx context.Context, do func(*state) bool) (state, error) {
	path := p.cfg.Dir + "/round"
	for {
		text, id, err := p.names.Get(sigma.WithSync(ctx), path)
		created := err == nil
		if !created && sigma.KindOf(err) != sigma.KindNotFound {
			return state{}, err
		}
		s, err := decode(text, p.cfg.N)
		if err != nil || !do(&s) {
			return s, err
		}
		if text, err = json.Marshal(s); err != nil {
			return s, err
		}
		_, err = p.names.Put(ctx, path, text, sigma.PutOptions{MustMake: !created, IfVersion: id.Version})
		switch kind := sigma.KindOf(err); {
		case err == nil:
			return s, nil
		case kind == sigma.KindVersion, kind == sigma.KindExists, kind == sigma.KindNotFound: // others were faster
		default:
			return s, err
		}
	}
}

// Await waits until all parties are there, and gives the round that begins. KindLost: a party has
// died or left, which the error names; KindStale: this one counts as dead, and has to join again.
func (p *Party) Await(ctx context.Context) (round uint64, err error) {
	const op = "barrier.Await"
	if _, err := p.names.Stat(sigma.WithSync(ctx), p.file(p.name)); err != nil {
		if sigma.KindOf(err) == sigma.KindNotFound {
			err = &sigma.Error{Kind: sigma.KindStale, Msg: "this party's lease has ended", Hint: "join again", Err: err}
		}
		return 0, sigma.Wrap(op, p.cfg.Dir, err)
	}
	broken := uint64(0)
	s, err := p.change(ctx, func(s *state) bool {
		round, broken = s.Round, s.Broken
		if slices.Contains(s.Here, p.name) { // since an Await before that failed
			return false
		}
		if s.Here = append(s.Here, p.name); len(s.Here) == s.N {
			s.Round, s.Here = s.Round+1, nil
		}
		return true
	})
	if err != nil || s.Round > round {
		return round, sigma.Wrap(op, p.cfg.Dir, err)
	}
	return round, sigma.Wrap(op, p.cfg.Dir, p.gather(ctx, round, broken))
}

// gather waits until a round begins, or is broken.
func (p *Party) gather(ctx context.Context, round, broken uint64) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	whole := context.WithoutCancel(ctx) // who gives up withdraws
	changed := make(chan error, 2)
	for _, path := range []string{p.cfg.Dir + "/round", p.cfg.Dir + "/parties"} {
		st, err := p.names.Stat(sigma.WithSync(whole), path)
		if err != nil {
			return err
		}
		go p.watch(ctx, path, st.ID.Version, changed)
	}
	for {
		entries, err := p.names.ReadDir(sigma.WithSync(whole), p.cfg.Dir+"/parties")
		if err != nil {
			return err
		}
		s, err := p.change(whole, func(s *state) bool {
			if s.Round != round || s.Broken != broken {
				return false
			}
			for _, name := range s.Here {
				if !slices.ContainsFunc(entries, func(e sigma.DirEntry) bool { return e.Name == name }) {
					s.Broken, s.Dead, s.Here = s.Broken+1, name, nil
					return true
				}
			}
			return ctx.Err() != nil && s.withdraw(p.name)
		})
		switch {
		case err != nil:
			return err
		case s.Round > round:
			return nil
		case s.Broken != broken:
			return &sigma.Error{Kind: sigma.KindLost, Msg: fmt.Sprintf("the party %q has died or left", s.Dead),
				Hint: "have another one join by its name, and come to the barrier again"}
		case ctx.Err() != nil:
			return ctx.Err()
		}
		select {
		case err = <-changed:
		case <-ctx.Done():
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// watch tells of each change of a file.
func (p *Party) watch(ctx context.Context, path string, v sigma.Version, changed chan<- error) {
	for ctx.Err() == nil {
		now, err := p.names.Watch(ctx, path, v)
		if kind := sigma.KindOf(err); err != nil && (kind == sigma.KindLost || kind.Retryable()) {
			retry.Pause(ctx, retryPause)
			err = nil
		} else if err == nil {
			v = now
		}
		select {
		case changed <- err:
		case <-ctx.Done():
		}
		if err != nil {
			return
		}
	}
}

// Leave ends the membership. Others that wait are told.
func (p *Party) Leave(ctx context.Context) error {
	err := p.revoke(ctx)
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return nil
	}
	return sigma.Wrap("barrier.Leave", p.cfg.Dir, err)
}

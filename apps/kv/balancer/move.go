package balancer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// groups makes calls to groups until they are answered. *kv.Clerk is one.
type groups interface {
	AskGroup(ctx context.Context, group uint32, m *call.Method, arg []byte) (store.Result, error)
}

// mover moves one shard (store/move.go has the commands and why their order is safe).
type mover struct {
	groups
	shard    uint16
	from, to uint32
	epoch    uint64
	attempt  uint64
	at       uint64    // the version that the shard has where it arrives
	frozen   time.Time // when nobody served the shard any more
}

const (
	// fewChanges is how few changes of a page allow the shard to be frozen: the rest is copied
	// while nobody serves it.
	fewChanges = 64
	// pacePause bounds the pause after each page. It is as long as the page took otherwise, so that
	// copying takes half of what groups can do, and clients get the rest.
	pacePause = 50 * time.Millisecond
	// roundsMax bounds the pages of changes that are copied before that, for a shard that is
	// written faster than it is copied.
	roundsMax = 200
)

// overtaken is the error of a move that another mover, or another attempt, has in hand.
func overtaken(what string, r store.Result) error {
	return sigma.Errorf("kv.move", sigma.KindStale, "the group refused %s (%d): another attempt may be under way",
		what, r.Code)
}

// move brings the shard to the group to, which serves it then. It can be called again, by whomever,
// after it has failed at any point; what an earlier attempt copied is copied again.
func (m *mover) move(ctx context.Context) error {
	m.attempt = rand.Uint64() | 1
	// From Mark on the group from keeps all changes, so the other one has to run before.
	if _, err := m.ask(ctx, m.to, calls.ExportArg{Part: calls.Sessions}); err != nil {
		return err
	}
	mark, err := m.step(ctx, m.from, store.Request{Op: store.Mark, If: uint64(m.to)})
	switch {
	case err != nil:
		return err
	case mark.Code != store.Done && mark.Code != store.Already:
		return overtaken("to give the shard", mark)
	}
	m.at = mark.Version
	prepared, err := m.step(ctx, m.to, store.Request{Op: store.Prepare, If: m.at})
	switch {
	case err != nil:
		return err
	case prepared.Code == store.Already && mark.Code == store.Already:
		return nil
	case prepared.Code == store.Already: // it may be served by a group that has begun anew since
		_, err := m.freeze(ctx)
		return err
	case prepared.Code != store.Done:
		return overtaken("to take the shard", prepared)
	case mark.Code == store.Already: // it has arrived before, and the group has lost it since
		return m.activate(ctx)
	}
	if err := m.copyItems(ctx); err != nil {
		return err
	}
	for range roundsMax {
		n, err := m.copyChanges(ctx)
		if err != nil {
			return err
		}
		if n < fewChanges {
			break
		}
	}
	frozen, err := m.freeze(ctx)
	if err != nil {
		return err
	}
	sessions := make(chan error, 1)
	go func() { sessions <- m.copySessions(ctx) }()
	for err == nil && m.at < frozen.Version {
		_, err = m.copyChanges(ctx)
	}
	if serr := <-sessions; err == nil {
		err = serr
	}
	if err != nil {
		return err
	}
	return m.activate(ctx)
}

// freeze has the group that the shard leaves serve it no more.
func (m *mover) freeze(ctx context.Context) (store.Result, error) {
	m.frozen = time.Now()
	frozen, err := m.step(ctx, m.from, store.Request{Op: store.Freeze})
	if err == nil && frozen.Code != store.Done {
		err = overtaken("to freeze the shard", frozen)
	}
	return frozen, err
}

func (m *mover) copySessions(ctx context.Context) error {
	sessions, err := m.export(ctx, calls.ExportArg{Part: calls.Sessions})
	if err == nil {
		_, err = m.bring(ctx, store.Request{Op: store.ImportSessions, Value: sessions.Value})
	}
	return err
}

func (m *mover) activate(ctx context.Context) error {
	r, err := m.step(ctx, m.to, store.Request{Op: store.Activate, If: m.at})
	if err == nil && r.Code != store.Done && r.Code != store.Already {
		err = overtaken("to serve the shard", r)
	}
	return err
}

// drop has the group that the shard has left forget its keys. It can be called again after move.
// KindStale: the group has begun anew since move, and serves the shard.
func (m *mover) drop(ctx context.Context) error {
	r, err := m.step(ctx, m.from, store.Request{Op: store.Drop})
	if err == nil && r.Code != store.Done {
		err = overtaken("to forget the shard", r)
	}
	return err
}

func (m *mover) copyItems(ctx context.Context) error {
	after := ""
	for n := uint64(1); ; n++ {
		began := time.Now()
		page, err := m.export(ctx, calls.ExportArg{Part: calls.Items, After: after})
		if err != nil {
			return err
		}
		items, err := store.ParseItems(page.Value)
		if err != nil || len(items) == 0 {
			return err
		}
		after = items[len(items)-1].Key
		if _, err := m.bring(ctx, store.Request{Op: store.Import, If: n, Value: page.Value}); err != nil {
			return err
		}
		if _, err := m.copyChanges(ctx); err != nil { // the group keeps a part of its memory of them
			return err
		}
		if !retry.Pause(ctx, min(time.Since(began), pacePause)) {
			return ctx.Err()
		}
	}
}

// copyChanges copies a page of changes and gives how many they were.
func (m *mover) copyChanges(ctx context.Context) (int, error) {
	page, err := m.export(ctx, calls.ExportArg{Part: calls.Changes, Version: m.at})
	if err != nil {
		return 0, err
	}
	all, err := store.ParseChanges(page.Value)
	if err != nil || len(all) == 0 {
		return 0, err
	}
	r, err := m.bring(ctx, store.Request{Op: store.ImportChanges, Value: page.Value})
	if err == nil && r.Version <= m.at {
		err = overtaken("changes", r)
	}
	m.at = r.Version
	return len(all), err
}

func (m *mover) step(ctx context.Context, group uint32, q store.Request) (store.Result, error) {
	q.Shard, q.Client, q.Seq = m.shard, m.epoch, m.attempt
	b, err := q.Append(nil)
	if err != nil {
		return store.Result{}, err
	}
	return m.AskGroup(ctx, group, calls.Step, b)
}

func (m *mover) bring(ctx context.Context, q store.Request) (store.Result, error) {
	r, err := m.step(ctx, m.to, q)
	if err == nil && r.Code != store.Done {
		err = overtaken("a part of the shard", r)
	}
	return r, err
}

// ask asks a group for a part of the shard.
func (m *mover) ask(ctx context.Context, group uint32, a calls.ExportArg) (store.Result, error) {
	a.Shard = m.shard
	enc := sigmap.NewEncoder(nil)
	a.Code(enc)
	return m.AskGroup(ctx, group, calls.Export, enc.Bytes())
}

func (m *mover) export(ctx context.Context, a calls.ExportArg) (store.Result, error) {
	r, err := m.ask(ctx, m.from, a)
	if err == nil && r.Code != store.Done {
		err = overtaken(fmt.Sprintf("part %d of the shard", a.Part), r)
	}
	return r, err
}

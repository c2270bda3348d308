package group

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// DocumentMax is the size of the document in bytes.
const DocumentMax = 48 << 10

const retryPause = 50 * time.Millisecond

// Client is what a member needs of *sdk.Client.
type Client interface {
	sigma.Namespace
	sdk.Candidate
}

// Config is a group, the same for all members.
type Config struct {
	Dir string
	TTL time.Duration // after which a silent leader is replaced. 0 = 5 s
	// Fenced are more directories in which only the leader may write.
	Fenced []string
}

// Document is the group's configuration at one version.
type Document struct {
	Data    []byte
	Version sigma.Version // 0 = there is none yet
}

// Term is the time for which a member leads.
type Term struct {
	client Client
	path   string
	fence  sigma.Fence
}

// Run is a member's life under a name, until ctx ends: it stands by, and calls lead each time it
// leads, with a context that ends when it leads no more. When lead returns nil the member leaves;
// when it returns an error Run returns that, unless the member had been deposed by then or names
// were away: then it stands by again.
func Run(ctx context.Context, c Client, cfg Config, name string, lead func(ctx context.Context, t *Term) error) error {
	const op = "group.Run"
	dir := cfg.Dir + "/members"
	if err := c.MkdirAll(ctx, dir, 0o755); err != nil {
		return sigma.Wrap(op, dir, err)
	}
	lease, revoke, err := c.Lease(ctx, memberTTL)
	if err != nil {
		return sigma.Wrap(op, dir, err)
	}
	defer func() { revoke(context.WithoutCancel(ctx)) }()
	o := sigma.PutOptions{MustMake: true, Lease: lease}
	if _, err := c.Put(ctx, dir+"/"+name, nil, o); err != nil {
		if sigma.KindOf(err) == sigma.KindExists {
			err = &sigma.Error{Kind: sigma.KindExists, Msg: "a member of this name lives",
				Hint: "name members by their procs", Err: err}
		}
		return sigma.Wrap(op, dir+"/"+name, err)
	}
	path := cfg.Dir + "/document"
	err = sdk.Lead(ctx, c, sdk.Election{Path: cfg.Dir + "/leader", Data: []byte(name), TTL: cfg.TTL,
		Fenced: append([]string{path}, cfg.Fenced...)}, func(ctx context.Context, l *sdk.Leadership) error {
		return lead(ctx, &Term{c, path, l.Fence()})
	})
	return sigma.Wrap(op, cfg.Dir, errors.Join(err, ctx.Err()))
}

// memberTTL is how long the name of a member lasts whose machine died.
const memberTTL = 10 * time.Second

// Fence is that of the term, for what the leader changes elsewhere.
func (t *Term) Fence() sigma.Fence { return t.fence }

// Document reads the document as it is now.
func (t *Term) Document(ctx context.Context) (Document, error) {
	return read(sigma.WithSync(ctx), t.client, t.path)
}

// Change replaces the document if it is at a version, 0 if there is none. KindVersion: it is not;
// KindStale: another member leads.
func (t *Term) Change(ctx context.Context, at sigma.Version, data []byte) (sigma.Version, error) {
	const op = "group.Change"
	if len(data) > DocumentMax {
		return 0, &sigma.Error{Op: op, Path: t.path, Kind: sigma.KindTooBig,
			Msg:  fmt.Sprintf("the document has %d bytes; the most are %d", len(data), DocumentMax),
			Hint: "name files in it"}
	}
	id, err := t.client.Put(ctx, t.path, data, sigma.PutOptions{MustMake: at == 0, IfVersion: at})
	if err != nil && sigma.KindOf(err) == sigma.KindExists {
		err = &sigma.Error{Kind: sigma.KindVersion, Msg: "there is a document already",
			Hint: "read it, and change that"}
	}
	return id.Version, sigma.Wrap(op, t.path, err)
}

func read(ctx context.Context, n sigma.Namespace, path string) (Document, error) {
	data, id, err := n.Get(ctx, path)
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return Document{}, nil
	}
	return Document{data, id.Version}, sigma.Wrap("group.Document", path, err)
}

// Members lists the names of the members that live.
func Members(ctx context.Context, n sigma.Namespace, dir string) (names []string, err error) {
	entries, err := n.ReadDir(ctx, dir+"/members")
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names, sigma.Wrap("group.Members", dir, err)
}

// Leader is the name of the member that leads, "" while none does.
func Leader(ctx context.Context, n sigma.Namespace, dir string) (string, error) {
	name, _, err := n.Get(ctx, dir+"/leader")
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return "", nil
	}
	return string(name), sigma.Wrap("group.Leader", dir, err)
}

// Follow gives the document each time it has changed, first as it is once there is one, until ctx
// ends. Of several changes only the last may be told. An error is the last that it yields.
func Follow(ctx context.Context, n sigma.Namespace, dir string) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		path := dir + "/document"
		for told := sigma.Version(0); ; {
			d, err := read(ctx, n, path)
			if err == nil && d.Version == 0 {
				if err = n.WaitFor(ctx, path); err == nil {
					continue
				}
			}
			if err == nil && d.Version != told {
				if told = d.Version; !yield(d, nil) {
					return
				}
			}
			if err == nil {
				_, err = n.Watch(ctx, path, told)
			}
			kind := sigma.KindOf(err)
			again := kind == sigma.KindLost || kind == sigma.KindNotFound || kind.Retryable()
			switch {
			case err == nil:
				continue
			case ctx.Err() != nil || !again:
				yield(Document{}, sigma.Wrap("group.Follow", path, err))
				return
			}
			retry.Pause(ctx, retryPause)
		}
	}
}

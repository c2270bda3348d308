// Package s3 is an object store as a tree: /BUCKET/KEY, where a key is a path of directories and a
// name. Each realm has its own buckets.
//
// An object is immutable: Put, or Create (or Open with OpenTruncate), WriteAt and Sync, make a new
// one that replaces the old one atomically, and who has the old one open goes on reading it. The
// bytes written become visible at Sync or at Publish, which the server kit calls when a client
// closes the handle itself. Close alone discards them, so the object of a writer whose session dies
// never appears. Sync also waits until object and name are on the disk; Put and Publish do not:
// they survive the death of every process, not that of the machine.
//
// Until it is published an object may be written at any offset. What cannot be done with objects is
// KindUnsupported: writing to an existing one without truncating, appending, changing its size,
// links and endpoints, permissions and times. The version of an object changes with each
// replacement and stays over restarts.
//
// Directories exist once made, and stay when they become empty. Objects and directories can be
// renamed. The root holds buckets only, which are directories named like S3's: 1 to 63 of a-z, 0-9
// and '-', beginning and ending with a letter or digit.
//
// Objects are on the local disk, or in a store of S3's kind on the network (package remote), by
// realm or for all: SetStore. What differs there, package remote says.
package s3

import (
	"context"
	"fmt"
	"log/slog"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/trees/diskfs"
	"sigmaos.dev/trees/diskspace"
	"sigmaos.dev/trees/s3/remote"
)

// Config says where objects are and what bounds them; see diskfs.Config.
type Config struct {
	Dir        string
	QuotaBytes sigma.Bytes // per realm, on the local disk; 0 means its share of what is left there (diskspace.Share)
	OpenMax    int         // descriptors per realm; 0 means diskfs.OpenMaxDefault
	Board      *changeboard.Board

	// directory of what is known of stores of S3's kind, their cache and uploads; "" = none can be
	// used
	Elsewhere string
	Cache     sigma.Bytes // of what is read from them; see remote.Config
	Dial      remote.Dial // connects to them
	Buckets   []string    // that each realm whose objects are elsewhere is given
	Log       *slog.Logger
}

// Tree serves the object store. Safe for concurrent use.
type Tree struct {
	local  *diskfs.Tree
	stores *stores // nil = Config.Elsewhere is ""
}

var _ sigma.Tree = (*Tree)(nil)

// New opens or makes a store in the directory cfg.Dir.
func New(cfg Config) (*Tree, error) {
	t := &Tree{}
	on := diskfs.Config{Dir: cfg.Dir, QuotaBytes: cfg.QuotaBytes, OpenMax: cfg.OpenMax,
		Policy: diskfs.Policy{Objects: true, CheckEntry: checkEntry}, Board: cfg.Board}
	if cfg.QuotaBytes == 0 {
		on.Quota = &diskfs.Quota{Of: t.share, Refused: refusedShare}
	}
	local, err := diskfs.New(on)
	if err != nil {
		return nil, sigma.Wrap("s3.New", cfg.Dir, err)
	}
	t.local = local
	if cfg.Elsewhere != "" {
		if t.stores, err = openStores(cfg); err != nil {
			local.Close()
			return nil, err
		}
	}
	return t, nil
}

// share is what a realm's objects may take of the local disk. It is asked before each change, so
// one that is made while others grow is right when it is made.
func (t *Tree) share(realm sigma.RealmID, _ bool) sigma.Bytes {
	left, err := t.local.Left()
	if err != nil { // the disk itself says then what it takes
		return 0
	}
	held, _ := t.local.Used(realm)
	return max(1, diskspace.Share(held, left)) // 0 would be none
}

func refusedShare(_ sigma.RealmID, held, more, share sigma.Bytes) *sigma.Error {
	return &sigma.Error{Kind: sigma.KindNoSpace,
		Msg: fmt.Sprintf(
			"the realm's objects have their share of the disk of the object store: they take %v, and may take %v as "+
				"long as no more is free; this takes %v more", held, share, more),
		Hint: "remove objects, or ask the provider for a larger disk or a store: sigma s3 store set"}
}

// Attach returns the directory of buckets of p's realm; a System principal may name another realm.
func (t *Tree) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	realm, err := p.RealmNamed("s3.Attach", name)
	if err != nil {
		return nil, err
	}
	if root, err := t.elsewhere(ctx, realm); root != nil || err != nil {
		return root, err
	}
	return t.local.Attach(ctx, p, name)
}

// RemoveRealm removes all buckets of a realm; see diskfs.Tree.RemoveRealm. What is in a store of
// the realm's own stays there.
func (t *Tree) RemoveRealm(ctx context.Context, realm sigma.RealmID) error {
	if err := t.removeElsewhere(ctx, realm); err != nil {
		return err
	}
	return t.local.RemoveRealm(ctx, realm)
}

// Close ends the service.
func (t *Tree) Close() {
	t.local.Close()
	if t.stores != nil {
		t.stores.remote.Close()
	}
}

// checkEntry keeps objects out of the root and bad names out of the list of buckets.
func checkEntry(top bool, name string, kind sigma.FileKind) error {
	if !top {
		return nil
	}
	if kind != sigma.KindDir {
		return &sigma.Error{Op: "s3.checkEntry", Path: name, Kind: sigma.KindPermission, Msg: "objects live in buckets",
			Hint: "make a directory here, and the object in it"}
	}
	ok := len(name) <= 63
	for i := range len(name) {
		c := name[i]
		inner := i > 0 && i < len(name)-1
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && inner)
	}
	if !ok {
		return &sigma.Error{Op: "s3.checkEntry", Path: name, Kind: sigma.KindInvalid, Msg: "not a name of a bucket",
			Hint: "use 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"}
	}
	return nil
}

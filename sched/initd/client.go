package initd

import (
	"context"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/wire/sigmap"
)

// initFile is where the machine is asked for procs.
const initFile = "/sys/" + sigmap.FileInit

// Client is a System by the tree of one of the provider's services, whose requests below Dir are
// fenced at the leader's epoch.
type Client struct {
	Tree  *resolve.Tree
	Epoch sigma.Epoch
}

var _ System = (*Client)(nil)

// Prepare makes the directories; it can be done again and again.
func Prepare(ctx context.Context, t *resolve.Tree) error {
	if err := t.MkdirAll(ctx, RealmsDir, 0o700); err != nil {
		return err
	}
	_, err := t.Put(ctx, ChangedFile, nil, sigma.PutOptions{Perm: 0o600, MustMake: true})
	if sigma.KindOf(err) == sigma.KindExists {
		return nil
	}
	return err
}

// List implements System. A record that cannot be read is left as it is: sigma init ls names it.
func (c *Client) List(ctx context.Context) (map[Key]Versioned, error) {
	realms, err := c.Tree.ReadDir(ctx, RealmsDir)
	if err != nil {
		return nil, err
	}
	all := map[Key]Versioned{}
	for _, realm := range realms {
		records, err := ReadRecords(ctx, c.Tree, sigma.RealmID(realm.Name))
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			if r.Err == nil {
				all[r.Key] = r.Versioned
			}
		}
	}
	return all, nil
}

// ReadRecord is one that was read, or why it cannot be.
type ReadRecord struct {
	Key Key
	Versioned
	Err error
}

// ReadRecords reads the records of a realm, as they are now, by name.
func ReadRecords(ctx context.Context, t *resolve.Tree, realm sigma.RealmID) ([]ReadRecord, error) {
	ctx = sigma.WithSync(ctx)
	names, err := t.ReadDir(ctx, RealmsDir+"/"+string(realm))
	if sigma.KindOf(err) == sigma.KindNotFound && err != nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := make([]ReadRecord, 0, len(names))
	for _, n := range names {
		k := Key{realm, n.Name}
		v, err := ReadOne(ctx, t, k)
		switch kind := sigma.KindOf(err); {
		case err != nil && kind == sigma.KindNotFound: // just now
		case err != nil && kind != sigma.KindInvalid:
			return nil, err
		default:
			out = append(out, ReadRecord{k, v, err})
		}
	}
	return out, nil
}

// ReadOne reads one record as it is now.
func ReadOne(ctx context.Context, t *resolve.Tree, k Key) (v Versioned, err error) {
	data, id, err := t.Get(sigma.WithSync(ctx), k.Path())
	if err != nil {
		return v, err
	}
	v.Version = id.Version
	v.Record, err = Parse(k.Name, data)
	return v, err
}

// Changed implements System.
func (c *Client) Changed(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	if since == 0 {
		st, err := c.Tree.Stat(sigma.WithSync(ctx), ChangedFile)
		return st.ID.Version, err
	}
	return c.Tree.Watch(ctx, ChangedFile, since)
}

// Save implements System.
func (c *Client) Save(ctx context.Context, k Key, v Versioned) (sigma.Version, error) {
	return SaveRecord(ctx, c.Tree, k, v, sigma.PutOptions{Perm: 0o600, MustExist: true, IfVersion: v.Version})
}

// SaveRecord writes a record.
func SaveRecord(ctx context.Context, t *resolve.Tree, k Key, v Versioned, o sigma.PutOptions) (sigma.Version, error) {
	data, err := v.Record.Encode()
	if err != nil {
		return 0, err
	}
	id, err := t.Put(ctx, k.Path(), data, o)
	return id.Version, err
}

// Forget implements System.
func (c *Client) Forget(ctx context.Context, k Key, at sigma.Version) error {
	return ForgetRecord(ctx, c.Tree, k, at)
}

// ForgetRecord removes a record if its file is at a version. KindVersion: it is at another.
// KindNotFound: it is gone.
//
// A removal by name would take what was registered under the name meanwhile. So the file is emptied
// at the version and given to a lease, whose end removes that file and no other. Nobody writes an
// empty file again. If the caller dies in between, the lease expires.
func ForgetRecord(ctx context.Context, t *resolve.Tree, k Key, at sigma.Version) error {
	lease, end, err := t.Lease(ctx, forgetMost)
	if err != nil {
		return err
	}
	_, err = t.Put(ctx, k.Path(), nil, sigma.PutOptions{Perm: 0o600, MustExist: true, IfVersion: at, Lease: lease})
	ended := end(ctx)
	if err == nil && sigma.KindOf(ended) != sigma.KindNotFound { // which says that it has expired
		err = ended
	}
	return err
}

// forgetMost is after how long an emptied record is gone though its lease was not ended.
const forgetMost = 10 * time.Second

// Look implements System.
func (c *Client) Look(ctx context.Context, qs []Question) (ss []Seen, err error) {
	return CallLook.Ask(ctx, c.file(), Look{c.Epoch, qs})
}

// Spawn implements System. It has no deadline of its own: one that was given up could still be
// carried out.
func (c *Client) Spawn(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, d sigma.Descriptor) error {
	return CallSpawn.Tell(ctx, c.file(), Spawning{c.Epoch, realm, id, d})
}

// Stop implements System.
func (c *Client) Stop(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) error {
	err := CallStop.Tell(ctx, c.file(), Spawning{Epoch: c.Epoch, Realm: realm, Proc: id})
	if sigma.KindOf(err) == sigma.KindNotFound {
		return nil
	}
	return err
}

func (c *Client) file() sigma.Caller { return sigmap.At(c.Tree, initFile) }

// StopGrace is what an instance of a removed registration gets to end in good order.
const StopGrace = 5 * time.Second

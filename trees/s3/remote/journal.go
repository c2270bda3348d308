package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/minio/minio-go/v7"

	"sigmaos.dev/sigma"
)

// The store keeps the parts of an upload until somebody completes or aborts it, and lets them be
// paid for. So each is noted in a file here before its first part is sent, and who finds the file
// after this process died aborts it.

// begun is one note.
type begun struct {
	Realm  sigma.RealmID
	Bucket string
	Key    string
	ID     string
}

func (t *Tree) noteName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(t.cfg.Dir, "journal", hex.EncodeToString(sum[:16]))
}

func (t *Tree) journal(realm sigma.RealmID, bucket, key, id string) error {
	text, err := json.Marshal(begun{realm, bucket, key, id})
	if err == nil {
		err = os.WriteFile(t.noteName(id), text, 0o600)
	}
	if err != nil {
		return spoolError(err)
	}
	return nil
}

func (t *Tree) forget(id string) { os.Remove(t.noteName(id)) }

// abort removes an upload from the store. If that fails the note stays for the next start.
func (t *Tree) abort(c *client, key, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), attemptMax)
	defer cancel()
	err := c.try(ctx, "remote.Abort", key, attemptMax, func(ctx context.Context, _ int) error {
		return c.core.AbortMultipartUpload(ctx, c.bucket, key, id)
	})
	if err == nil || sigma.KindOf(err) == sigma.KindNotFound {
		t.forget(id)
		return
	}
	t.cfg.Log.Warn("an upload could not be aborted", "key", key, "err", err)
}

// straysMax bounds the uploads of one object that are looked at.
const straysMax = 1000

// abortStrays removes uploads of a key of which we do not know: those whose beginning was not
// answered. One that another writer of the same key begins at this moment may be among them, and
// fails then.
func (t *Tree) abortStrays(c *client, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), attemptMax)
	defer cancel()
	var found []minio.ObjectMultipartInfo
	err := c.try(ctx, "remote.Abort", key, attemptMax, func(ctx context.Context, _ int) error {
		r, err := c.core.ListMultipartUploads(ctx, c.bucket, key, "", "", "", straysMax)
		found = r.Uploads
		return err
	})
	if err != nil {
		t.cfg.Log.Warn("uploads that were begun without an answer may be left in the object store", "key", key, "err",
			err)
		return
	}
	for _, u := range found {
		if _, err := os.Stat(t.noteName(u.UploadID)); u.Key == key && errors.Is(err, os.ErrNotExist) {
			t.abort(c, key, u.UploadID)
		}
	}
}

// openJournal reads what an earlier process began.
func (t *Tree) openJournal() error {
	dir := filepath.Join(t.cfg.Dir, "journal")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return sigma.Wrap("remote.New", dir, err)
	}
	notes, err := os.ReadDir(dir)
	if err != nil {
		return sigma.Wrap("remote.New", dir, err)
	}
	for _, n := range notes {
		text, err := os.ReadFile(filepath.Join(dir, n.Name()))
		var b begun
		if err == nil {
			err = json.Unmarshal(text, &b)
		}
		if err != nil { // it was being written: no part was sent
			os.Remove(filepath.Join(dir, n.Name()))
			continue
		}
		t.left[b.Realm] = append(t.left[b.Realm], b)
	}
	return nil
}

// abortLeftLocked aborts what an earlier process left of a realm in the store that it has now.
func (t *Tree) abortLeftLocked(realm sigma.RealmID, c *client) {
	left := t.left[realm]
	delete(t.left, realm)
	t.work.Go(func() {
		for _, b := range left {
			if b.Bucket == c.bucket {
				t.abort(c, b.Key, b.ID)
			}
		}
	})
}

package cluster

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/atomicfile"
)

// Files of the kernel's directory, of mode 0600, since each holds the machine's key.
const (
	IdentityFile = "identity" // who this machine is; there once it is a member
	// the key with which it is becoming one, so that an answer that was lost can be asked for again
	PendingFile = "identity.pending"
	JoinFile    = "join" // how it is to become one
)

// Kept is what a machine must know when it is started again: who it is, and whom to ask.
type Kept struct {
	Format      int
	Key         string            // PEM
	Certificate []byte            `json:",omitempty"` // DER; of its last life
	Authorities [][]byte          `json:",omitempty"` // DER
	Control     []identity.Member `json:",omitempty"` // the control machines it last knew
	Joined      bool              `json:",omitempty"` // by a token; false = it founded the system
	// The machine joined, and was a control machine at some time. If it is none now, that was an
	// operator's decision.
	Ruled bool `json:",omitempty"`
	// how this machine's named came to be a member of the store of names (sigmap.CallMemberAdd); ""
	// = it is the first, or has none
	Names string `json:",omitempty"`
}

const (
	keptFormat = 1
	keptMax    = 1 << 20
)

// identityKeeper writes kept down. Safe for concurrent use.
type identityKeeper struct {
	dir string

	mu  sync.Mutex
	now Kept // mu
}

// load reads what is kept; false if this machine is no member yet. Then there is a key all the
// same.
func (i *identityKeeper) load() (member bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, name := range []string{IdentityFile, PendingFile} {
		k, err := readKept(filepath.Join(i.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		i.now = k
		return name == IdentityFile, nil
	}
	i.now = Kept{Format: keptFormat, Key: string(identity.MarshalKey(identity.NewKey()))}
	return false, i.writeLocked(PendingFile)
}

func readKept(path string) (k Kept, err error) {
	const op = "kernel.identity"
	info, err := os.Stat(path)
	if err != nil {
		return k, err
	}
	if info.Size() > keptMax {
		return k, sigma.PathError(op, sigma.KindTooBig, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return k, sigma.Wrap(op, path, err)
	}
	if err := json.Unmarshal(text, &k); err != nil {
		return k, &sigma.Error{Op: op, Path: path, Kind: sigma.KindInvalid,
			Msg: "the machine's identity cannot be read", Err: err,
			Hint: "restore the file from a backup, or let the machine join again with a fresh data directory"}
	}
	if k.Format != keptFormat {
		return k, sigma.Errorf(op, sigma.KindUnsupported, "the machine's identity has format %d, this program knows %d",
			k.Format, keptFormat)
	}
	return k, nil
}

// Get is what is kept now.
func (i *identityKeeper) get() Kept {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.now
}

// Change writes down what f changes.
func (i *identityKeeper) change(f func(*Kept)) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	f(&i.now)
	if err := i.writeLocked(IdentityFile); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(i.dir, PendingFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return sigma.Wrap("kernel.identity", PendingFile, err)
	}
	return nil
}

// setControl notes the control machines, if they are others than before.
func (i *identityKeeper) setControl(members []identity.Member) error {
	control := slices.DeleteFunc(slices.Clone(members), func(m identity.Member) bool { return !m.Control })
	if len(control) == 0 || slices.Equal(control, i.get().Control) {
		return nil
	}
	return i.change(func(k *Kept) { k.Control = control })
}

// writeLocked replaces a file as a whole, durably: a machine that forgets that it is a member could
// come back by a new token only.
func (i *identityKeeper) writeLocked(name string) error {
	const op = "kernel.identity"
	path := filepath.Join(i.dir, name)
	text, err := json.MarshalIndent(&i.now, "", "\t")
	if err != nil {
		return sigma.Wrap(op, path, err)
	}
	return atomicfile.Write(path, text)
}

// PrivateKey is the machine's.
func (k *Kept) PrivateKey() (ed25519.PrivateKey, error) { return identity.ParseKey([]byte(k.Key)) }

// grant gives what is kept in the form in which it was granted.
func (k *Kept) grant() *identity.Grant {
	return &identity.Grant{Certificate: k.Certificate, Authorities: k.Authorities, Control: k.Control}
}

// Authority is the fingerprint of the authority that this machine knows its system by.
func (k *Kept) Authority() (f identity.Fingerprint) {
	if len(k.Authorities) > 0 {
		f = sha256.Sum256(k.Authorities[0])
	}
	return f
}
